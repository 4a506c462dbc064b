"""The attention viewer: a page, or a section of one, with maps of texts in one or two models."""

from __future__ import annotations

import logging
import math
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.methods.core.registry import build_method, given_options
from attendrop.reports.attention_maps import Numbers, Stages, TextMaps, load_stages, text_maps
from attendrop.reports.figures import MUTED, SERIES
from attendrop.reports.page import MOST_BYTES, Section, render, render_page, script_json
from attendrop.reports.results import Results, runs_folder
from attendrop.runs.config import DEFAULT_METHOD, RunConfig
from attendrop.runs.data import divide, load_data
from attendrop.runs.run_file import RUN_FILE, read_run_file
from attendrop.runs.run_folder import keeps_model, read_metrics
from attendrop.studies.comparison import BEST
from attendrop.studies.method_rows import method_label
from attendrop.studies.units import FROZEN
from attendrop.studies.words import BASELINES_IN_WORDS
from attendrop.tasks.base import Task, encode, encode_columns
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.table import BadValue
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, HEAD, WINDOWS, columns_of, of_documents
from attendrop.wording import counted

# Texts shorter than this, in tokens, are not advised.
_LEAST_TOKENS = 8
# Side of the maps in the overview, in blocks at most, and of a head there and a cell of the map, in pixels.
_BLOCKS, _THUMBNAIL, _LARGEST_CELL, _LARGEST_MAP = 8, 34, 24, 520
# Number of rows that a report shows, and of tokens that they should have; only the first of very many are considered.
COUNT, TOKENS, MOST_ROWS = 3, 16, 2000
# Options by which runs set rows aside; the kept model is trained on all.
_SET_ASIDE = ("test_fraction", "ood", "ood_column")
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

    @property
    def tokens(self) -> int:
        """Number of its tokens that are shown."""
        return len(self.stages[0].tokens)


@dataclass(frozen=True)
class ViewerOptions:
    """Texts in the attention viewer of a report, with second texts of pairs; none: evaluation rows."""

    texts: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.pairs and not self.texts:
            raise AttendropError("Second texts are given, but no first ones; give --text for each --text-pair.")


DEFAULT_VIEWER = ViewerOptions()


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
    limit = stages.task_type.length_limit(stages.tokenizer, wanted, columns)
    cut = HEAD if stages.long_texts == WINDOWS else stages.long_texts
    task = files_task(tuple(columns), stages.task_type).with_long_texts(cut)
    encoded = encode_columns(columns, task, stages.tokenizer, limit)
    own = limit if stages.max_length is None else min(stages.max_length, stages.tokenizer.model_max_length)
    found = []
    for number, length in enumerate(
        stages.task_type.lengths(stages.task_type.tokenize(columns, stages.tokenizer, None))
    ):
        row = {name: values[number] for name, values in encoded.items()}
        maps = tuple(
            text_maps(stage.model, stages.tokenizer, stages.task_type, row, stage.drops, attribution, layers)
            for stage in stages.stages
        )
        note, shown = "", min(length, limit)
        if stages.long_texts == WINDOWS and length > own:
            note = f"{shown} of {length} tokens are shown; the run's prediction is over all, in windows of {own}."
        elif shown < length or length > own:
            note = f"{shown} of {length} tokens are shown" + (
                f"; the run reads {min(length, own)}." if own != limit else "."
            )
        if note:
            logger.warning("%s%s", f"Text {number + 1}: " if len(texts) > 1 else "", note)
        found.append(ShownText(" ‖ ".join([texts[number], *([pairs[number]] if pairs else [])]), maps, note=note))
    return found


def _columns(stages: Stages, texts: Sequence[str], pairs: Sequence[str]) -> dict[str, list[Any]]:
    """Return the texts by the column of the model's inputs, after checks."""
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
    if any("\ud800" <= letter <= "\udfff" for text in (*texts, *pairs) for letter in text):
        raise AttendropError("A text cannot be shown: it is not in UTF-8.")
    given = [texts, *([pairs] if pairs else [])]
    if len(given) > stages.task_type.most_inputs:
        raise AttendropError("The model reads one text at a time; omit --text-pair.")
    try:
        read = [stages.task_type.read_inputs(*row) for row in zip(*given, strict=True)]
    except BadValue as problem:
        raise AttendropError(f"A text cannot be shown: {problem}.") from None
    return {name: [row[place] for row in read] for place, name in enumerate(stages.task_type.inputs_of(len(given)))}


# The figure ----------------------------------------------------------------------------------------------------------

_LEGEND = ("attention weight", "raises the score", "lowers the score")


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
    side = min(_LARGEST_CELL, max(8, _LARGEST_MAP // max(shown.tokens for shown in texts)))
    crossed = stages.method is not None
    above = [_map(place, stage.name, chosen, side, crosses=crossed) for place, stage in enumerate(stages.stages)]
    below = [_overview(place, chosen, count, len(layers)) for place in range(len(stages.stages))]
    tokens = [{"text": number, "tokens": list(shown.stages[0].tokens)} for number, shown in enumerate(texts)]
    described = "Attention maps of a layer and head for a text, and an overview of all heads; a table has their values."
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
    return alt.layer(drawn[0], drawn[1].add_params(chosen)).properties(
        width=_THUMBNAIL * heads, height=_THUMBNAIL * layers
    )


# Sections and pages --------------------------------------------------------------------------------------------------


def viewer_section(identifier: str, stages: Stages, texts: Sequence[ShownText], about: Any = "") -> Section:
    """Make a section of a page with a viewer, and what is said about it below."""
    heads = []
    for number, shown in enumerate(texts, 1):
        for stage, found in zip(stages.stages, shown.stages, strict=True):
            for key, layer in found.layers.items():
                for head, (weights, values) in enumerate(zip(layer.attention, layer.attribution, strict=True)):
                    cells = []
                    for each in (weights, values):
                        query, target = divmod(int(np.abs(each).argmax()), len(each))
                        cells.append(f"{found.tokens[query]} → {found.tokens[target]}: {each[query, target]:.3g}")
                    share = "-" if layer.dropped is None else f"{layer.dropped[head].sum() / layer.possible.sum():.0%}"
                    heads.append((number, stage.name, key, head, *cells, share))
    content = render(
        "attention.html",
        "viewer",
        identifier=f"{identifier}-chart",
        stages=[stage.name for stage in stages.stages],
        texts=[
            (f"{number}. {shown.text}", shown.label or "", *(maps.predicted for maps in shown.stages), shown.note)
            for number, shown in enumerate(texts, 1)
        ],
        heads=heads,
        about=about,
    )
    return Section(identifier, "Attention", content, {f"{identifier}-chart": viewer_spec(stages, texts)})


def attention_page(name: str, stages: Stages, texts: Sequence[ShownText], attribution: str = "gradient") -> str:
    """Make a self-contained page with a viewer.

    Raises:
        AttendropError: The page would be larger than 6 MB.
    """
    sections = [viewer_section("maps", stages, texts), Section("about", "What is shown", _about(stages, attribution))]
    page = render_page(f"Attention of {name}", sections)
    if (size := len(page.encode())) > MOST_BYTES:
        tokens = [shown.tokens for shown in texts]
        maps = len(script_json(sections[0].charts["maps-chart"]["datasets"]["maps"]))
        # What a text takes grows with the square of its tokens.
        room = 0.98 * (MOST_BYTES - (size - maps)) / maps * sum(count**2 for count in tokens)
        lengths = range(max(tokens) - 1, _LEAST_TOKENS - 1, -1)
        fitting = (length for length in lengths if sum(min(length, count) ** 2 for count in tokens) <= room)
        length = next(fitting, None)
        ways = [*([] if length is None else [f"--max-length {length}"]), "fewer layers (--layers)"]
        ways += ["fewer texts"] if len(texts) > 1 else []
        raise AttendropError(
            f"The page would have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:g}; give {', or '.join(ways)}."
        )
    return page


def _about(stages: Stages, attribution: str = "gradient") -> Any:
    method = stages.method and method_in_words(stages.method)
    shown = {"attribution": attribution, "stages": stages.stages, "score": stages.task_type.attributed}
    return render("attention.html", "explanation", method=method, **shown)


def method_in_words(method: Method) -> str:
    """Write a method with the options that are not its default, such as ``NAME with p=0.5``."""
    own = given_options(method.name, method.options())
    options = ", ".join(f"{name}={value}" for name, value in own.items())
    return f"{method.name} with {options or 'its default options'}"


# The section of a report ---------------------------------------------------------------------------------------------


def attention_part(results: Results, options: ViewerOptions, most_bytes: int) -> tuple[Section, str]:
    """Show the attention of the model that a comparison kept, or of that of a single run; studies keep none.

    The section adds at most so many bytes to a page, with as many texts as fit.

    Returns:
        The section, and why it has no viewer or how many of given texts it omits; empty: nothing.

    Raises:
        AttendropError: Texts were given that cannot be shown.
    """
    folder = results.folder / BEST
    if results.of_one_run and not folder.is_dir():
        folder = runs_folder(results.folder) / results.settings[0].runs[0].folder
    try:
        if not keeps_model(folder):
            raise AttendropError(_how_to_keep(results))
        stages = load_stages(str(folder), None, build_method(DEFAULT_METHOD), device=options.device)
        every, source = _texts(folder, results, stages, options)
    except AttendropError as error:
        if options.texts:
            raise
        return Section("attention", "Attention", render("attention.html", "sentence", text=str(error))), str(error)
    for count in range(len(every), 0, -1):
        fewer = f"To keep the page small, it has only {count} of {len(every)} texts." if count < len(every) else ""
        section = viewer_section("attention", stages, every[:count], _kept(folder, stages, source, fewer))
        size = len(section.content.encode()) + sum(
            len(script_json(chart).encode()) for chart in section.charts.values()
        )
        if size <= most_bytes:
            return section, fewer if options.texts else ""
    told = f'`attendrop attend {shlex.quote(str(folder))} "TEXT"` makes a page of a text.'
    told = f"The page has no room left for the maps of the kept model. {told}"
    return Section("attention", "Attention", render("attention.html", "sentence", text=told)), told


def _kept(folder: Path, stages: Stages, source: str, left_out: str) -> Any:
    metrics: Mapping[str, Any] = read_metrics(folder) or {}
    # If only the start of its head was made, it is the baseline.
    is_frozen = metrics["config"].get("max_steps") == 0
    name = BASELINES_IN_WORDS[FROZEN] if is_frozen else method_label(metrics)
    return render(
        "attention.html",
        "kept",
        trained=f"{name}, seed {metrics['seed']}, {metrics['data']['rows']['train']} training rows",
        is_best=folder.name == BEST,
        source=source,
        method=None if stages.of_run else stages.method and method_in_words(stages.method),
        left_out=left_out,
        explanation=_about(stages),
        folder=shlex.quote(str(folder)),
    )


def _texts(folder: Path, results: Results, stages: Stages, options: ViewerOptions) -> tuple[list[ShownText], str]:
    """Compute the maps of the given texts or of evaluation rows, and describe the source of the texts."""
    texts, pairs, source = options.texts, options.pairs, ""
    labels: list[str | None] = [None] * len(texts)
    if not texts:
        given = read_run_file(str(folder / RUN_FILE))
        given |= {"seed": given["seed"][0], "output_dir": str(folder)}
        runs = (run for setting in results.settings for run in setting.runs)
        of_runs: dict[str, Any] = next((run.metrics["config"] for run in runs), {})
        config = RunConfig(**given | {name: of_runs[name] for name in _SET_ASIDE if of_runs.get(name)})
        data = load_data(config)
        rows = divide(config, data).report.get("dev")
        if rows is None:
            raise AttendropError("The runs that record the evaluation rows are gone; give texts with --text.")
        chosen = rows.select(typical_rows(rows, data.task, stages.tokenizer, config.max_length))
        texts, *others = zip(*data.task.type.texts(chosen), strict=True)
        pairs = others[0] if others else ()
        labels = [str(data.task.type.shown_label(label)) for label in chosen["label"]]
        among = f"first {MOST_ROWS:,} evaluation rows" if len(rows) > MOST_ROWS else "evaluation rows"
        of = ", of different labels" if data.task.type.num_classes else ""
        source = f"Texts: {len(chosen)} of the {among}, those whose length is nearest to {TOKENS} tokens{of}."
        if folder.name == BEST and config.test_fraction:  # which the runs held out, and the kept model did not
            whole = config.shots is None and config.max_train_samples is None
            source += " The kept model was trained on "
            source += "all rows, including these." if whole else "a sample of all rows, which may include these."
    logger.info("Computing the attention maps of %d texts with the model in %s.", len(texts), folder)
    shown = show_texts(stages, texts, pairs)
    return [replace(each, label=label) for each, label in zip(shown, labels, strict=True)], source


def typical_rows(rows: Dataset, task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[int]:
    """Choose rows that are short, but not the shortest: those whose length is nearest to 16 tokens.

    If several are equal, the first is chosen; only the first 2,000 rows count. Each label has its share, as far as
    there are rows of it. Returns the numbers of at most three rows.
    """
    first = rows.select(range(min(len(rows), MOST_ROWS)))
    encoded = columns_of(encode(first, task, tokenizer, max_length))
    lengths, strata = of_documents(encoded["length"][:], encoded), task.type.strata_of(first)
    share = math.ceil(COUNT / len(set(strata)))
    chosen: list[int] = []
    taken: Counter[int] = Counter()
    for row in sorted(range(len(first)), key=lambda row: abs(lengths[row] - TOKENS)):
        if taken[strata[row]] < share and len(chosen) < COUNT:
            taken[strata[row]] += 1
            chosen.append(row)
    return chosen


def _how_to_keep(results: Results) -> str:
    """Describe how to get a model whose attention can be shown: by running the recommended method."""
    inside = runs_folder(results.folder)
    for setting in results.settings:
        found = {label: inside / own[0].folder for label, own in setting.by_label.items()}
        tuned = {label: run for label, run in found.items() if (run / RUN_FILE).is_file()}
        if tuned:
            run = tuned.get(setting.answer.use or "", next(iter(tuned.values())))
            if keeps_model(run):
                command = f'`attendrop attend {shlex.quote(str(run))} "TEXT"`'
                return f"No model was kept beside the runs, but {command} shows the attention of a run."
            command = f"`attendrop train --config {shlex.quote(str(run / RUN_FILE))} --output-dir FOLDER`"
            return (
                "The runs kept their scores, not their models, whose attention could be shown; train one with "
                f"{command}, "
                'then `attendrop attend FOLDER "TEXT"` shows it.'
            )
    return (
        'No model was kept whose attention could be shown; `attendrop attend RUN "TEXT"` shows that of a run that kept '
        "its model."
    )
