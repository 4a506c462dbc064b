"""Multi-label classification: any number of several labels for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from datasets import Dataset
from scipy.special import expit, logit
from sklearn.metrics import average_precision_score, roc_auc_score
from transformers import BatchEncoding, PreTrainedConfig

from attendrop.attribution.predictions import LABELS
from attendrop.tasks.heads.base import Array, Metric, Tokenizer
from attendrop.tasks.heads.classification import SequenceHead, averages, named_probabilities
from attendrop.tasks.heads.linear_models import LinearFit, fit_logistic_regressions
from attendrop.tasks.heads.named_labels import NamedLabels
from attendrop.tasks.table import Table
from attendrop.tasks.values import is_missing, label_names, listed, written


def predicted_labels(logits: Array) -> Array:
    """Return which labels are predicted from logits ``(rows, labels)``."""
    return logits > 0


def _ranking(score: Callable[[Array, Array], float]) -> Metric:
    """Average a ranking score over the labels that some rows have and others have not; 0 if there are none."""

    def mean(labels: Array, logits: Array) -> float:
        defined = [column for column in range(labels.shape[1]) if np.ptp(labels[:, column])]
        return float(np.mean([score(labels[:, i], logits[:, i]) for i in defined])) if defined else 0.0

    return Metric(mean)


_METRICS = {
    **averages(
        predicted_labels, f1="micro macro weighted samples", precision="micro", recall="micro", jaccard="samples"
    ),
    "accuracy": Metric.counting(lambda labels, logits: (predicted_labels(logits) == labels).all(axis=1)),
    "average_precision": _ranking(average_precision_score),
    "roc_auc": _ranking(roc_auc_score),
}


class MultiLabel(NamedLabels, SequenceHead):
    """Head that predicts labels independently of each other, each if its probability is above one half.

    Labels and targets are rows of zeros and ones, one for each label, outputs logits ``(rows, labels)``.
    """

    kind = "multi-label-classification"
    label_type = "labels"
    label_noun = ("label", "label", "labels")
    output_kind = LABELS
    analysed_by = "label"
    example = f"""{SequenceHead.example}
labels = [model.config.id2label[i] for i in (logits[0] > 0).nonzero().flatten().tolist()]"""
    problem_type = "multi_label_classification"
    default_metrics = ("f1_micro", "f1_macro", "accuracy")
    metric_aliases: ClassVar = {
        "f1": "f1_micro",
        "micro_f1": "f1_micro",
        "macro_f1": "f1_macro",
        "exact_match": "accuracy",
        "map": "average_precision",
        "auc": "roc_auc",
    }
    fitted_at = ("f1_micro", 0.9)
    answer_column = "labels"
    has_probabilities = True
    metrics = _METRICS

    @property
    def predicts(self) -> str:
        return f"any of {len(self.label_names)} labels"

    @classmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        return config.problem_type == cls.problem_type

    def fit_linear(
        self,
        features: Array,
        targets: Sequence[Sequence[float]],
        *,
        balanced: bool,
        groups: Sequence[Any] | None = None,  # nothing is chosen by cross-validation
    ) -> LinearFit | None:
        return fit_logistic_regressions(features, np.asarray(targets), balanced=balanced)

    @classmethod
    def may_label(cls, label: Any) -> bool:
        return listed(label) is not None

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Accept lists, also as JSON, and names with ``;``, ``|`` or ``,`` between them; an empty one has no label."""
        if is_missing(value) or written(value).strip().lower() == "nan":
            return "the labels are missing; write an empty list, [], if none applies"
        if not isinstance(value, list | str | int):
            return f"{value!r} is not a list of labels"
        empty = [number for number, name in enumerate(label_names(value), start=1) if not name]
        return f"label {empty[0]} of {written(value)!r} is empty" if empty else None

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head whose labels are those of "train", in alphabetical order."""
        source = tables["train"]
        names = sorted({name for value in source.column(column) for name in label_names(value)})
        return cls.of_names(names, f"{source.path}, column {column!r},")

    def names_in(self, value: Any) -> list[str]:
        return label_names(value)

    def ids_in(self, label: Sequence[int]) -> Array:
        return np.flatnonzero(label)

    def read_labels(self, values: Sequence[Any]) -> list[list[int]]:
        return [[int(name in names) for name in self.label_names] for names in map(label_names, values)]

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[list[float]]:
        return [[float(number) for number in row] for row in labels]  # which the loss needs

    def label_array(self, labels: Sequence[Any]) -> Array:
        return np.asarray(labels, dtype=int).reshape(len(labels), len(self.label_names))

    def decode(self, outputs: Array) -> list[list[int]]:
        return list(predicted_labels(outputs).astype(int).tolist())

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return ``labels``, a list of names; on request also ``probability_LABEL`` of each label."""
        rows = []
        for answer, row in zip(self.decode(outputs), expit(outputs), strict=True):
            names = [self.label_names[number] for number in self.ids_in(answer)]
            rows.append({"labels": names} | (named_probabilities(self.label_names, row) if probabilities else {}))
        return rows

    def constant_answer(self, train: Array, references: Array) -> tuple[str, Array]:
        """Return the labels that more than half of the rows of training have, otherwise the most common one."""
        share = train.mean(axis=0)
        chosen = share > min(0.5, share.max() - 1e-9)
        odds = logit((train.sum(axis=0) + 1) / (len(train) + 2))
        return self.shown_label(chosen), np.tile(
            np.where(chosen, odds.clip(1e-3), odds.clip(max=-1e-3)), (len(references), 1)
        )

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        return super().describe_labels(rows) | {"without": sum(not any(label) for label in rows["label"][:])}

    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        return [*super().label_lines(parts), ["  no label", *(str(part["without"]) for part in parts)]]
