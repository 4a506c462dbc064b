"""The attention of the model that a comparison kept, on rows of its evaluation data, as a section of its report."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import build_method
from attendrop.reports.attention_viewer import (
    ShownText,
    Stages,
    explanation,
    load_stages,
    method_in_words,
    page_length,
    show_texts,
    viewer_section,
)
from attendrop.reports.page import Section, render, render_page
from attendrop.reports.results import FinishedRun
from attendrop.runs.config import DEFAULT_METHOD, RunConfig
from attendrop.runs.data import divide, load_data
from attendrop.runs.run_file import RUN_FILE, read_run_file
from attendrop.runs.run_folder import read_metrics
from attendrop.studies.method_rows import method_label
from attendrop.tasks.base import Task
from attendrop.tasks.long_texts import of_documents
from attendrop.tasks.tokenization import columns_of, encode

# Rows that are shown, and how many tokens they should have; of very many rows, the first are looked at.
COUNT, TOKENS, MOST_ROWS = 3, 16, 2000
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptModel:
    """A kept model with the maps of some texts.

    Attributes:
        folder: Folder of its run.
        metrics: The run's ``metrics.json``.
        stages: The model before and after training.
        texts: The texts.
        source: Where the texts are from, in words; empty if they were given.
    """

    folder: Path
    metrics: Mapping[str, Any]
    stages: Stages
    texts: tuple[ShownText, ...]
    source: str

    @property
    def way_to_see_a_text(self) -> str:
        """The command that makes a page of any one of the texts."""
        longest = max(self.texts, key=lambda text: text.tokens)
        length = page_length(self.folder.name, self.stages, [longest])
        return f'attendrop attend {self.folder} "TEXT"{"" if length is None else f" --max-length {length}"}'

    def section(self, identifier: str, heading: str, most_bytes: int) -> tuple[Section, str] | None:
        """Make a section with a viewer that adds at most so many bytes to a page.

        Layers are left out first, every other one, then texts.

        Returns:
            The section, and in words what was left out; None if it would be too large with one layer of one text.
        """
        texts = self.texts
        while texts:
            left_out = _left_out(self.texts, texts)
            section = self._section(identifier, heading, texts, left_out)
            if len(render_page("", [section]).encode()) <= most_bytes:
                return section, left_out
            texts = _fewer(texts)
        return None

    def _section(self, identifier: str, heading: str, texts: Sequence[ShownText], left_out: str) -> Section:
        section = viewer_section(identifier, heading, self.stages, texts)
        metrics, method = self.metrics, self.stages.method
        rows = metrics["data"]["rows"]["train"]
        content = render(
            "kept_model.html",
            folder=self.folder,
            trained=f"{method_label(metrics)}, seed {metrics['seed']}, {rows} training rows",
            source=self.source,
            method=None if method is None else method_in_words(method),
            of_run=self.stages.of_run,
            left_out=left_out,
            viewer=section.content,
            explanation=explanation(self.stages),
        )
        return replace(section, content=content)


def _fewer(texts: Sequence[ShownText]) -> tuple[ShownText, ...]:
    """Leave out every other layer, but for the last one; of a single layer, the last text."""
    layers = _layers(texts)
    if len(layers) == 1:
        return tuple(texts[:-1])
    return tuple(text.with_layers(layers[::-2][::-1]) for text in texts)


def _left_out(texts: Sequence[ShownText], kept: Sequence[ShownText]) -> str:
    counts = [
        f"{len(few)} of {len(every)} {name}"
        for name, every, few in (("layers", _layers(texts), _layers(kept)), ("texts", texts, kept))
        if len(few) < len(every)
    ]
    return f"To keep the page small, it has only {' and '.join(counts)}." if counts else ""


def _layers(texts: Sequence[ShownText]) -> list[str]:
    return list(texts[0].stages[0].layers)


def look_at_kept_model(
    folder: Path, runs: Sequence[FinishedRun], texts: Sequence[str], pairs: Sequence[str], device: str
) -> KeptModel:
    """Compute the maps of a kept model.

    Raises:
        AttendropError: The model or the data cannot be read, or the texts cannot be shown.
    """
    stages = load_stages(str(folder), None, build_method(DEFAULT_METHOD), device=device)
    labels: Sequence[str | None] = [None] * len(texts)
    source = ""
    if not texts:
        config = _config(folder, runs)
        task, rows = _evaluation_rows(config)
        chosen = rows.select(typical_rows(rows, task, stages.tokenizer, config.max_length))
        texts, *others = map(list, zip(*task.head.texts(chosen), strict=True))
        pairs = others[0] if others else ()
        labels = [str(task.head.shown_label(label)) for label in chosen["label"]]
        source = _source(len(chosen), len(rows), task, config)
    logger.info("Computing the attention maps of %d texts with the model in %s.", len(texts), folder)
    shown = show_texts(stages, texts, pairs)
    labelled = (replace(each, label=label) for each, label in zip(shown, labels, strict=True))
    return KeptModel(folder, read_metrics(folder) or {}, stages, tuple(labelled), source)


def _config(folder: Path, runs: Sequence[FinishedRun]) -> RunConfig:
    """Read the options of the kept model's run, with absolute paths, and with the evaluation rows of the comparison."""
    options = read_run_file(str(folder / RUN_FILE))
    options |= {"seed": options["seed"][0], "output_dir": str(folder)}
    fraction = next((run.metrics["config"].get("test_fraction") for run in runs), None)
    return RunConfig(**options | ({"test_fraction": fraction} if fraction else {}))


def _evaluation_rows(config: RunConfig) -> tuple[Task, Dataset]:
    data = load_data(config)
    rows = divide(config, data).report.get("dev")
    if rows is None:
        raise AttendropError("The runs, which tell what the evaluation rows were, are gone; give texts with --text.")
    return data.task, rows


def typical_rows(rows: Dataset, task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[int]:
    """Choose rows that are short, but not the shortest: those whose length is nearest to 16 tokens.

    Of equals, the first is chosen. Each label has its share, as far as there are rows of it.

    Args:
        rows: Labelled rows, of which the first 2,000 count.
        task: Their task.
        tokenizer: Tokenizer that measures them.
        max_length: In tokens.

    Returns:
        Numbers of at most three rows.
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


def _source(count: int, rows: int, task: Task, config: RunConfig) -> str:
    """Say which evaluation rows are shown, and whether the kept model was trained on them."""
    among = f"first {MOST_ROWS:,} evaluation rows" if rows > MOST_ROWS else "evaluation rows"
    labels = ", of different labels" if task.head.num_classes else ""
    found = f"Texts: {count} of the {among}, those whose length is nearest to {TOKENS} tokens{labels}."
    if not config.test_fraction:
        return found
    if config.shots is None and config.max_train_samples is None:
        return f"{found} The kept model was trained on all rows, these among them."
    return f"{found} The kept model was trained on a sample of all rows, which may hold these."
