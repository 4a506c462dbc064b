"""The attention viewer: a page with maps of texts in one or two models."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import given_options
from attendrop.reports.attention_maps import Numbers, Stages, TextMaps, text_maps
from attendrop.reports.figures import MUTED, SERIES
from attendrop.reports.page import MOST_BYTES, Section, render, render_page
from attendrop.tasks.base import encode_columns
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.table import BadValue
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, HEAD, WINDOWS
from attendrop.wording import counted

# isort: split
import altair as alt  # after `figures`, which says how to install it

# Side of the maps in the overview, in blocks at most, and of a head there and a cell of the map, in pixels.
_BLOCKS, _THUMBNAIL, _LARGEST_CELL, _LARGEST_MAP = 8, 34, 24, 520
_LEGEND = ("attention weight", "raises the score", "lowers the score")
logger = logging.getLogger(__name__)


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
    each has a second text. See :func:`attendrop.reports.attention_maps.text_maps` for ``attribution`` and ``layers``;
    the maximum length in tokens is that of the run, or 128, by default.

    Raises:
        AttendropError: A text is empty, or has no second text where others have; the model is not supported, or the
            method cannot act on it.
    """
    kind, tokenizer = stages.task_type, stages.tokenizer
    if pairs and len(pairs) != len(texts):
        given = f"{counted(len(texts), 'text')} and {counted(len(pairs), 'second text')} are given"
        raise AttendropError(f"{given}; give one --text-pair for each text.")
    if stages.num_texts is not None and stages.num_texts != 1 + bool(pairs):
        what = {1: "single texts; omit --text-pair", 2: "pairs of texts; give one --text-pair for each text"}
        raise AttendropError(f"The model was trained on {what[stages.num_texts]}.")
    if 1 + bool(pairs) > kind.most_inputs:
        raise AttendropError("The model reads one text at a time; omit --text-pair.")
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
                    dropped = [] if layer.dropped is None else np.flatnonzero(layer.dropped[head]).tolist()
                    of = {"text": number, "stage": stage, "layer": key, "head": head}
                    seen = weights[head].ravel().astype(object)
                    seen[hidden] = None
                    maps.append(of | {"a": seen.tolist(), "r": attributions[head].ravel().tolist(), "d": dropped})
                    of |= {"place": place, "dropped": len(dropped) / layer.possible.sum()}
                    small = {"a": _pooled(weights[head]).tolist(), "r": _pooled(attributions[head]).tolist()}
                    heads.append(of | small)
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
    axis: dict[str, Any] = {"labelExpr": "slice(datum.label, indexof(datum.label, ' ') + 1)", "labelLimit": 120}
    axis |= {"title": None, "ticks": False, "domain": False}
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
    base = alt.Chart(alt.NamedData("heads")).transform_filter(f"datum.text == text && datum.stage == {stage}")
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
    axes = {}
    for name, count in (("head", heads), ("layer", layers)):
        axis = alt.Axis(title=name, values=list(range(count)), labelOffset=_THUMBNAIL // 2, ticks=False, domain=False)
        axes[name] = {"axis": axis, "scale": alt.Scale(domain=[0, count], nice=False, reverse=name == "layer")}
    drawn = [
        each.encode(x=alt.X("x:Q", **axes["head"]), x2="x2", y=alt.Y("y:Q", **axes["layer"]), y2="y2")
        for each in (
            _shaded(cells.mark_rect(aria=False)),
            frames.mark_rect(fillOpacity=0, fill="white", cursor="pointer"),
        )
    ]
    drawn[1] = drawn[1].encode(
        stroke=alt.condition(chosen, alt.value(SERIES[1]), alt.value(MUTED)),
        strokeWidth=alt.condition(chosen, alt.value(3), alt.value(0.3)),
        tooltip=["layer:N", "head:O", alt.Tooltip("dropped:Q", format=".0%")],
    )
    chart = alt.layer(drawn[0], drawn[1].add_params(chosen))
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
    viewer = render("viewer", identifier="maps-chart", header=header, rows=rows)
    method = stages.method and stages.method.name
    if stages.method is not None:
        own = given_options(stages.method.name, stages.method.options())
        method = f"{method} with {', '.join(f'{name}={value}' for name, value in own.items()) or 'its default options'}"
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
