"""The attention viewer: models before and after training, and a page, or a section of one, with maps of texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.methods.core.registry import given_options
from attendrop.model_support.devices import compute_device
from attendrop.pruning.serialization import is_pruned
from attendrop.reports.attention_maps import DropSettings, MapSettings, TextMaps, compact, text_maps
from attendrop.reports.drops import DropMoment, Learnt, acting_in_attention, active_epochs
from attendrop.reports.page import MOST_BYTES, Section, render, render_page
from attendrop.runs.baseline_models import is_baseline
from attendrop.runs.config import RunConfig
from attendrop.runs.finished_run import check_finished
from attendrop.runs.model_loading import load_config, load_for, load_model_and_tokenizer
from attendrop.runs.run_folder import keeps_model, read_metrics, read_run
from attendrop.tasks.base import Task
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.registry import head_of_model
from attendrop.tasks.long_texts import HEAD, HEAD_TAIL, WINDOWS
from attendrop.tasks.registry import get_task
from attendrop.tasks.tokenization import encode_columns
from attendrop.tasks.tokenizers import DEFAULT_MAX_LENGTH
from attendrop.wording import counted

if TYPE_CHECKING:
    from markupsafe import Markup

# The training that is assumed for a model that no run has made.
_STEPS = 1000
_NEW_HEAD = (
    "The model has no trained head for this task: its head is random, and so are its predictions, the attributions and "
    "what is dropped by them. Attention is the model's own."
)
_STYLES, _SCRIPTS = ("attention_viewer.css",), ("attention_viewer.js",)
# A shorter maximum length is not advised.
_LEAST_TOKENS = 8
# Of a page of that length, as a fraction of what it may have: base64 is padded, and predictions change.
_SPARE = 0.01
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """A model whose attention is shown.

    Attributes:
        name: Heading, such as "After training".
        note: What else is to be known of it; may be empty.
        model: The model, in evaluation mode.
        drops: What its method drops; None: no method drops anything in attention.
    """

    name: str
    note: str
    model: PreTrainedModel
    drops: DropSettings | None


@dataclass(frozen=True)
class Stages:
    """Models that are shown beside one another.

    Attributes:
        stages: The models, in their order.
        tokenizer: Their tokenizer.
        head: Their head.
        num_texts: Number of texts of an input; None: unknown.
        max_length: Maximum length in tokens that the run had; None: unknown.
        method: The method whose drops are shown; None: no method drops anything in attention.
        of_run: Whether the run was trained with this method.
        long_texts: What the run did with texts that are too long, see :mod:`attendrop.tasks.long_texts`.
    """

    stages: tuple[Stage, ...]
    tokenizer: PreTrainedTokenizerBase
    head: Head
    num_texts: int | None
    max_length: int | None
    method: Method | None
    of_run: bool = False
    long_texts: str = HEAD


def load_stages(name: str, method: Method | None, default: Method, *, seed: int = 0, device: str = "auto") -> Stages:
    """Load what is shown for a model.

    Of the folder of a run: its base model, with the head with which training began where that was random, and the
    trained model.

    Args:
        name: Folder of a finished run, another folder of a model, a hub id or ``"minilm"``.
        method: The method whose drops are shown. None: that of the run; where the run has none that drops anything in
            attention, ``default``.
        default: See ``method``.
        seed: Seed of the drops, and of the head of a model that has none.
        device: ``"auto"`` or ``"cpu"``.

    Raises:
        AttendropError: The run is not finished, its model was not kept, or the model cannot be loaded.
    """
    run = read_run(Path(name)) if Path(name).is_dir() else None
    if run is None:
        found = _of_model(name, method or default, seed, device)
    else:
        check_finished(name)
        found = _of_run(Path(name), run, method, default, seed, device)
    found.head.refuse("attend")
    return found


def _of_model(name: str, method: Method, seed: int, device: str) -> Stages:
    if is_pruned(name):
        model, tokenizer = load_model_and_tokenizer(name, None)
        note = ""
    else:
        set_seed(seed)
        head = head_of_model(load_config(name), command="attend")
        loaded = load_for(name, files_task(head.inputs[: head.least_inputs], head))
        model, tokenizer = loaded.model, loaded.tokenizer
        note = _NEW_HEAD if loaded.new else ""
    drops = _drops(method, DropMoment(seed, 0, _STEPS), 2, first=True)
    stage = Stage(Path(name).name, note, _placed(model, device), drops)
    return Stages((stage,), tokenizer, head_of_model(model.config), None, None, None if drops is None else drops.method)


def _of_run(
    folder: Path, run: Mapping[str, Any], method: Method | None, default: Method, seed: int, device: str
) -> Stages:
    config = RunConfig(**run["config"], output_dir=str(folder)).filled(**(run.get("decided") or {}))
    metrics = read_metrics(folder) or {}
    if not keeps_model(folder) and not is_baseline(folder):
        raise AttendropError(
            f"The run in '{folder}' kept no model, only its scores; train one with `attendrop train --config "
            f"{folder}/run.yaml`."
        )
    model, tokenizer = load_model_and_tokenizer(str(folder.absolute()), None)
    head = head_of_model(model.config)
    task = files_task(config.text_columns, head) if config.task is None else get_task(config.task)
    own = acting_in_attention(config.regularizer)
    of_run = method is None and own is not None
    learnt = Learnt.of_run(folder) if of_run else None
    shown = method or own or default
    epochs, steps = len(metrics.get("history", ())), int(metrics.get("planned_steps") or _STEPS)
    moment = DropMoment(seed, 0, max(steps, 1))
    first = _drops(shown, moment, epochs, first=True)
    last = _drops(shown, replace(moment, step=max(steps - 1, 0)), epochs, first=False)
    after = Stage("After training", "", _placed(model, device), None if last is None else replace(last, learnt=learnt))
    before = _before(config, task, first, device, fitted_head=bool(metrics.get("head_start")))
    stages = (after,) if before is None else (before, after)
    return Stages(
        stages,
        tokenizer,
        head,
        len(task.text_columns),
        config.max_length,
        None if last is None else last.method,
        of_run=of_run,
        long_texts=config.long_texts or HEAD,
    )


def _before(
    config: RunConfig, task: Task, drops: DropSettings | None, device: str, *, fitted_head: bool
) -> Stage | None:
    """Load the model that a run began with; None, with a warning, if it cannot be loaded any more."""
    set_seed(config.seed)
    try:
        loaded = load_for(config.model, task, config.pooling)
    except AttendropError as error:
        logger.warning("The model before training is not shown: %s", error)
        return None
    note = f"{config.model}. {_NEW_HEAD}" if loaded.new else config.model
    if loaded.new and fitted_head:
        note += " The run began with a head that was fitted to the frozen encoder, which is not repeated here."
    return Stage("Before training", note, _placed(loaded.model, device), drops)


def _drops(method: Method, moment: DropMoment, num_epochs: int, *, first: bool) -> DropSettings | None:
    """Make the settings of a method in the first or last epoch in which it is active; None if it drops nothing."""
    acting = acting_in_attention(method)
    epochs = [] if acting is None else active_epochs(acting, max(2, num_epochs))
    if acting is None or not epochs:
        return None
    return DropSettings(acting, replace(moment, epoch=epochs[0 if first else -1]))


def _placed(model: PreTrainedModel, device: str) -> PreTrainedModel:
    model.to(compute_device(device))  # type: ignore[arg-type]
    return model


@dataclass(frozen=True)
class ShownText:
    """One input with its maps.

    Attributes:
        text: The text; of a pair both.
        stages: Its maps in each model.
        label: Its label in the data; None: unknown.
        note: Which of its tokens are shown, and which others the run reads, a sentence; empty: all, as in the run.
    """

    text: str
    stages: tuple[TextMaps, ...]
    label: str | None = None
    note: str = ""

    def with_layers(self, keys: Sequence[str]) -> ShownText:
        """Return the text with the maps of some layers."""
        stages = tuple(replace(maps, layers={key: maps.layers[key] for key in keys}) for maps in self.stages)
        return replace(self, stages=stages)

    @property
    def tokens(self) -> int:
        """Number of its tokens that are shown."""
        return len(self.stages[0].tokens)

    @property
    def map_bytes(self) -> float:
        """Bytes of its maps in a page, which grow with the square of the number of tokens."""
        return sum(layer.compact_bytes for maps in self.stages for layer in maps.layers.values())


def show_texts(
    stages: Stages,
    texts: Sequence[str],
    pairs: Sequence[str] = (),
    *,
    attribution: str = "gradient",
    layers: str | int | Sequence[int] = "all",
    max_length: int | None = None,
) -> list[ShownText]:
    """Compute the maps of texts; of one that is not shown as the run reads it, or not whole, a warning says so.

    A long text is cut as in the run; of a text in windows, the beginning is shown.

    Args:
        stages: The models.
        texts: One or more texts.
        pairs: The second text of each, for a model of pairs.
        attribution: See :class:`attendrop.reports.attention_maps.MapSettings`.
        layers: As there.
        max_length: Maximum length in tokens; None: that of the run, or 128.

    Raises:
        AttendropError: There is no text, or an empty one; there is not one second text for each; the model is not
            supported, or the method cannot act on it.
    """
    columns = _columns(stages, texts, pairs)
    wanted = max_length or stages.max_length or DEFAULT_MAX_LENGTH
    limit = stages.head.length_limit(stages.tokenizer, wanted, columns)
    cut = HEAD if stages.long_texts == WINDOWS else stages.long_texts
    task = files_task(tuple(columns), stages.head).with_long_texts(cut)
    encoded = encode_columns(columns, task, stages.tokenizer, limit)
    lengths = stages.head.lengths(stages.head.tokenize(columns, stages.tokenizer, None))
    found = []
    for number, text in enumerate(texts):
        row = {name: values[number] for name, values in encoded.items()}
        shown = tuple(
            text_maps(stage.model, stages.tokenizer, stages.head, row, MapSettings(attribution, layers, stage.drops))
            for stage in stages.stages
        )
        note = _note(stages, lengths[number], limit, pair=bool(pairs))
        if note:
            logger.warning("%s%s", f"Text {number + 1}: " if len(texts) > 1 else "", note)
        found.append(ShownText(" ‖ ".join([text, *([pairs[number]] if pairs else [])]), shown, note=note))
    return found


def _note(stages: Stages, length: int, limit: int, *, pair: bool) -> str:
    """Say which tokens of an input of some length are shown, given the limit, and which the run reads."""
    own = limit if stages.max_length is None else min(stages.max_length, stages.tokenizer.model_max_length)
    cut = HEAD if stages.long_texts == WINDOWS else stages.long_texts
    end = "last" if stages.tokenizer.truncation_side == "left" else "first"
    shown, read = (_tokens(length, most, cut, end, pair=pair) for most in (limit, own))
    if stages.long_texts == WINDOWS and length > own:
        read = f"all {length} tokens, in windows of {own}"
    if shown == read:
        return f"{shown.capitalize()} are shown." if length > limit else ""
    return f"{shown.capitalize()} are shown; the run's prediction is over {read}."


def _tokens(length: int, limit: int, cut: str, end: str, *, pair: bool) -> str:
    """Name the tokens of an input that are left if it is cut to a limit; what is left of ``HEAD`` is its ``end``."""
    if length <= limit:
        return f"all {length} tokens"
    if pair:
        return f"{limit} of {length} tokens (the {end} of each text)"
    return (
        f"{limit} of {length} tokens (beginning and end)"
        if cut == HEAD_TAIL
        else f"the {end} {limit} of {length} tokens"
    )


def _columns(stages: Stages, texts: Sequence[str], pairs: Sequence[str]) -> dict[str, list[Any]]:
    if not texts:
        raise AttendropError("No text is given; give one or more.")
    if pairs and len(pairs) != len(texts):
        raise AttendropError(
            f"{counted(len(texts), 'text')} and {counted(len(pairs), 'second text')} are given; give one "
            "--text-pair for each text."
        )
    if stages.num_texts is not None and stages.num_texts != 1 + bool(pairs):
        what = {1: "single texts; omit --text-pair", 2: "pairs of texts; give one --text-pair for each text"}
        raise AttendropError(f"The model was trained on {what[stages.num_texts]}.")
    for text in (*texts, *pairs):
        problem = stages.head.text_problem(text)
        if problem is not None:
            raise AttendropError(f"A text cannot be shown: {problem}.")
    given = [texts, *([pairs] if pairs else [])]
    if len(given) > stages.head.most_inputs:
        raise AttendropError("The model reads one text at a time; omit --text-pair.")
    read = [stages.head.read_texts(row) for row in zip(*given, strict=True)]
    return {name: [row[place] for row in read] for place, name in enumerate(stages.head.inputs_of(len(given)))}


def viewer_section(identifier: str, heading: str, stages: Stages, texts: Sequence[ShownText]) -> Section:
    """Make a section of a page with a viewer."""
    source = f"{identifier}-data"
    content = render(
        "attention_viewer.html",
        source=source,
        texts=[shown.text for shown in texts],
        layers=list(texts[0].stages[0].layers),
        stages=stages.stages,
        method=None if stages.method is None else stages.method.name,
    )
    data = {
        "stages": [{"name": stage.name} for stage in stages.stages],
        "texts": [
            {"label": shown.label, "note": shown.note, "stages": [compact(maps) for maps in shown.stages]}
            for shown in texts
        ],
    }
    return Section(identifier, heading, content, _STYLES, _SCRIPTS, {source: data})


def explanation(stages: Stages, attribution: str = "gradient") -> Markup:
    """Explain what a viewer shows."""
    return render(
        "attention_about.html",
        method=None if stages.method is None else method_in_words(stages.method),
        attribution=attribution,
        both=len(stages.stages) > 1,
        score=stages.head.attributed,
    )


def attention_page(name: str, stages: Stages, texts: Sequence[ShownText], attribution: str = "gradient") -> str:
    """Make a self-contained page with a viewer.

    Raises:
        AttendropError: The page would be larger than 6 MB; or jinja2 is not installed.
    """
    page = _page(name, stages, texts, attribution)
    size = len(page.encode())
    if size > MOST_BYTES:
        raise AttendropError(
            f"The page would have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:g}; give {_advice(texts, size)}."
        )
    return page


def page_length(name: str, stages: Stages, texts: Sequence[ShownText]) -> int | None:
    """Return the maximum length, in tokens, with which :func:`attention_page` makes a page; None: the texts fit."""
    size = len(_page(name, stages, texts, "gradient").encode())
    return _length_that_fits(texts, size) if size > MOST_BYTES else None


def _page(name: str, stages: Stages, texts: Sequence[ShownText], attribution: str) -> str:
    maps = viewer_section("maps", "Maps", stages, texts)
    return render_page(
        f"Attention of {name}", [maps, Section("about", "What is shown", explanation(stages, attribution))]
    )


def _advice(texts: Sequence[ShownText], size: int) -> str:
    """Say what would make a page fit that has so many bytes."""
    length, room = _length_that_fits(texts, size), _room(texts, size)
    layers, maps = len(texts[0].stages[0].layers), [text.map_bytes for text in texts]
    fitting = max(0, int(room * layers / sum(maps)))
    ways = [
        *([] if length is None else [f"--max-length {length}"]),
        *([f"at most {fitting} of the {layers} layers (--layers)"] if fitting else []),
        *(["fewer texts"] if len(texts) > 1 and min(maps) <= room else []),
    ]
    return ", or ".join(ways) or "shorter texts"


def _length_that_fits(texts: Sequence[ShownText], size: int) -> int | None:
    """Return the largest maximum length with which a page fits that has so many bytes; None: under 8 tokens."""
    room = _room(texts, size)
    for length in range(max(text.tokens for text in texts) - 1, _LEAST_TOKENS - 1, -1):
        if sum(text.map_bytes * min(1, length / text.tokens) ** 2 for text in texts) <= room:
            return length
    return None


def _room(texts: Sequence[ShownText], size: int) -> float:
    """Return how many bytes a page of so many has room for in maps."""
    return (1 - _SPARE) * MOST_BYTES - (size - sum(text.map_bytes for text in texts))


def method_in_words(method: Method) -> str:
    """Write a method with the options that are not its default, such as ``NAME with p=0.5``."""
    own = given_options(method.name, method.options())
    options = ", ".join(f"{name}={value}" for name, value in own.items())
    return f"{method.name} with {options or 'its default options'}"
