"""The nine GLUE tasks (Wang et al., 2019), from the official files or from the hub."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from attendrop.errors import AttendropError
from attendrop.tasks.base import Source, TabbedFile, Task, hub_rows

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


def _glue(
    folder: str,
    metrics: tuple[str, ...],
    about: str,
    file: TabbedFile,
    labels: tuple[str, ...],
    hub_columns: tuple[str, ...],
    class_names: tuple[str, ...] = (),
    file_names: Mapping[str, str] = _FILES,
) -> Source:
    """Make a task from its folder in the official archive, the columns of its files, and the labels in them.

    If there are no ``labels``, they are numbers from 0 to 5; ``class_names`` are the classes if files write them
    differently. Models are selected by the first metric.
    """
    name, (metric, *others) = folder.lower().replace("-", ""), metrics
    kind = "classification" if labels else "regression"
    return Source(
        Task(name, kind, file.texts, class_names or labels, metric, about, tuple(others)),
        (folder,),
        {split: ((own,),) for split, own in file_names.items()},
        file.read if labels else replace(file, read_label=_score).read,
        (("nyu-mll/glue", name),),
        partial(hub_rows, hub_columns, ()),
        labels or None,
        _MNLI_HUB_SPLITS if name == "mnli" else {"dev": "validation"},
        within="glue",
    )


def submitted(source: Source, label: float) -> str:
    """Return a prediction as submissions have it: the name of a class, or a number clamped to the range."""
    return source.labels[int(label)] if source.labels else f"{min(max(label, 0), _HIGHEST):.3f}"


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
    _glue(
        "CoLA", ("matthews_correlation",), "is it good English?",
        TabbedFile(("sentence",), "label", header=("source", "label", "star", "sentence")), _YES_NO, ("sentence",),
        ("unacceptable", "acceptable"),
    ),
    _glue(
        "SST-2", _ACCURACY, "sentiment of film reviews", TabbedFile(("sentence",), "label"), _YES_NO, ("sentence",),
        ("negative", "positive"),
    ),
    _glue(
        "MRPC", ("accuracy", "f1"), "do two news sentences say the same?",
        TabbedFile(("#1 String", "#2 String"), "Quality"), _YES_NO, _PAIR, ("not_equivalent", "equivalent"),
    ),
    _glue(
        "STS-B", ("pearson", "spearman"), "similarity of two sentences, 0 to 5", TabbedFile(_PAIR, "score"), (), _PAIR,
    ),
    _glue(
        "QQP", ("accuracy", "f1"), "do two questions ask the same?", TabbedFile(_QUESTIONS, "is_duplicate", index="id"),
        _YES_NO, _QUESTIONS, ("not_duplicate", "duplicate"),
    ),
    _glue(
        "MNLI", _ACCURACY, "does the premise entail, contradict or leave open?", TabbedFile(_PAIR, "gold_label"), _NLI,
        ("premise", "hypothesis"), file_names=_MNLI_FILES,
    ),
    _glue(
        "QNLI", _ACCURACY, "does the sentence answer the question?", TabbedFile(("question", "sentence"), "label"),
        _ENTAILMENT, ("question", "sentence"),
    ),
    _glue(
        "RTE", _ACCURACY, "does the first text entail the second?", TabbedFile(_PAIR, "label"), _ENTAILMENT, _PAIR,
    ),
    _glue(
        "WNLI", _ACCURACY, "is the pronoun resolved correctly?", TabbedFile(_PAIR, "label"), _YES_NO, _PAIR,
        ("not_entailment", "entailment"),
    ),
)  # fmt: skip
GLUE: dict[str, Source] = {source.task.name: source for source in _TASKS}
