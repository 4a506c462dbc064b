"""Report section with the attention of the model that a comparison kept, or with how to get one."""

from __future__ import annotations

import logging
import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import build_method
from attendrop.reports.attention_stages import Stages, load_stages
from attendrop.reports.attention_viewer import (
    ShownText,
    explanation,
    method_in_words,
    page_length,
    show_texts,
    viewer_section,
)
from attendrop.reports.page import Section, render, render_page
from attendrop.reports.results import Results, runs_folder
from attendrop.runs.config import DEFAULT_METHOD, RunConfig
from attendrop.runs.data import divide, load_data
from attendrop.runs.run_file import RUN_FILE, read_run_file
from attendrop.runs.run_folder import keeps_model, read_metrics
from attendrop.studies.comparison import BEST
from attendrop.studies.method_rows import Metrics, method_label
from attendrop.studies.units import FROZEN
from attendrop.studies.words import BASELINES_IN_WORDS
from attendrop.tasks.base import Task
from attendrop.tasks.heads.registry import HEADS
from attendrop.tasks.long_texts import of_documents
from attendrop.tasks.tokenization import columns_of, encode

_IDENTIFIER, _HEADING = "attention", "Attention"
# Number of rows to show, and of tokens that they should have; only the first of very many rows are considered.
COUNT, TOKENS, MOST_ROWS = 3, 16, 2000
logger = logging.getLogger(__name__)


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


class AttentionPart(NamedTuple):
    """A section, and why it has no viewer or which given texts the viewer omits; empty: nothing."""

    section: Section
    missing: str


# See :func:`attention_part`.
PartOfSize = Callable[[int], AttentionPart]


def attention_part(results: Results, options: ViewerOptions) -> PartOfSize:
    """Load the model that a comparison kept, or that of a single run, and show its attention; studies keep none.

    Returns:
        A function that makes a part which adds at most a given number of bytes to a page, or else the shortest there
        is. To fit, every other layer is left out, again and again, and of a single layer, the last text.

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
        nothing = _sentence(str(error))
        return lambda most_bytes: nothing

    def part(most_bytes: int) -> AttentionPart:
        texts = every
        while texts:
            left_out = _left_out(every, texts)
            section = _section(folder, stages, texts, source, left_out)
            if len(render_page("", [section]).encode()) <= most_bytes:
                return AttentionPart(section, left_out if options.texts else "")
            layers = list(texts[0].stages[0].layers)
            texts = [text.with_layers(layers[::-2][::-1]) for text in texts] if len(layers) > 1 else texts[:-1]
        length = page_length(folder.name, stages, [max(every, key=lambda text: text.tokens)])
        command = (
            f'attendrop attend {shlex.quote(str(folder))} "TEXT"{"" if length is None else f" --max-length {length}"}'
        )
        return _sentence(
            f"The page has no room left for the maps of the kept model. `{command}` makes a page of a text."
        )

    return part


# Options by which runs set rows aside; the kept model is trained on all.
_SET_ASIDE = ("test_fraction", "shift", "shift_column")


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
        texts, *others = zip(*data.task.head.texts(chosen), strict=True)
        pairs = others[0] if others else ()
        labels = [str(data.task.head.shown_label(label)) for label in chosen["label"]]
        source = _source(len(chosen), len(rows), data.task)
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
    lengths, strata = of_documents(encoded["length"][:], encoded), task.head.strata_of(first)
    share = math.ceil(COUNT / len(set(strata)))
    chosen: list[int] = []
    taken: Counter[int] = Counter()
    for row in sorted(range(len(first)), key=lambda row: abs(lengths[row] - TOKENS)):
        if taken[strata[row]] < share and len(chosen) < COUNT:
            taken[strata[row]] += 1
            chosen.append(row)
    return chosen


def _source(count: int, rows: int, task: Task) -> str:
    """Describe which evaluation rows are shown."""
    among = f"first {MOST_ROWS:,} evaluation rows" if rows > MOST_ROWS else "evaluation rows"
    labels = ", of different labels" if task.head.num_classes else ""
    return f"Texts: {count} of the {among}, those whose length is nearest to {TOKENS} tokens{labels}."


def _section(folder: Path, stages: Stages, texts: Sequence[ShownText], source: str, left_out: str) -> Section:
    section = viewer_section(_IDENTIFIER, _HEADING, stages, texts)
    metrics = read_metrics(folder) or {}
    rows = metrics["data"]["rows"]["train"]
    content = render(
        "kept_model.html",
        folder=shlex.quote(str(folder)),
        is_best=folder.name == BEST,
        trained=f"{_name(metrics)}, seed {metrics['seed']}, {rows} training rows",
        source=source,
        method=stages.method and method_in_words(stages.method),
        of_run=stages.of_run,
        left_out=left_out,
        viewer=section.content,
        explanation=explanation(stages),
    )
    return replace(section, content=content)


def _name(metrics: Metrics) -> str:
    """Name the kept model by its method, or, if only the start of its head was made, by the baseline that it is."""
    return BASELINES_IN_WORDS[FROZEN] if metrics["config"].get("max_steps") == 0 else method_label(metrics)


def _left_out(texts: Sequence[ShownText], kept: Sequence[ShownText]) -> str:
    layers, few = len(texts[0].stages[0].layers), len(kept[0].stages[0].layers)
    pairs = (("layers", few, layers), ("texts", len(kept), len(texts)))
    counts = [f"{some} of {every} {name}" for name, some, every in pairs if some < every]
    return f"To keep the page small, it has only {' and '.join(counts)}." if counts else ""


def _how_to_keep(results: Results) -> str:
    """Describe how to get a model whose attention can be shown: by running the recommended method."""
    inside = runs_folder(results.folder)
    for setting in results.settings:
        found = {label: inside / runs[0].folder for label, runs in setting.by_label.items()}
        tuned = {label: run for label, run in found.items() if (run / RUN_FILE).is_file()}
        if not tuned:
            continue
        run = tuned.get(setting.answer.use or "", next(iter(tuned.values())))
        kind = (read_metrics(run) or {"data": {}})["data"].get("report", {}).get("kind")
        if refused := next((head.refused for head in HEADS if head.kind == kind and "attend" in head.refused), None):
            return f"`attendrop attend` does not work for {kind}: {refused['attend']}."
        if keeps_model(run):
            command = f'attendrop attend {shlex.quote(str(run))} "TEXT"'
            return f"No model was kept beside the runs, but `{command}` shows the attention of a run."
        run_file = shlex.quote(str(run / RUN_FILE))
        return (
            "The runs kept their scores, not their models, whose attention could be shown; train one with `attendrop "
            f'train --config {run_file} --output-dir FOLDER`, then `attendrop attend FOLDER "TEXT"` shows it.'
        )
    return (
        'No model was kept whose attention could be shown; `attendrop attend RUN "TEXT"` shows that of a run that kept '
        "its model."
    )


def _sentence(text: str) -> AttentionPart:
    """Explain why there is no viewer."""
    return AttentionPart(Section(_IDENTIFIER, _HEADING, render("sentence.html", text=text)), text)
