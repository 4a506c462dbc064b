"""The nine GLUE tasks (Wang et al., 2019), from the official files or from the hub."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.sources import Source, TabbedFile, hub_rows

_HIGHEST = 5  # of the numbers of STS-B
_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_MNLI_FILES = {
    "train": "train.tsv",
    "dev": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
_MNLI_HUB_SPLITS = {"dev": "validation_matched", "dev_mismatched": "validation_mismatched", "test": "test_matched"}


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE as its files have it.

    Attributes:
        folder: Its folder in the official archive.
        metrics: Its metrics; models are selected by the first.
        about: One line on it.
        file: The columns of its files.
        labels: The labels in files and submissions, in the order of the classes; none: numbers from 0 to 5.
        hub_columns: The text columns on the hub.
        class_names: The classes, where files write them in another way.
        file_names: File names by split.
    """

    folder: str
    metrics: tuple[str, ...]
    about: str
    file: TabbedFile
    labels: tuple[str, ...]
    hub_columns: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    file_names: Mapping[str, str] = field(default_factory=lambda: _FILES)

    @property
    def source(self) -> Source:
        """Where the data come from."""
        name = self.folder.lower().replace("-", "")
        kind = "classification" if self.labels else "regression"
        names, (metric, *others) = self.class_names or self.labels, self.metrics
        return Source(
            Task(name, kind, self.file.texts, names, metric, self.about, tuple(others)),
            (self.folder,),
            {split: ((file,),) for split, file in self.file_names.items()},
            self.file.read if self.labels else replace(self.file, read_label=_score).read,
            (("nyu-mll/glue", name),),
            partial(hub_rows, self.hub_columns, ()),
            self.labels or None,
            _MNLI_HUB_SPLITS if name == "mnli" else {"dev": "validation"},
            within="glue",
        )

    def write(self, label: float) -> str:
        """Return a prediction as submissions have it: the name of a class, or a number clamped to the range."""
        return self.labels[int(label)] if self.labels else f"{min(max(label, 0), _HIGHEST):.3f}"


def _score(label: str, place: str) -> float:
    """Read a score of STS-B; raise AttendropError if it is no number, or out of range."""
    try:
        score = float(label)
    except ValueError:
        score = math.nan
    if not 0 <= score <= _HIGHEST:
        raise AttendropError(f"{place}: the score {label!r} is not a number from 0 to {_HIGHEST}.")
    return score


_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
_ACCURACY = ("accuracy",)
_TASKS = (
    GlueTask(
        "CoLA", ("matthews_correlation",), "is it good English?",
        TabbedFile(("sentence",), "label", header=("source", "label", "star", "sentence")), _YES_NO, ("sentence",),
        ("unacceptable", "acceptable"),
    ),
    GlueTask(
        "SST-2", _ACCURACY, "sentiment of film reviews", TabbedFile(("sentence",), "label"), _YES_NO, ("sentence",),
        ("negative", "positive"),
    ),
    GlueTask(
        "MRPC", ("accuracy", "f1"), "do two news sentences say the same?",
        TabbedFile(("#1 String", "#2 String"), "Quality"), _YES_NO, _PAIR, ("not_equivalent", "equivalent"),
    ),
    GlueTask(
        "STS-B", ("pearson", "spearman"), "similarity of two sentences, 0 to 5", TabbedFile(_PAIR, "score"), (), _PAIR,
    ),
    GlueTask(
        "QQP", ("accuracy", "f1"), "do two questions ask the same?", TabbedFile(_QUESTIONS, "is_duplicate", index="id"),
        _YES_NO, _QUESTIONS, ("not_duplicate", "duplicate"),
    ),
    GlueTask(
        "MNLI", _ACCURACY, "does the premise entail, contradict or leave open?", TabbedFile(_PAIR, "gold_label"), _NLI,
        ("premise", "hypothesis"), file_names=_MNLI_FILES,
    ),
    GlueTask(
        "QNLI", _ACCURACY, "does the sentence answer the question?", TabbedFile(("question", "sentence"), "label"),
        _ENTAILMENT, ("question", "sentence"),
    ),
    GlueTask(
        "RTE", _ACCURACY, "does the first text entail the second?", TabbedFile(_PAIR, "label"), _ENTAILMENT, _PAIR,
    ),
    GlueTask(
        "WNLI", _ACCURACY, "is the pronoun resolved correctly?", TabbedFile(_PAIR, "label"), _YES_NO, _PAIR,
        ("not_entailment", "entailment"),
    ),
)  # fmt: skip
GLUE: dict[str, GlueTask] = {each.source.task.name: each for each in _TASKS}
