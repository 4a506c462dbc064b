"""One class, several labels, or a number, for a text or a pair of texts; and one of several choices."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from string import ascii_uppercase
from typing import Any, ClassVar, Self

import numpy as np
import sklearn.metrics as skm
from datasets import Dataset
from scipy.special import expit, logit, softmax
from scipy.stats import pearsonr, spearmanr
from transformers import BatchEncoding, PreTrainedConfig

from attendrop.attribution.predictions import CLASSES, IGNORED, LABELS, NUMBER
from attendrop.errors import AttendropError
from attendrop.tasks.table import (
    HOW_TO_WRITE,
    BadValue,
    Table,
    is_missing,
    label_names,
    listed,
    number_form,
    parsed,
    read_class,
    written,
)
from attendrop.tasks.types.base import Answer, Array, Columns, Metric, TaskType, Tokenizer, row_array
from attendrop.tasks.types.linear_models import fit_logistic_regression, fit_logistic_regressions, fit_ridge_regression
from attendrop.tasks.types.model_classes import PADDED, choice_class, mean_pooling_class

# The letters of choices, of which a question has no more than these.
LETTERS = ascii_uppercase


def scored(score: Callable[..., Any], read: Callable[[Array], Array], span: float = 1.0, **options: Any) -> Metric:
    """Make a score of scikit-learn, with options, of what a function reads from the outputs."""
    return Metric(lambda labels, outputs: float(score(labels, read(outputs), **options)), span)


def predicted_classes(logits: Array) -> Array:
    """Return the class of each row of logits ``(rows, classes)``."""
    return np.asarray(logits.argmax(axis=1))


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
    """What reads one vector for the whole input: the first token's, the last one's, or the mean over all."""

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
    """One class for each row. Labels and targets are class ids, outputs logits ``(rows, classes)``."""

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
    def read_names(cls, value: Any) -> list[str]:
        return [read_class(value)]

    @classmethod
    def in_order(cls, names: Collection[str]) -> list[str]:
        """Sort integers by value, then text."""
        whole = {name for name in names if number_form(name) == "whole"}
        return sorted(names, key=lambda name: (name not in whole, int(name) if name in whole else 0, name))

    def label_of(self, names: Sequence[str]) -> int:
        (found,) = super().label_of(names)
        return int(found)

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Return a collator that leaves unknown classes, which cannot be learnt, out of the loss."""
        collate = super().collator(tokenizer)

        def known(rows: list[Any]) -> Any:
            batch = collate(rows)
            if "labels" in batch:
                batch["labels"] = batch["labels"].masked_fill(batch["labels"] >= self.num_classes, IGNORED)
            return batch

        return known if self.unknown_names else collate

    def prediction_rows(self, outputs: Array, columns: Columns | None = None, *, probabilities: bool) -> list[Answer]:
        """Return ``label`` and ``probability``, its softmax; on request also ``probability_CLASS`` of each class."""
        return [
            {"label": self.label_names[row.argmax()], "probability": round(float(row.max()), 6)}
            | (self.named_probabilities(row) if probabilities else {})
            for row in softmax(outputs, axis=1)
        ]

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _OF_CLASSES | _OF_TWO_CLASSES if len(self.label_names) == 2 else _OF_CLASSES

    def positive_class(self, metric: str) -> str | None:
        return self.label_names[1] if metric in _OF_TWO_CLASSES else None


# Several labels -------------------------------------------------------------------------------------------------------


class MultiLabel(SequenceType):
    """Labels that are predicted independently of each other, each if its probability is above one half.

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
            lambda logits: logits > 0,
            f1="micro macro weighted samples",
            precision="micro",
            recall="micro",
            jaccard="samples",
        ),
        "accuracy": Metric(right=lambda labels, logits: ((logits > 0) == labels).all(axis=1)),
        "average_precision": _ranking(skm.average_precision_score),
        "roc_auc": _ranking(skm.roc_auc_score),
    }

    @classmethod
    def read_names(cls, value: Any) -> list[str]:
        """Accept lists, also as JSON, and names with ``;`` or ``|``, else ``,`` between; an empty one has none."""
        if is_missing(value) or written(value).lower() == "nan":
            raise BadValue("the labels are missing; write an empty list, [], if none applies")
        found = listed(value)
        parts = [parsed(value)] if found is None else found
        if (found is None and not isinstance(value, str | int)) or any(isinstance(part, dict | list) for part in parts):
            raise BadValue(f"{value!r} is not a list of labels")
        names = label_names(value)
        if "" in names:
            raise BadValue(f"label {names.index('') + 1} of {written(value)!r} is empty")
        return names

    def read_label(self, value: Any, inputs: Sequence[Any] | None = None) -> list[int]:
        whole = written(value)  # which may have a comma
        return self.label_of([whole] if whole in self.label_ids else self.read_names(value))

    def label_of(self, names: Sequence[str]) -> list[int]:
        ids = super().label_of(names)
        return [int(number in ids) for number in range(len(self.label_names))]

    def ids_in(self, label: Any) -> Iterable[int]:
        return np.flatnonzero(label)

    def references(self, encoded: Mapping[str, Any]) -> Array:
        return super().references(encoded).astype(int).reshape(-1, len(self.label_names))

    def decode(self, outputs: Array) -> list[list[int]]:
        return list((outputs > 0).astype(int).tolist())

    def prediction_rows(self, outputs: Array, columns: Columns | None = None, *, probabilities: bool) -> list[Answer]:
        """Return ``labels``, a list of names; on request also ``probability_LABEL`` of each label."""
        rows = []
        for answer, row in zip(self.decode(outputs), expit(outputs), strict=True):
            names = [self.label_names[number] for number in self.ids_in(answer)]
            rows.append({"labels": names} | (self.named_probabilities(row) if probabilities else {}))
        return rows

    def constant_answer(self, train: Array, references: Array) -> tuple[str, Array]:
        """Return the labels that more than half of the rows of training have, otherwise the most common one."""
        share, odds = train.mean(axis=0), logit((train.sum(axis=0) + 1) / (len(train) + 2))
        chosen = share > 0.5 if share.max() > 0.5 else np.arange(len(share)) == share.argmax()
        constant = np.where(chosen, odds.clip(1e-3), odds.clip(max=-1e-3))
        return self.shown_label(chosen), np.tile(constant, (len(references), 1))

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        return super().describe_labels(rows) | {"without": sum(not any(label) for label in rows["label"][:])}


# A number -------------------------------------------------------------------------------------------------------------


def _correlation(correlate: Callable[[Array, Array], Any], labels: Array, predictions: Array) -> Any:
    """Compute a correlation; 0 where it is undefined: for fewer than two rows, or if one side is constant."""
    undefined = len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0
    return 0.0 if undefined else correlate(labels, predictions).statistic


# Errors of numbers, by their usual names: lower is better, so they are reported, and models selected by ``neg_...``.
_ERRORS = {"mse": skm.mean_squared_error, "rmse": skm.root_mean_squared_error, "mae": skm.mean_absolute_error}
_NEGATED = {error: f"neg_{function.__name__}" for error, function in _ERRORS.items()}


class Regression(SequenceType):
    """A number for each row. Labels and targets are floats, outputs ``(rows,)`` or ``(rows, 1)``."""

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
        "pearson": scored(partial(_correlation, pearsonr), np.ravel, span=2.0),
        "spearman": scored(partial(_correlation, spearmanr), np.ravel, span=2.0),
        "r2": scored(lambda labels, found: skm.r2_score(labels, found) if len(labels) > 1 else 0.0, np.ravel, math.inf),
        **{_NEGATED[e]: scored(lambda *rows, of=of: -of(*rows), np.ravel, math.inf) for e, of in _ERRORS.items()},
        **{name: replace(scored(error, np.ravel, math.inf), selects=False) for name, error in _ERRORS.items()},
    }

    @classmethod
    def from_labels(cls, train: Table, column: str) -> Self:
        """Make the kind; refuse training rows that all have the same number."""
        found = list(map(written, train.column(column)))
        if len({float(name) if number_form(name) in ("whole", "decimal") else name for name in found}) == 1:
            raise AttendropError(f"{train.path} has only one number, {found[0]!r}; training needs at least two.")
        return cls()

    @classmethod
    def read_names(cls, value: Any) -> list[str]:
        read_class(value)  # which numbers to leave out is asked for where others than numbers are labels
        return []

    def read_label(self, value: Any, inputs: Sequence[Any] | None = None) -> float:
        number, form = written(value), number_form(written(value))
        if form not in ("whole", "decimal") or not math.isfinite(float(number)):
            hint = f"; {HOW_TO_WRITE}" if form == "notation" else ""
            raise BadValue(f"the label {number!r} is not a finite number{hint}", 0)
        if abs(float(number)) >= 1e18:  # its square, a loss, is near the largest number of float32
            raise BadValue(f"the label {number!r} is too large to train on; scale the numbers, best to about 1", 0)
        return float(number)

    def decode(self, outputs: Array) -> list[float]:
        return [float(number) for number in np.ravel(outputs)]

    def constant_answer(self, train: Array, references: Array) -> tuple[float, Array]:
        mean = float(np.mean(train))
        return mean, np.full(len(references), mean)

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        labels = rows["label"][:]
        return {"numbers": {"min": min(labels), "mean": statistics.fmean(labels), "max": max(labels)}}


# One of several choices ----------------------------------------------------------------------------------------------


class MultipleChoice(TaskType):
    """The number of the correct one of several answers to a question.

    Each choice is read with the question, as a pair of texts. Rows may have different numbers of choices: batches are
    padded with choices that hold no token, see :mod:`attendrop.tasks.types.model_classes`. Labels and targets are
    numbers of choices, from 0. Outputs are an array of objects, the logits ``(choices,)`` of each row.

    ``label_names`` are what labels are written as: letters, or numbers from 0.
    """

    kind = "multiple-choice"
    label_type = "choice"
    output_kind = CLASSES
    inputs = ("question", "choices")
    least_inputs = 2
    most_inputs = 1 + len(LETTERS)
    auto_class = "AutoModelForMultipleChoice"
    pipeline_tag = "multiple-choice"
    example = """\
inputs = tokenizer(
    [question] * len(choices), choices, truncation=True, max_length=$max_length, padding=True, return_tensors="pt"
)
logits = model(**{name: values[None] for name, values in inputs.items()}).logits
answer = choices[logits.argmax()]"""
    default_metrics = ("accuracy",)
    fitted_at = ("accuracy", 0.9)
    attributed = "the logit of the predicted choice"
    has_probabilities = True
    padding = PADDED
    refused: ClassVar = {"attend": "it shows one sequence of tokens, and a question is read once with each choice"}
    baselines = ("majority",)
    prediction, label_words = "a choice", "the correct choice"
    output_names = ("score",)
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": Metric(right=lambda labels, outputs: np.equal([np.argmax(row) for row in outputs], labels))
    }

    def shown_label(self, label: Any) -> str:
        return LETTERS[label] if "A" in self.label_names else str(label)

    def configure(self, config: PreTrainedConfig) -> None:
        super().configure(config)  # of a model that scores one choice at a time
        config.id2label, config.label2id = dict(enumerate(self.label_names)), dict(self.label_ids)

    def model_class(self, config: PreTrainedConfig) -> Any:
        return choice_class(self.class_name(config)) or super().model_class(config)

    @classmethod
    def read_inputs(cls, *texts: Any) -> list[Any]:
        """Read a question; and its choices, as a list, or in several columns, of which the last ones may be empty."""
        question, *given = super().read_inputs(texts[0]) + list(texts[1:])
        for place, value in enumerate(given, start=1):
            if isinstance(value, dict | bool):
                raise BadValue(f"{value!r} is neither text nor a list of texts", place)
        found = listed(given[0]) if len(given) == 1 else None
        choices = list(map(written, given if found is None else found))
        while found is None and choices and not choices[-1]:
            choices.pop()
        if "" in choices:
            raise BadValue(f"choice {choices.index('') + 1} of {len(choices)} is empty")
        if not 2 <= len(choices) <= len(LETTERS):
            count = {0: "no choice", 1: "only one choice"}.get(len(choices), f"{len(choices)} choices")
            raise BadValue(f"{count}; give 2 to {len(LETTERS)}, in a column each, or as a list")
        return [question, choices]

    @classmethod
    def read_names(cls, value: Any) -> list[str]:
        """Accept a letter, or a whole number from 0."""
        name = read_class(value)
        if name.upper() in LETTERS and len(name) == 1:
            return [name.upper()]
        if number_form(name) == "whole" and int(float(name)) >= 0:
            return [str(int(float(name)))]
        raise BadValue(f"the label {name!r} is neither the letter of a choice nor its number, from 0")

    @classmethod
    def from_labels(cls, train: Table, column: str) -> Self:
        """Make the kind for labels as in the training file; refuse numbers that probably count from 1."""
        names = [name for value in train.column(column) for name in cls.read_names(value)]
        if names[0] in LETTERS:
            return cls(tuple(LETTERS[: LETTERS.find(max(names)) + 1]))
        numbers = [int(name) for name in names if name.isdecimal()]
        if min(numbers) > 0:
            raise AttendropError(
                f"{train.path}, column {column!r}: no label is 0, and choices count from 0; subtract 1 if yours count "
                "from 1, or write letters, from A."
            )
        return cls(tuple(map(str, range(max(numbers) + 1))))

    def read_label(self, value: Any, inputs: Sequence[Any] | None = None) -> int:
        (name,) = self.read_names(value)
        letters = "A" in self.label_names
        if (name in LETTERS) != letters:
            wanted = "letters" if letters else "numbers"
            raise BadValue(f"the label {written(value)!r} is not written as those of training, with {wanted}", 0)
        number = LETTERS.index(name) if letters else int(name)
        if inputs is not None and number >= (count := len(inputs[1])):
            last = f"from {self.shown_label(0)} to {self.shown_label(count - 1)}"
            raise BadValue(f"the label {written(value)!r} is none of the {count} choices, {last}")
        return number

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize the question with each choice: each column has a list for each choice of a row."""
        choices = columns["choices"]
        questions = [text for text, row in zip(columns["question"], choices, strict=True) for _ in row]
        flat = super().tokenize({"question": questions, "choices": list(chain(*choices))}, tokenizer, max_length)
        streams = {name: iter(values) for name, values in flat.items()}
        return BatchEncoding({name: [[next(each) for _ in row] for row in choices] for name, each in streams.items()})

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Pad rows with choices without tokens, and choices with tokens, to ``(rows, choices, tokens)``."""
        pad = super().collator(tokenizer)

        def collate(rows: list[Any]) -> Any:
            columns = [name for name in rows[0] if name != "labels"]
            most = max(len(row["input_ids"]) for row in rows)
            places = [(row, choice) for row in rows for choice in range(most)]
            flat = pad([{name: row[name][n] if n < len(row[name]) else [] for name in columns} for row, n in places])
            batch = {name: values.view(len(rows), most, -1) for name, values in flat.items()}
            if "labels" in rows[0]:
                batch["labels"] = flat["input_ids"].new_tensor([row["labels"] for row in rows])
            return batch

        return collate

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> Array:
        choices = encoded["input_ids"][:] if "input_ids" in encoded else raw
        return row_array([logits[: len(row)] for logits, row in zip(raw, choices, strict=True)])

    def prediction_rows(self, outputs: Array, columns: Columns | None = None, *, probabilities: bool) -> list[Answer]:
        """Return ``label`` and its ``probability``; on request ``probabilities``, a list of those of all choices."""
        rows = []
        for best, logits in zip(self.decode(outputs), outputs, strict=True):
            shares = np.round(softmax(np.asarray(logits, dtype=np.float64)), 6).tolist()
            answer = {"label": self.shown_label(best), "probability": shares[best]}
            rows.append(answer | ({"probabilities": shares} if probabilities else {}))
        return rows

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        return [(question, *choices) for question, choices in zip(rows["question"][:], rows["choices"][:], strict=True)]

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        counts = [len(choices) for choices in rows["choices"][:]]
        places = Counter(rows["label"][:])
        return {
            "choices": {"min": min(counts), "mean": statistics.fmean(counts), "max": max(counts)},
            "correct": {self.shown_label(place): places[place] for place in range(max(counts))},
        }
