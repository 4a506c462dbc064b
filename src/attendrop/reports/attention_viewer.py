"""The attention viewer: a page, or a section of one, with maps of texts in one or two models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.methods.core.registry import given_options
from attendrop.reports.attention_maps import TextMaps, compact, text_maps
from attendrop.reports.attention_stages import Stages
from attendrop.reports.page import MOST_BYTES, Section, render, render_page
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.long_texts import HEAD, HEAD_TAIL, WINDOWS
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, encode_columns
from attendrop.wording import counted

_STYLES, _SCRIPTS = ("attention_viewer.css",), ("attention_viewer.js",)
# Minimum of the maximum length that is advised, in tokens.
_LEAST_TOKENS = 8
# Fraction of the size of a page that is left free: base64 is padded, and predictions change.
_SPARE = 0.01
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShownText:
    """One input with its maps in each model.

    Attributes:
        text: The text; both texts of a pair.
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
    """Compute the maps of texts; warn of texts that are truncated or not shown as the run reads them.

    A long text is truncated as in the run; if texts are read in windows, its beginning is shown. For a model of pairs,
    each has a second text. See :func:`attendrop.reports.attention_maps.text_maps` for ``attribution`` and ``layers``;
    the maximum length in tokens is that of the run, or 128, by default.

    Raises:
        AttendropError: There is no text, or an empty one; there is not one second text for each; the model is not
            supported, or the method cannot act on it.
    """
    columns = _columns(stages, texts, pairs)
    wanted = max_length if max_length is not None else stages.max_length or DEFAULT_MAX_LENGTH
    limit = stages.head.length_limit(stages.tokenizer, wanted, columns)
    task = files_task(tuple(columns), stages.head).with_long_texts(_cut(stages))
    encoded = encode_columns(columns, task, stages.tokenizer, limit)
    lengths = stages.head.lengths(stages.head.tokenize(columns, stages.tokenizer, None))
    found = []
    for number, text in enumerate(texts):
        row = {name: values[number] for name, values in encoded.items()}
        shown = tuple(
            text_maps(stage.model, stages.tokenizer, stages.head, row, stage.drops, attribution, layers)
            for stage in stages.stages
        )
        note = _note(stages, lengths[number], limit, pair=bool(pairs))
        if note:
            logger.warning("%s%s", f"Text {number + 1}: " if len(texts) > 1 else "", note)
        found.append(ShownText(" ‖ ".join([text, *([pairs[number]] if pairs else [])]), shown, note=note))
    return found


def _note(stages: Stages, length: int, limit: int, *, pair: bool) -> str:
    """Describe which tokens of an input are shown, given its length and the limit, and which the run reads."""
    own = limit if stages.max_length is None else min(stages.max_length, stages.tokenizer.model_max_length)
    shown, read = (_tokens(stages, length, most, pair=pair) for most in (limit, own))
    if stages.long_texts == WINDOWS and length > own:
        read = f"all {length} tokens, in windows of {own}"
    if shown == read:
        return f"{shown.capitalize()} are shown." if length > limit else ""
    return f"{shown.capitalize()} are shown; the run's prediction is over {read}."


def _tokens(stages: Stages, length: int, limit: int, *, pair: bool) -> str:
    """Describe the tokens of an input that remain after truncation to a limit."""
    end = "last" if stages.tokenizer.truncation_side == "left" else "first"
    if length <= limit:
        return f"all {length} tokens"
    if pair:
        return f"{limit} of {length} tokens (the {end} of each text)"
    if _cut(stages) == HEAD_TAIL:
        return f"{limit} of {length} tokens (beginning and end)"
    return f"the {end} {limit} of {length} tokens"


def _cut(stages: Stages) -> str:
    """Return how a long text is truncated; for a text in windows, the beginning is shown."""
    return HEAD if stages.long_texts == WINDOWS else stages.long_texts


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
        if problem is None and any("\ud800" <= letter <= "\udfff" for letter in text):
            problem = "it is not in UTF-8"
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
        method=stages.method and stages.method.name,
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
        method=stages.method and method_in_words(stages.method),
        attribution=attribution,
        both=len(stages.stages) > 1,
        score=stages.head.attributed,
    )


def attention_page(name: str, stages: Stages, texts: Sequence[ShownText], attribution: str = "gradient") -> str:
    """Make a self-contained page with a viewer.

    Raises:
        AttendropError: The page would be larger than 6 MB.
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
    """Advise how to make a page of so many bytes fit."""
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
    """Return how many bytes of maps fit into a page of so many bytes."""
    return (1 - _SPARE) * MOST_BYTES - (size - sum(text.map_bytes for text in texts))


def method_in_words(method: Method) -> str:
    """Write a method with the options that are not its default, such as ``NAME with p=0.5``."""
    own = given_options(method.name, method.options())
    options = ", ".join(f"{name}={value}" for name, value in own.items())
    return f"{method.name} with {options or 'its default options'}"
