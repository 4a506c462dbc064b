"""Sequence classification: one class, several labels, or a number, for a text or a pair of texts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import sklearn.metrics as skm
from datasets import Dataset
from scipy.special import expit, logit, softmax
from scipy.stats import pearsonr, spearmanr
from transformers import PreTrainedConfig

from attendrop.attribution.predictions import CLASSES, IGNORED, LABELS, NUMBER
from attendrop.errors import AttendropError
from attendrop.tasks.class_names import check_classes
from attendrop.tasks.table import Table
from attendrop.tasks.types.base import Array, Metric, TaskType, Tokenizer
from attendrop.tasks.types.linear_models import (
    fit_logistic_regression,
    fit_logistic_regressions,
    fit_ridge_regression,
)
from attendrop.tasks.types.model_classes import mean_pooling_class
from attendrop.tasks.values import (
    are_numbers,
    class_name,
    is_missing,
    label_names,
    number_form,
    number_problem,
    pointed,
    written,
)


def scored(score: Callable[..., Any], read: Callable[[Array], Array], span: float = 1.0, **options: Any) -> Metric:
    """Make a score of scikit-learn, with options, of what a function reads from the outputs."""
    return Metric(lambda labels, outputs: float(score(labels, read(outputs), **options)), span)


def predicted_classes(logits: Array) -> Array:
    """Return the class of each row of logits ``(rows, classes)``."""
    classes: Array = logits.argmax(axis=1)
    return classes


def predicted_labels(logits: Array) -> Array:
    """Return which labels are predicted from logits ``(rows, labels)``."""
    return logits > 0


def _averages(read: Callable[[Array], Array], **wanted: str) -> dict[str, Metric]:
    """Make averages of scores of scikit-learn, such as "f1_macro": each argument lists the averages of a score."""
    return {
        f"{name}_{kind}": scored(getattr(skm, f"{name}_score"), read, average=kind, zero_division=0.0)
        for name, kinds in wanted.items()
        for kind in kinds.split()
    }


def _ranking(score: Callable[[Array, Array], float], *, of_second: bool = False) -> Metric:
    """Average a ranking score over the labels that some rows have and others have not; 0 if there are none.

    ``of_second``: of two classes, the ranking of the second above the first; 0.5 if all rows are of one class.
    """

    def mean(labels: Array, logits: Array) -> float:
        if of_second:
            labels, logits = (labels == 1).astype(int)[:, None], logits[:, 1:] - logits[:, :1]
        defined = [column for column in range(labels.shape[1]) if np.ptp(labels[:, column])]
        undefined = 0.5 if of_second else 0.0
        return float(np.mean([score(labels[:, i], logits[:, i]) for i in defined])) if defined else undefined

    return Metric(mean)


class SequenceType(TaskType):
    """Head that reads one vector for the whole input: the first token's, the last one's, or the mean over all."""

    auto_class = "AutoModelForSequenceClassification"
    peft_task_type: ClassVar[str | None] = "SEQ_CLS"
    pipeline_tag = "text-classification"
    one_vector = True
    baselines: ClassVar[tuple[str, ...]] = ("majority", "tfidf", "frozen")

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class of transformers; for the mean, where that has no such option, one of this library."""
        return mean_pooling_class(config) or super().model_class(config)


# One class ------------------------------------------------------------------------------------------------------------

_OF_CLASSES = {
    "accuracy": Metric(right=lambda labels, logits: predicted_classes(logits) == labels),
    "balanced_accuracy": scored(skm.balanced_accuracy_score, predicted_classes),
    "matthews_correlation": scored(skm.matthews_corrcoef, predicted_classes, span=2.0),
    "cohen_kappa": scored(skm.cohen_kappa_score, predicted_classes, span=2.0),
    **_averages(predicted_classes, f1="macro micro weighted", precision="macro", recall="macro"),
}
# Of the second of two classes; an average over this one class, so that labels that training lacks can be wrong.
_SECOND: dict[str, Any] = {"labels": [1], "average": "micro", "zero_division": 0.0}
_OF_TWO_CLASSES = {
    "f1": scored(skm.f1_score, predicted_classes, **_SECOND),
    "precision": scored(skm.precision_score, predicted_classes, **_SECOND),
    "recall": scored(skm.recall_score, predicted_classes, **_SECOND),
    "roc_auc": _ranking(skm.roc_auc_score, of_second=True),
    "average_precision": _ranking(skm.average_precision_score, of_second=True),
}


class Classification(SequenceType):
    """Head that predicts a class. Labels and targets are class ids, outputs logits ``(rows, classes)``."""

    kind = "classification"
    label_type = "class"
    label_noun = ("label", "class", "classes")
    output_kind = CLASSES
    problem_type = "single_label_classification"
    default_metrics = ("accuracy", "f1_macro", "matthews_correlation")
    fitted_at = ("accuracy", 0.9)
    attributed = "the logit of the predicted class"
    baselines: ClassVar[tuple[str, ...]] = (*SequenceType.baselines, "setfit")
    linear_model = fit_logistic_regression
    prediction = "{} classes"
    has_classes = True
    has_probabilities = True
    keeps_unknown = True

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head whose classes are the labels of "train": integers by value, then text.

        ``1`` and ``1.0`` are the same class.

        Raises:
            AttendropError: The training data have a single class; or, unless ``asked``, labels are probably not
                classes, see :func:`attendrop.tasks.class_names.check_classes`.
        """
        source = tables["train"]
        found = {class_name(value) for value in source.column(column)}
        whole = {name for name in found if number_form(name) == "whole"}
        names = sorted(found, key=lambda name: (name not in whole, int(name) if name in whole else 0, name))
        if not asked:
            check_classes(source, column, names)
        return cls.of_names(names, source.path)

    def names_in(self, value: Any) -> list[str]:
        """Return the name; ``1,0`` may be that of ``1``, as of a training file with decimal commas; not ``1,000``."""
        name = class_name(value)
        decimal = name if name[-4:-3] == "," else pointed(name)  # else it may be a thousand
        known = (each for each in (written(value), name, class_name(decimal)) if each in self.label_ids)
        return [next(known, name)]

    def read_labels(self, values: Sequence[Any]) -> list[int]:
        return [self.label_ids[name] for value in values for name in self.names_in(value)]

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Return a collator that leaves unknown classes, which cannot be learnt, out of the loss."""
        collate = super().collator(tokenizer)

        def known(rows: list[Any]) -> Any:
            batch = collate(rows)
            if "labels" in batch:
                batch["labels"] = batch["labels"].masked_fill(batch["labels"] >= self.num_classes, IGNORED)
            return batch

        return known if self.unknown_names else collate

    def decode(self, outputs: Array) -> list[int]:
        return list(map(int, predicted_classes(outputs)))

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return ``label`` and ``probability``, its softmax; on request also ``probability_CLASS`` of each class."""
        rows = []
        for row in softmax(outputs, axis=1):
            answer = {"label": self.label_names[row.argmax()], "probability": round(float(row.max()), 6)}
            rows.append(answer | (self.named_probabilities(row) if probabilities else {}))
        return rows

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _OF_CLASSES | _OF_TWO_CLASSES if len(self.label_names) == 2 else _OF_CLASSES

    def constant_answer(self, train: Array, references: Array) -> tuple[str, Array]:
        counts = np.bincount(train, minlength=self.num_classes)
        return self.label_names[counts.argmax()], np.tile(np.log(counts + 1), (len(references), 1))


# Several labels -------------------------------------------------------------------------------------------------------


class MultiLabel(SequenceType):
    """Head that predicts labels independently of each other, each if its probability is above one half.

    Labels and targets are rows of zeros and ones, one for each label, outputs logits ``(rows, labels)``.
    """

    kind = "multi-label-classification"
    label_type = "labels"
    label_noun = ("label", "label", "labels")
    output_kind = LABELS
    example = f"""{SequenceType.example}
labels = [model.config.id2label[i] for i in (logits[0] > 0).nonzero().flatten().tolist()]"""
    problem_type = "multi_label_classification"
    target_type = float  # which the loss needs
    default_metrics = ("f1_micro", "f1_macro", "accuracy")
    metric_aliases: ClassVar = {"f1": "f1_micro"}
    fitted_at = ("f1_micro", 0.9)
    attributed = "the log-likelihood of the predicted labels"
    linear_model = fit_logistic_regressions
    answer_column = "labels"
    prediction = "any of {} labels"
    has_probabilities = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        **_averages(
            predicted_labels, f1="micro macro weighted samples", precision="micro", recall="micro", jaccard="samples"
        ),
        "accuracy": Metric(right=lambda labels, logits: (predicted_labels(logits) == labels).all(axis=1)),
        "average_precision": _ranking(skm.average_precision_score),
        "roc_auc": _ranking(skm.roc_auc_score),
    }

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

    def ids_in(self, label: Any) -> Iterable[int]:
        return np.flatnonzero(label)

    def read_labels(self, values: Sequence[Any]) -> list[list[int]]:
        return [[int(name in names) for name in self.label_names] for names in map(label_names, values)]

    def references(self, encoded: Mapping[str, Any]) -> Array:
        return super().references(encoded).astype(int).reshape(-1, len(self.label_names))

    def decode(self, outputs: Array) -> list[list[int]]:
        return list(predicted_labels(outputs).astype(int).tolist())

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return ``labels``, a list of names; on request also ``probability_LABEL`` of each label."""
        rows = []
        for answer, row in zip(self.decode(outputs), expit(outputs), strict=True):
            names = [self.label_names[number] for number in self.ids_in(answer)]
            rows.append({"labels": names} | (self.named_probabilities(row) if probabilities else {}))
        return rows

    def constant_answer(self, train: Array, references: Array) -> tuple[str, Array]:
        """Return the labels that more than half of the rows of training have, otherwise the most common one."""
        share, odds = train.mean(axis=0), logit((train.sum(axis=0) + 1) / (len(train) + 2))
        chosen = share > min(0.5, share.max() - 1e-9)
        constant = np.where(chosen, odds.clip(1e-3), odds.clip(max=-1e-3))
        return self.shown_label(chosen), np.tile(constant, (len(references), 1))

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        return super().describe_labels(rows) | {"without": sum(not any(label) for label in rows["label"][:])}


# A number -------------------------------------------------------------------------------------------------------------


def _numbers(outputs: Array) -> Array:
    return outputs.reshape(-1)


def _correlation(correlate: Callable[[Array, Array], Any]) -> Metric:
    """Make a correlation that is 0 where undefined: for fewer than two rows, or if one side is constant."""

    def score(labels: Array, predictions: Array) -> float:
        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            return 0.0
        return float(correlate(labels, predictions).statistic)

    return scored(score, _numbers, span=2.0)


# Errors of numbers, by their usual names: lower is better, so they are reported, and models selected by ``neg_...``.
_ERRORS = {"mse": skm.mean_squared_error, "rmse": skm.root_mean_squared_error, "mae": skm.mean_absolute_error}
_NEGATED = {error: f"neg_{function.__name__}" for error, function in _ERRORS.items()}


class Regression(SequenceType):
    """Head that predicts a number. Labels and targets are floats, outputs ``(rows,)`` or ``(rows, 1)``."""

    kind = "regression"
    label_type = "number"
    output_kind = NUMBER
    problem_type = "regression"
    target_type = float
    default_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", *_ERRORS)
    metric_aliases: ClassVar = _NEGATED | {f"neg_{error}": name for error, name in _NEGATED.items()}
    fitted_at = ("r2", 0.7)
    attributed = "minus the squared difference between the predicted number and that number plus one"
    linear_model = fit_ridge_regression
    answer_column = "score"
    prediction, label_words = "a number", "numbers to predict"
    output_names = ("score",)
    metrics: ClassVar[Mapping[str, Metric]] = {
        "pearson": _correlation(pearsonr),
        "spearman": _correlation(spearmanr),
        "r2": scored(lambda labels, found: skm.r2_score(labels, found) if len(labels) > 1 else 0.0, _numbers, math.inf),
        **{
            _NEGATED[name]: scored(lambda *rows, of=error: -of(*rows), _numbers, math.inf)
            for name, error in _ERRORS.items()
        },
        **{name: replace(scored(error, _numbers, math.inf), selects=False) for name, error in _ERRORS.items()},
    }

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head; raises AttendropError if all training rows have the same number."""
        train = tables["train"]
        if len(found := set(map(written, train.column(column)))) == 1:
            raise AttendropError(f"{train.path} has only one number, {found.pop()!r}; training needs at least two.")
        return super().from_labels(tables, column, asked=asked)

    @classmethod
    def suits(cls, tables: Mapping[str, Table], column: str) -> bool:
        """Accept numbers of which one has a decimal fraction or an exponent."""
        return are_numbers(tables, column)

    def label_problem(self, value: Any) -> str | None:
        return number_problem(value)

    def read_labels(self, values: Sequence[Any]) -> list[float]:
        return [float(written(value)) for value in values]

    def decode(self, outputs: Array) -> list[float]:
        return [float(number) for number in _numbers(outputs)]

    def constant_answer(self, train: Array, references: Array) -> tuple[float, Array]:
        mean = float(np.mean(train))
        return mean, np.full(len(references), mean)

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        labels = rows["label"][:]
        return {"numbers": {"min": min(labels), "mean": statistics.fmean(labels), "max": max(labels)}}
