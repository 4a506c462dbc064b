"""Classification: one of several classes for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from datasets import Dataset
from scipy.special import softmax
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    f1_score,
    jaccard_score,
    matthews_corrcoef,
    precision_score,
    recall_score,
    roc_auc_score,
)
from transformers import PreTrainedConfig

from attendrop.attribution.predictions import CLASSES, IGNORED
from attendrop.tasks.class_names import check_classes
from attendrop.tasks.heads.base import Array, Head, Metric, Tokenizer
from attendrop.tasks.heads.linear_models import LinearFit, fit_logistic_regression
from attendrop.tasks.heads.model_classes import mean_pooling_class
from attendrop.tasks.heads.named_labels import NamedLabels
from attendrop.tasks.long_texts import LONG_TEXTS
from attendrop.tasks.table import Table
from attendrop.tasks.values import class_name, joined_labels, number_form, plain, pointed, written

# With "auto", more distinct labels than this are not taken for classes if they are whole numbers or look like ids.


def predicted_classes(logits: Array) -> Array:
    """Return the class of each row of logits ``(rows, classes)``."""
    classes: Array = logits.argmax(axis=1)
    return classes


def averages(read: Callable[[Array], Array], **wanted: str) -> dict[str, Metric]:
    """Make averages of scores of scikit-learn, such as "f1_macro": each argument lists the averages of a score."""
    scores = {"f1": f1_score, "precision": precision_score, "recall": recall_score, "jaccard": jaccard_score}
    return {
        f"{name}_{kind}": Metric.of(scores[name], read, average=kind, zero_division=0.0)
        for name, kinds in wanted.items()
        for kind in kinds.split()
    }


def _of_second(score: Callable[..., float]) -> Metric:
    return Metric(lambda labels, logits: float(score(labels == 1, predicted_classes(logits) == 1, zero_division=0.0)))


def _ranking(score: Callable[..., float]) -> Metric:
    """Make a score of the ranking of the second class above the first; 0.5 if there is only one class."""

    def of_second(labels: Array, logits: Array) -> float:
        second = (labels == 1).astype(int)
        return float(score(second, logits[:, 1] - logits[:, 0])) if np.ptp(second) else 0.5

    return Metric(of_second)


_METRICS = {
    "accuracy": Metric.counting(lambda labels, logits: predicted_classes(logits) == labels),
    "balanced_accuracy": Metric.of(balanced_accuracy_score, predicted_classes),
    "matthews_correlation": Metric.of(matthews_corrcoef, predicted_classes, span=2.0),
    "cohen_kappa": Metric.of(cohen_kappa_score, predicted_classes, span=2.0),
    **averages(predicted_classes, f1="macro micro weighted", precision="macro", recall="macro"),
}
# Scores of the second of two classes: of its predictions, and of the difference of the logits.
_BINARY_METRICS = {
    "f1": _of_second(f1_score),
    "precision": _of_second(precision_score),
    "recall": _of_second(recall_score),
    "roc_auc": _ranking(roc_auc_score),
    "average_precision": _ranking(average_precision_score),
}


class SequenceHead(Head):
    """Head that reads one vector for the whole input: the first token's, the last one's, or the mean over all."""

    auto_class = "AutoModelForSequenceClassification"
    peft_task_type: ClassVar[str | None] = "SEQ_CLS"
    pipeline_tag = "text-classification"
    one_vector = True
    has_pooling = True
    long_texts: ClassVar[tuple[str, ...]] = LONG_TEXTS
    baselines: ClassVar[tuple[str, ...]] = ("majority", "tfidf", "frozen")

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        """Accept anything but lists; what is no text is refused later."""
        return not any(isinstance(text, list) for text in texts)

    @classmethod
    def may_label(cls, label: Any) -> bool:
        return not isinstance(label, list)

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class of transformers; for the mean, where that has no such option, one of this library."""
        return mean_pooling_class(config) or super().model_class(config)


class Classification(NamedLabels, SequenceHead):
    """Head that predicts a class. Labels and targets are class ids, outputs logits ``(rows, classes)``."""

    kind = "classification"
    label_type = "class"
    label_noun = ("label", "class", "classes")
    output_kind = CLASSES
    problem_type = "single_label_classification"
    default_metrics = ("accuracy", "f1_macro", "matthews_correlation")
    metric_aliases: ClassVar = {
        "macro_f1": "f1_macro",
        "micro_f1": "f1_micro",
        "weighted_f1": "f1_weighted",
        "mcc": "matthews_correlation",
        "matthews": "matthews_correlation",
        "matthews_corrcoef": "matthews_correlation",
        "auc": "roc_auc",
    }
    fitted_at = ("accuracy", 0.9)
    analysed_by = "class"
    baselines: ClassVar[tuple[str, ...]] = (*SequenceHead.baselines, "setfit")
    has_probabilities = True
    keeps_unknown = True
    has_class_weights = True

    @property
    def num_classes(self) -> int:
        return len(self.label_names)

    @property
    def predicts(self) -> str:
        return f"{len(self.label_names)} classes"

    @classmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Accept any model that no other head recognizes; loading one without a trained head says what is missing."""
        return True

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head whose classes are the labels of "train": integers by value, then text.

        ``1`` and ``1.0`` are the same class.

        Raises:
            AttendropError: The training data have a single class; or, unless ``asked``, labels are probably not
                classes, see :func:`attendrop.tasks.class_names.check_classes`.
        """
        source = tables["train"]
        names = sorted({class_name(value) for value in source.column(column)}, key=_class_order)
        if not asked:
            check_classes(source, column, names)
        return cls.of_names(names, source.path)

    @cached_property
    def label_ids(self) -> dict[str, int]:
        """The ids of classes, by name, of whole numbers also without ``.0``."""
        return {class_name(name): number for name, number in super().label_ids.items()} | super().label_ids

    def names_in(self, value: Any) -> list[str]:
        """Return the name; ``1,0`` may be that of ``1``, as of a training file with decimal commas; not ``1,000``."""
        name = class_name(value)
        decimal = name if name[-4:-3] == "," else pointed(name)  # else it may be a thousand
        known = (each for each in (written(value), name, class_name(decimal)) if each in self.label_ids)
        return [next(known, name)]

    def ids_in(self, label: int) -> list[int]:
        return [label]

    def read_labels(self, values: Sequence[Any]) -> list[int]:
        return [self.label_ids[name] for value in values for name in self.names_in(value)]

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        return self.without_unknown(super().collator(tokenizer))

    def without_unknown(self, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return a collator that leaves unknown classes, which cannot be learnt, out of the loss."""

        def known(rows: list[Any]) -> Any:
            batch = collate(rows)
            if "labels" in batch:
                batch["labels"] = batch["labels"].masked_fill(batch["labels"] >= self.num_classes, IGNORED)
            return batch

        return known if self.unknown_names else collate

    def fit_linear(
        self, features: Array, targets: Sequence[int], *, balanced: bool, groups: Sequence[Any] | None = None
    ) -> LinearFit | None:
        return fit_logistic_regression(features, targets, self.num_classes, balanced=balanced, groups=groups)

    def decode(self, outputs: Array) -> list[int]:
        return list(map(int, predicted_classes(outputs)))

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return ``label`` and ``probability``, its softmax; on request also ``probability_CLASS`` of each class."""
        rows = []
        for row in softmax(outputs, axis=1):
            answer = {"label": self.label_names[row.argmax()], "probability": round(float(row.max()), 6)}
            rows.append(answer | (named_probabilities(self.label_names, row) if probabilities else {}))
        return rows

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _METRICS | _BINARY_METRICS if len(self.label_names) == 2 else _METRICS

    def constant_answer(self, train: Array, references: Array) -> tuple[str, Array]:
        counts = np.bincount(train, minlength=self.num_classes)
        return self.label_names[counts.argmax()], np.tile(np.log(counts + 1), (len(references), 1))

    @property
    def strata(self) -> tuple[str, ...]:
        return tuple(f"class {name!r}" for name in self.label_names)

    def strata_of(self, rows: Dataset) -> Sequence[int]:
        return rows["label"][:]  # type: ignore[no-any-return]

    def label_warnings(self, train: Mapping[str, Any], scored: Sequence[Mapping[str, Any]] = ()) -> list[str]:
        joined = joined_labels(self.label_names)
        return super().label_warnings(train, scored) + ([] if joined is None else [f"The class {joined}."])

    def similar_classes(self) -> list[list[str]]:
        first: dict[str, str] = {}
        keys = [(name, plain(name)) for name in self.label_names]
        return [[first[key], name] for name, key in keys if first.setdefault(key, name) != name]


def named_probabilities(names: Sequence[str], row: Array) -> dict[str, float]:
    """Return the columns of the probabilities of all classes, or labels, of a row."""
    return {f"probability_{name}": round(float(p), 6) for name, p in zip(names, row, strict=True)}


def _class_order(name: str) -> tuple[bool, int, str]:
    whole = number_form(name) == "whole"
    return not whole, int(name) if whole else 0, name
