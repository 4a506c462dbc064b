"""The attention viewer: a page with maps of texts in a run's model before and after training, or in any single model.

A map has the weights, the attribution of the prediction to them, and the positions that a method drops, which are
recorded from a training step of the method itself.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block
from attendrop.attention.hooks import evaluating, forked_rng
from attendrop.attention.layers import AttentionLayer, select_self_attention
from attendrop.attention.plan import AttentionCall, AttentionEdit, BlockEdit, CombinedPlan, Plan
from attendrop.attribution.gradient import attention_attribution, gradient_attribution, integrated_gradient_attribution
from attendrop.errors import AttendropError, check_choice
from attendrop.methods.core.base import Compose, Method
from attendrop.methods.core.context import TrainingContext, tokens_of
from attendrop.methods.core.registry import build_method, given_options, spelled_options
from attendrop.pruning.pruned_model import is_pruned
from attendrop.reports.figures import MUTED, SERIES
from attendrop.reports.report import MOST_BYTES, Section, render, render_page
from attendrop.runs.config import DEFAULT_METHOD
from attendrop.runs.model_loading import load_config, load_for
from attendrop.runs.run_folder import check_keeps_model, config_of_run, read_finished, read_run
from attendrop.support.models import ROW_INDEX, Batch, compute_device, number_of_rows, to_device
from attendrop.tasks.base import encode_columns, task_type_of_model
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.registry import get_task
from attendrop.tasks.table import BadValue
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, HEAD, WINDOWS
from attendrop.tasks.types.base import TaskType
from attendrop.training.regularization import Regularization, labelled_data, run_model
from attendrop.wording import counted

# isort: split
import altair as alt  # after `figures`, which says how to install it

# Integrated gradients are joint over the layers, with 8 Gauss-Legendre nodes.
ATTRIBUTIONS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "gradient": gradient_attribution,
    "integrated_gradient": integrated_gradient_attribution,
}
_NEW_HEAD = (
    "The model has no trained head for this task: its head is random, and so are its predictions, the attributions and "
    "what is dropped by them. Attention is the model's own."
)
Numbers = NDArray[Any]
logger = logging.getLogger(__name__)


# What a method drops -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drops:
    """A method, from :func:`acting_in_attention`, at a moment of a training.

    Attributes:
        step, total_steps: Number of optimizer steps taken before, and planned.
        epoch: Number of the epoch, from 0; the method must be active in it.
        learnt: The ``metrics.json`` of a finished run, and the tensors that it saved by the name of their file. None:
            the method has learnt nothing yet; one that searches before it trains is then at the first of its steps.
    """

    method: Method
    seed: int = 0
    step: int = 0
    total_steps: int = 1000
    epoch: int = 0
    learnt: tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]] | None = None


@dataclass(frozen=True)
class LayerDrops:
    """Positions of one attention layer in one pass that are neither padding nor hidden by the model's mask.

    ``possible``, ``(batch, 1, query, key)``, are all of them; ``dropped``, ``(batch, heads, query, key)``, some.
    """

    possible: Tensor
    dropped: Tensor


def acting_in_attention(method: Method) -> Method | None:
    """Return the method, or the methods of a composition, that can drop positions of attention; None if there are none.

    A skipped layer and a dropped head count as all of their positions.
    """
    of_attention = {"scores", "weights", "heads", "layers"}
    parts = [part for part in method.parts if part.info.uses_attention and of_attention & set(part.info.acts_on)]
    if len(parts) == len(method.parts):
        return method
    return Compose(*parts) if len(parts) > 1 else parts[0] if parts else None


def record_drops(model: PreTrainedModel, drops: Drops, batch: Batch, tokenizer: Any = None) -> dict[str, LayerDrops]:
    """Run a method's training step on a batch without an update, and record what its first changed pass drops.

    The model's own dropout is off, and the model stays unchanged. The batch has labels and is on the model's device;
    the tokenizer is for methods that change tokens. The attention layers are by key, in the order of execution; none
    if no pass of the step changes anything.

    Raises:
        AttendropError: The method cannot act on the model or the batch, or what it learnt was not saved.
    """
    passes: list[dict[str, LayerDrops]] = []

    def compute_loss(given: Batch, plan: Plan | None = None, other: nn.Module | None = None) -> tuple[Tensor, Any]:
        if plan is None:
            return run_model(other or model, given)
        assert regularization.adapter is not None
        watched = WatchedPlan(plan)
        regularization.adapter.bind(watched)
        found, every = run_model(model, given, watched), WatchedPlan(Plan())
        with torch.no_grad():  # all layers, also those that were skipped, in which everything is dropped
            regularization.adapter.forward(given, every)
        for key in watched.skipped & every.seen.keys():
            every.seen[key].dropped.logical_or_(every.seen[key].possible)
        passes.append(every.seen | watched.seen)
        return found

    training = TrainingContext(
        model=model,
        evaluate=run_model,
        seed=drops.seed,
        total_steps=drops.total_steps,
        optimizer=torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.0),
        metric=lambda logits, labels: 0.0,
        reward_data=labelled_data("reward_data", [batch], model.device),
        train_data=labelled_data("train_data", [batch], model.device),
        **tokens_of(tokenizer),
    )
    with forked_rng(model), evaluating(model), ExitStack() as stack:
        stack.callback(setattr, model, "training", False)
        model.training = True  # methods look at the model's own mode; its modules, and so its dropout, stay off
        torch.manual_seed(drops.seed + drops.step)
        regularization = Regularization(training, drops.method)
        stack.callback(regularization.close)
        if drops.learnt is not None:
            regularization.method_state.restore(*drops.learnt)
        regularization.set_epoch(drops.epoch)
        regularization.begin_step(drops.step)
        with torch.enable_grad():
            if drops.method.needs_rows:  # what is recorded of rows in one pass is dropped in the next
                batch = {**batch, ROW_INDEX: torch.arange(number_of_rows(batch))}
                regularization.set_epoch(max(0, drops.epoch - 1))  # with cross-tuning, a plain one
                regularization.compute(batch, compute_loss)[0].backward()  # type: ignore[no-untyped-call]
                model.zero_grad()
                passes.clear()
                regularization.set_epoch(drops.epoch)
                regularization.begin_step(drops.step + 1)
            regularization.compute(batch, compute_loss)
    return passes[0] if passes else {}


class WatchedPlan(CombinedPlan):
    """Plan that wraps another one, and records what it drops.

    A position is dropped if the plan drops its score, multiplies its weight by less than half of the largest factor in
    the layer, or sets its head to zero; and so are all positions of a layer with constant attention.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__([plan])
        self.acts_on = plan.acts_on | {"attention"}
        self.seen: dict[str, LayerDrops] = {}
        self.skipped: set[str] = set()

    def wants(self, layer: AttentionLayer) -> bool:
        return True

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        edit, rows = super().edit(call), call.valid_queries()
        batch, _, queries, keys = call.shape
        possible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device)
        if call.valid is not None:
            possible = call.valid.any(1, keepdim=True)
        possible = (possible if rows is None else possible & rows).expand(batch, 1, queries, keys)
        found = LayerDrops(possible, torch.zeros(call.shape, dtype=torch.bool, device=call.device))
        found = self.seen.setdefault(call.layer.key, found)
        if edit is None:
            return None

        def note(dropped: Tensor) -> None:
            found.dropped.logical_or_(dropped & found.possible)

        if edit.constant:
            note(torch.ones_like(possible))
        if edit.drop is not None:
            note(edit.drop)
        weights, output = edit.weights, edit.output

        def watched_weights(before: Tensor) -> Tensor:
            assert weights is not None
            after = weights(before)
            kept = before > 0
            factor = after.detach() / torch.where(kept, before, 1).detach()
            note(kept & ((factor < factor.max() / 2) | (after == 0)))
            return after

        def watched_output(before: Tensor) -> Tensor:
            assert output is not None
            after = output(before)
            note(((after == 0).all(-1) & (before != 0).any(-1)).transpose(1, 2).unsqueeze(-1))
            return after

        return replace(edit, weights=weights and watched_weights, output=output and watched_output)

    def block(self, block: Block) -> BlockEdit | None:
        edit = super().block(block)
        if edit is not None and edit.skip:
            self.skipped |= {layer.key for layer in block.attention_layers}
        return edit


# Maps of a text ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerMaps:
    """Maps of one attention layer for one text, each ``(heads, tokens, tokens)``: queries by keys.

    They are the weights, the attribution of the prediction to these, and the positions that the method drops.
    ``possible``, ``(tokens, tokens)``, are the positions that the model's mask leaves visible.
    """

    attention: Numbers
    attribution: Numbers
    possible: NDArray[np.bool_]
    dropped: NDArray[np.bool_]


@dataclass(frozen=True)
class TextMaps:
    """Maps of one text in one model, by key of the layer, in the order of execution.

    The prediction is the model's, by column, as in a file of predictions.
    """

    tokens: tuple[str, ...]
    prediction: Mapping[str, Any]
    layers: Mapping[str, LayerMaps]

    @property
    def predicted(self) -> str:
        """The prediction in words, such as "label yes, probability 0.93"."""
        values = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in self.prediction.items()}
        return ", ".join(f"{key} {value}" for key, value in values.items())


def text_maps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    row: Mapping[str, Any],
    drops: Drops | None = None,
    attribution: str = "gradient",
    layers: str | int | Sequence[int] = "all",
) -> TextMaps:
    """Compute the maps of one encoded text, ``row``.

    The model's own dropout is off. What is attributed is the score of the model's prediction, see
    :func:`attendrop.attribution.predictions.fix_target`, in place of labels; for a predicted number it is that number
    plus one, so that the attributed score, minus the squared error, rises with the prediction.

    The ``attribution`` is one of ``ATTRIBUTIONS``. Of the ``layers``, see
    :func:`attendrop.attention.layers.select_layers`, only the encoder's self-attention is shown, or that of a
    decoder-only model.

    Raises:
        AttendropError: There is no such attribution, the model is not supported, or the method cannot act on it.
    """
    check_choice("attribution", attribution, tuple(ATTRIBUTIONS))
    accepted = {*inspect.signature(model.forward).parameters} & {*tokenizer.model_input_names, "labels"}

    def batch_of(**columns: Any) -> dict[str, Any]:
        collated = task_type.collator(tokenizer)([{name: columns[name] for name in columns if name in accepted}])
        return to_device(collated, model.device)

    with evaluating(model):
        with torch.no_grad():
            batch = {name: value for name, value in batch_of(**row).items() if name != "labels"}
            raw = task_type.predict(model, batch)
        columns = {name: [value] for name, value in row.items()}
        outputs = task_type.row_outputs(raw, columns, tokenizer)
        assumed = [label + 1 if isinstance(label, float) else label for label in task_type.decode(outputs)]
        (target,) = task_type.targets(assumed, BatchEncoding(columns), tokenizer)
        batch = batch_of(**row, labels=target)
        with ModelAdapter(model) as adapter:
            selected = select_self_attention(adapter.trace(batch), layers)
            positions = WatchedPlan(Plan())  # of all layers
            with torch.no_grad():
                adapter.forward(batch, positions)
            both = [attention_attribution(adapter, batch, selected)]
            both.append(ATTRIBUTIONS[attribution](adapter, batch, selected, "pseudo_label"))
    recorded = {} if drops is None else record_drops(model, drops, batch, tokenizer)
    maps = {}
    for key in both[0]:
        weights, attributions = (found[key][0].detach().float().cpu().numpy() for found in both)
        dropped = recorded[key].dropped[0].cpu().numpy() if key in recorded else np.zeros(weights.shape, bool)
        maps[key] = LayerMaps(weights, attributions, positions.seen[key].possible[0, 0].cpu().numpy(), dropped)
    (prediction,) = task_type.prediction_rows(outputs, probabilities=False)
    tokens = []
    for number in row["input_ids"]:
        token = str(tokenizer.convert_ids_to_tokens(number))
        # Pieces of WordPiece keep their mark; a part of a character, in vocabularies of bytes, has no text of its own.
        text = token if token.startswith("##") else str(tokenizer.decode([number])).strip()
        tokens.append(token if not text or "\N{REPLACEMENT CHARACTER}" in text else text)
    return TextMaps(tuple(tokens), prediction, maps)


# Models before and after training ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A model whose attention is shown, with a heading, such as "After training", and a note, which may be empty.

    ``drops`` is what its method drops; None: no method drops anything in attention.
    """

    name: str
    note: str
    model: PreTrainedModel
    drops: Drops | None = None


@dataclass(frozen=True)
class Stages:
    """Models that are shown beside one another.

    Attributes:
        num_texts: Number of texts of an input; None: unknown.
        max_length: Maximum length in tokens that the run had; None: unknown.
        long_texts: What the run did with texts that are too long, see :mod:`attendrop.tasks.tokenization`.
        method: The method whose drops are shown; None: no method drops anything in attention.
    """

    stages: tuple[Stage, ...]
    tokenizer: PreTrainedTokenizerBase
    task_type: TaskType
    num_texts: int | None
    max_length: int | None
    long_texts: str = HEAD
    method: Method | None = None


def load_stages(
    name: str,
    method: Method | None = None,
    *,
    settings: Mapping[str, Any] = {},
    seed: int = 0,
    device: str = "auto",
) -> Stages:
    """Load what is shown for a model.

    For the folder of a run: its base model, with the head with which training began if that was random, and the trained
    model. The drops are those of ``method``, or of the run's (of the second training, if it trained again) or, if that
    drops nothing in attention, of the default method, the last two with other options by ``settings``; ``seed``
    determines them, and the head of a model that has none.

    Raises:
        AttendropError: The run is not finished, its model was not kept, or the model cannot be loaded; or the method
            has no such options.
    """
    folder, config, own, new = Path(name), None, None, frozenset[str]()
    metrics: dict[str, Any] = {}
    if folder.is_dir() and read_run(folder) is not None:
        run, metrics = read_finished(name)
        config = config_of_run(name, run["config"]).filled(**(run.get("decided") or {}))
        own = acting_in_attention(config.regularizer)
        check_keeps_model(name)
    if config is not None or is_pruned(name):
        model, tokenizer = load_for(str(folder.absolute()), None)[:2]
    else:
        set_seed(seed)
        task_type = task_type_of_model(load_config(name), command="attend")
        model, tokenizer, new = load_for(name, files_task(task_type.inputs[: task_type.least_inputs], task_type))
    task_type = task_type_of_model(model.config)
    task_type.refuse("attend")
    num_texts = max_length = long_texts = None
    stages = [Stage(folder.absolute().name, _NEW_HEAD if new else "", model)]
    if config is not None:
        stages, max_length, long_texts = [Stage("After training", "", model)], config.max_length, config.long_texts
        task = files_task(config.text_columns, task_type) if config.task is None else get_task(config.task)
        num_texts = len(task.text_columns)
        set_seed(config.seed)
        try:
            begun = load_for(config.model, task, config.pooling)
        except AttendropError as error:
            logger.warning("The model before training is not shown: %s", error)
        else:
            note = f"{config.model}. {_NEW_HEAD}" if begun.new else config.model
            if begun.new and metrics.get("head_init"):
                note += " The run began with a head that was fitted to the frozen encoder, which is not repeated here."
            stages.insert(0, Stage("Before training", note, begun.model))
    shown = method
    if shown is None:
        shown = own or build_method(DEFAULT_METHOD)
        if settings:
            given = given_options(shown.name, shown.options()) | spelled_options(shown.name, settings)
            shown = build_method(shown.name, given)
    acting = acting_in_attention(shown)
    active: list[int] = []
    if acting is not None:  # the epochs in which all of its parts are active or, if there are none, any part
        every = range(max(2, len(metrics.get("history", ()))))
        together = [epoch for epoch in every if all(part.active(epoch) for part in acting.parts)]
        active = together or [epoch for epoch in every if acting.active(epoch)]
    if acting is not None and active:
        steps = int(metrics.get("planned_steps") or 1000)
        first = Drops(acting, seed, 0, steps, active[0])
        stages = [replace(stage, drops=first) for stage in stages]
        if config is not None:  # the last is the trained one
            last = replace(first, step=steps - 1, epoch=active[-1])
            if method is None and own is not None and not settings:
                files = [file for file in sorted(folder.glob("*.safetensors")) if not file.stem.startswith("model")]
                last = replace(last, learnt=(metrics, {file.stem: load_file(file) for file in files}))
            stages[-1] = replace(stages[-1], drops=last)
    for stage in stages:
        stage.model.to(compute_device(device))  # type: ignore[arg-type]
    acting = acting if active else None
    return Stages(tuple(stages), tokenizer, task_type, num_texts, max_length, long_texts or HEAD, acting)


# What is shown of texts ----------------------------------------------------------------------------------------------

# Side of the maps in the overview, in blocks at most, and of a head there and a cell of the map, in pixels.
_BLOCKS, _THUMBNAIL, _LARGEST_CELL, _LARGEST_MAP = 8, 34, 24, 520
_LEGEND = ("attention weight", "raises the score", "lowers the score")


@dataclass(frozen=True)
class ShownText:
    """One input, both texts of a pair, with its maps in each model.

    The note, a sentence, says which tokens are shown, and which others the run reads; empty: all, as in the run.
    """

    text: str
    stages: tuple[TextMaps, ...]
    note: str = ""


def show_texts(
    stages: Stages,
    texts: Sequence[str],
    pairs: Sequence[str] = (),
    *,
    attribution: str = "gradient",
    layers: str | int | Sequence[int] = "all",
    max_length: int | None = None,
) -> list[ShownText]:
    """Compute the maps of texts; warn of texts that are truncated or not shown as the run reads them.

    A long text is truncated as in the run; if texts are read in windows, its beginning is shown. For a model of pairs,
    each has a second text. See :func:`attendrop.reports.attention_viewer.text_maps` for ``attribution`` and ``layers``;
    the maximum length in tokens is that of the run, or 128, by default.

    Raises:
        AttendropError: A text is empty, or has no second text where others have; the model is not supported, or the
            method cannot act on it.
    """
    kind, tokenizer = stages.task_type, stages.tokenizer
    if pairs and len(pairs) != len(texts):
        given = f"{counted(len(texts), 'text')} and {counted(len(pairs), 'second text')} are given"
        raise AttendropError(f"{given}; give one --text-pair for each text.")
    what = {1: "single texts; omit --text-pair", 2: "pairs of texts; give one --text-pair for each text"}
    if (number := 1 + bool(pairs)) != (expected := stages.num_texts or min(number, kind.most_inputs)):
        raise AttendropError(f"The model was trained on {what[expected]}.")
    if any("\ud800" <= letter <= "\udfff" for text in (*texts, *pairs) for letter in text):
        raise AttendropError("A text cannot be shown: it is not in UTF-8.")
    inputs = list(zip(texts, pairs, strict=True)) if pairs else [(text,) for text in texts]
    try:
        read = [kind.read_inputs(*row) for row in inputs]
    except BadValue as problem:
        raise AttendropError(f"A text cannot be shown: {problem}.") from None
    columns = {name: [row[place] for row in read] for place, name in enumerate(kind.inputs_of(len(inputs[0])))}
    wanted = max_length if max_length is not None else stages.max_length or DEFAULT_MAX_LENGTH
    limit = kind.length_limit(tokenizer, wanted, columns)
    own = limit if stages.max_length is None else min(stages.max_length, tokenizer.model_max_length)
    task = files_task(tuple(columns), kind)
    task = task.with_long_texts(HEAD if stages.long_texts == WINDOWS else stages.long_texts)
    encoded, found = encode_columns(columns, task, tokenizer, limit), []
    for number, length in enumerate(kind.lengths(kind.tokenize(columns, tokenizer, None))):
        row = {name: values[number] for name, values in encoded.items()}
        maps = tuple(
            text_maps(stage.model, tokenizer, kind, row, stage.drops, attribution, layers) for stage in stages.stages
        )
        note, shown = "", min(length, limit)
        if shown < length or length > own:
            note = f"{shown} of {length} tokens are shown"
            if stages.long_texts == WINDOWS and length > own:
                note += f"; the run's prediction is over all, in windows of {own}."
            else:
                note += f"; the run reads {min(length, own)}." if own != limit else "."
            logger.warning("%s%s", f"Text {number + 1}: " if len(texts) > 1 else "", note)
        found.append(ShownText(" ‖ ".join(inputs[number]), maps, note=note))
    return found


# The figure ----------------------------------------------------------------------------------------------------------


def viewer_spec(stages: Stages, texts: Sequence[ShownText]) -> dict[str, Any]:
    """Describe the viewer in Vega-Lite: a map of one head for each model, above an overview of all heads.

    The browser reads a record of each head: weights in thousandths (null where the model's mask hides a position) and
    attributions in hundredths of the largest of the head, by row, and the numbers of the dropped positions.
    """
    layers = list(texts[0].stages[0].layers)
    maps, heads = [], []
    for number, shown in enumerate(texts):
        for stage, found in enumerate(shown.stages):
            for place, (key, layer) in enumerate(found.layers.items()):
                scale = np.maximum(np.abs(layer.attribution).max((1, 2), keepdims=True), np.finfo(np.float32).tiny)
                weights, hidden = np.rint(1000 * layer.attention).astype(int), ~layer.possible.ravel()
                attributions = np.rint(100 * layer.attribution / scale).astype(int)
                for head in range(len(weights)):
                    dropped = np.flatnonzero(layer.dropped[head]).tolist()
                    of = {"text": number, "stage": stage, "layer": key, "head": head}
                    seen = weights[head].ravel().astype(object)
                    seen[hidden] = None
                    maps.append(of | {"a": seen.tolist(), "r": attributions[head].ravel().tolist(), "d": dropped})
                    small = {"a": _pooled(weights[head]).tolist(), "r": _pooled(attributions[head]).tolist()}
                    heads.append(of | {"place": place, "dropped": len(dropped) / layer.possible.sum()} | small)
    names = [f"{place}. {shown.text[:80]}" for place, shown in enumerate(texts, 1)]
    text = alt.binding_select(options=list(range(len(texts))), labels=names, name="Text")
    shows = alt.binding_radio(options=["attention", "attribution"], name="Shown")
    count = max(len(layer.attention) for layer in texts[0].stages[0].layers.values())
    inputs = {"layer": alt.binding_select(options=layers), "head": alt.binding_select(options=list(range(count)))}
    chosen = alt.selection_point(
        "chosen", fields=["layer", "head"], bind=inputs, value=[{"layer": layers[0], "head": 0}],
        on="click", clear=False, toggle=False, empty=False,
    )  # fmt: skip
    params = [alt.param("text", value=0, bind=text), alt.param("shows", value="attention", bind=shows)]
    if stages.method is not None:
        crosses = alt.binding_checkbox(name=f"Cross out what {stages.method.name} drops")
        params.append(alt.param("crosses", value=True, bind=crosses))
    side = min(_LARGEST_CELL, max(8, _LARGEST_MAP // max(len(shown.stages[0].tokens) for shown in texts)))
    crossed = stages.method is not None
    above = [_map(place, stage.name, chosen, side, crosses=crossed) for place, stage in enumerate(stages.stages)]
    below = [_overview(place, chosen, count, len(layers)) for place in range(len(stages.stages))]
    tokens = [{"text": number, "tokens": list(shown.stages[0].tokens)} for number, shown in enumerate(texts)]
    described = "Attention maps of a layer and head for a text, and an overview of all heads."
    config = {"view": {"stroke": None}, "axis": {"grid": False}, "legend": {"labelLimit": 300}}
    with warnings.catch_warnings():  # a click in either overview chooses: they share the selection
        warnings.filterwarnings("ignore", "Automatically deduplicated selection parameter")
        chart = alt.vconcat(alt.hconcat(*above), alt.hconcat(*below)).add_params(*params)
        spec: dict[str, Any] = chart.to_dict() | {"description": described, "config": config}
    return spec | {"datasets": {"maps": maps, "heads": heads, "texts": tokens}}


def _pooled(values: Numbers) -> Numbers:
    """Return the value of largest size in each block of a map, ``(at most 8 * 8,)``."""
    step = -(-len(values) // _BLOCKS)
    side = -(-len(values) // step)
    padded = np.zeros((side * step, side * step), dtype=values.dtype)
    padded[: len(values), : len(values)] = values
    blocks = padded.reshape(side, step, side, step).swapaxes(1, 2).reshape(side, side, -1)
    return np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1).ravel()


def _shaded(chart: alt.Chart) -> alt.Chart:
    """Colour cells by what is shown: its size as opacity, so that it is legible on white and on black."""
    scale = alt.Scale(domain=list(_LEGEND), range=[SERIES[0], SERIES[1], SERIES[0]])
    return chart.transform_calculate(
        size="shows == 'attention' ? sqrt(datum.a / 1000) : abs(datum.r) / 100",
        sign=f"shows == 'attention' ? '{_LEGEND[0]}' : datum.r < 0 ? '{_LEGEND[2]}' : '{_LEGEND[1]}'",
    ).encode(
        color=alt.Color("sign:N", scale=scale, legend=alt.Legend(title=None, orient="bottom")),
        opacity=alt.Opacity("size:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None),
    )


def _map(stage: int, name: str, chosen: alt.Parameter, side: int, *, crosses: bool) -> alt.LayerChart:
    """Draw the map of the chosen head in one model, with tokens of equal texts told apart by their numbers."""
    label = "slice(datum.label, indexof(datum.label, ' ') + 1)"
    axis: dict[str, Any] = {"labelExpr": label, "labelLimit": 120, "title": None, "ticks": False, "domain": False}
    base = (
        alt.Chart(alt.NamedData("maps"))
        .transform_filter(f"datum.text == text && datum.stage == {stage}")
        .transform_filter(chosen)
        .transform_lookup("text", alt.LookupData(alt.NamedData("texts"), "text", ["tokens"]))
        .transform_flatten(["a", "r"])
        .transform_window(i="row_number()")
        .transform_filter("isValid(datum.a)")
        .transform_calculate(
            query="floor((datum.i - 1) / length(datum.tokens))",
            key="(datum.i - 1) % length(datum.tokens)",
            attention="datum.a / 1000",
            attribution="datum.r / 100",
            dropped="indexof(datum.d, datum.i - 1) < 0 ? 'no' : 'yes'",
        )
        .transform_calculate(
            source="(datum.query + 1) + ' ' + datum.tokens[datum.query]",
            target="(datum.key + 1) + ' ' + datum.tokens[datum.key]",
        )
        .encode(
            y=alt.Y("source:N", sort=alt.SortField("query"), axis=alt.Axis(**axis)),
            x=alt.X("target:N", sort=alt.SortField("key"), axis=alt.Axis(orient="top", labelAngle=-90, **axis)),
            tooltip=[
                alt.Tooltip("source:N", title="from"),
                alt.Tooltip("target:N", title="to"),
                alt.Tooltip("attention:Q", format=".3f"),
                alt.Tooltip("attribution:Q", title="attribution, of the largest", format="+.2f"),
                *([alt.Tooltip("dropped:N")] if crosses else []),
            ],
        )
    )
    chart = alt.layer(_shaded(base.mark_rect(stroke=MUTED, strokeWidth=0.3)))
    if crosses:
        dropped = base.transform_filter("crosses && datum.dropped == 'yes'")
        chart += dropped.mark_point(shape="M-1,-1L1,1M-1,1L1,-1", size=2 * side, color=MUTED, strokeWidth=2)
    return chart.properties(title=name, width=alt.Step(side), height=alt.Step(side))


def _overview(stage: int, chosen: alt.Parameter, heads: int, layers: int) -> alt.LayerChart:
    """Draw small maps of all heads in one model; a click chooses one."""
    axis = {"labelOffset": _THUMBNAIL // 2, "ticks": False, "domain": False}
    across = alt.Axis(title="head", values=list(range(heads)), **axis)
    down = alt.Axis(title="layer", values=list(range(layers)), **axis)
    base = alt.Chart(alt.NamedData("heads")).transform_filter(f"datum.text == text && datum.stage == {stage}")
    base = base.encode(
        x=alt.X("x:Q", axis=across, scale=alt.Scale(domain=[0, heads], nice=False)),
        y=alt.Y("y:Q", axis=down, scale=alt.Scale(domain=[0, layers], nice=False, reverse=True)),
        x2="x2",
        y2="y2",
    )
    cells = (
        base.transform_calculate(side="sqrt(length(datum.a))")
        .transform_flatten(["a", "r"])
        .transform_window(i="row_number()", groupby=["layer", "head"])
        .transform_calculate(
            x="datum.head + 0.05 + 0.9 * ((datum.i - 1) % datum.side) / datum.side",
            y="datum.place + 0.05 + 0.9 * floor((datum.i - 1) / datum.side) / datum.side",
        )
        .transform_calculate(x2="datum.x + 0.9 / datum.side", y2="datum.y + 0.9 / datum.side")
    )
    frames = base.transform_calculate(x="datum.head", y="datum.place", x2="datum.head + 1", y2="datum.place + 1")
    frames = frames.mark_rect(fillOpacity=0, fill="white", cursor="pointer").encode(
        stroke=alt.condition(chosen, alt.value(SERIES[1]), alt.value(MUTED)),
        strokeWidth=alt.condition(chosen, alt.value(3), alt.value(0.3)),
        tooltip=["layer:N", "head:O", alt.Tooltip("dropped:Q", format=".0%")],
    )
    chart = alt.layer(_shaded(cells.mark_rect(aria=False)), frames.add_params(chosen))
    return chart.properties(width=_THUMBNAIL * heads, height=_THUMBNAIL * layers)


# The page -------------------------------------------------------------------------------------------------------------


def attention_page(name: str, stages: Stages, texts: Sequence[ShownText], attribution: str = "gradient") -> str:
    """Make a self-contained page with a viewer.

    Raises:
        AttendropError: The page would be larger than 6 MB.
    """
    rows = [
        (f"{number}. {shown.text}", *(maps.predicted for maps in shown.stages), shown.note)
        for number, shown in enumerate(texts, 1)
    ]
    header = ("text", *(stage.name for stage in stages.stages), "note")
    viewer, method = render("viewer", identifier="maps-chart", header=header, rows=rows), None
    if stages.method is not None:
        own = given_options(stages.method.name, stages.method.options())
        options = ", ".join(f"{name}={value}" for name, value in own.items()) or "its default options"
        method = f"{stages.method.name} with {options}"
    told = {"method": method, "attribution": attribution, "stages": stages.stages, "score": stages.task_type.attributed}
    sections = [
        Section("maps", "Attention", viewer, {"maps-chart": viewer_spec(stages, texts)}),
        Section("about", "What is shown", render("explanation", **told)),
    ]
    page = render_page(f"Attention of {name}", sections)
    if (size := len(page.encode())) > MOST_BYTES:
        raise AttendropError(
            f"The page would have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:g}; give a lower --max-length than "
            f"{max(len(shown.stages[0].tokens) for shown in texts)}, fewer layers (--layers), or fewer texts."
        )
    return page
