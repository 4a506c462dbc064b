"""Multiple choice: the correct one of several answers to a question."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
from datasets import Dataset
from scipy.special import softmax
from transformers import BatchEncoding, PreTrainedConfig

from attendrop.attribution.predictions import CLASSES
from attendrop.errors import AttendropError
from attendrop.tasks.table import Table
from attendrop.tasks.types.base import Array, Columns, Metric, TaskType, Tokenizer, row_array
from attendrop.tasks.types.model_classes import PADDED, choice_class
from attendrop.tasks.values import (
    LETTERS,
    choice_number,
    is_letter,
    read_choices,
    text_problem,
    value_problem,
    written,
)


class MultipleChoice(TaskType):
    """Head that predicts the number of the correct choice.

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

    @property
    def answers(self) -> tuple[str, ...]:
        return (f"up to {len(self.label_names)} choices",)

    @property
    def _has_letters(self) -> bool:
        return self.label_names[:1] == ("A",)

    def shown_label(self, label: Any) -> str:
        return LETTERS[label] if self._has_letters else str(label)

    def configure(self, config: PreTrainedConfig) -> None:
        super().configure(config)  # of a model that scores one choice at a time
        config.id2label = dict(enumerate(self.label_names))
        config.label2id = {name: number for number, name in enumerate(self.label_names)}

    def model_class(self, config: PreTrainedConfig) -> Any:
        return choice_class(self.class_name(config)) or super().model_class(config)

    @staticmethod
    def text_problem(value: Any, column: int = 0) -> str | None:
        """Accept a question; as choices also a list, also as JSON, and nothing where a row has fewer choices."""
        if column == 0:
            return text_problem(value)
        return f"{value!r} is neither text nor a list of texts" if isinstance(value, dict | bool) else None

    @classmethod
    def texts_problem(cls, texts: Sequence[Any]) -> str | None:
        """Refuse rows with an empty choice before others, and with fewer than two choices."""
        choices = read_choices(texts[1:])
        empty = [number for number, choice in enumerate(choices, start=1) if not choice]
        if empty:
            return f"choice {empty[0]} of {len(choices)} is empty"
        if not 2 <= len(choices) <= len(LETTERS):
            count = {0: "no choice", 1: "only one choice"}.get(len(choices), f"{len(choices)} choices")
            return f"{count}; give 2 to {len(LETTERS)}, in a column each, or as a list"
        return None

    @classmethod
    def read_texts(cls, texts: Sequence[Any]) -> list[Any]:
        return [texts[0], read_choices(texts[1:])]

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Accept a letter, or a whole number from 0."""
        problem = value_problem(value)
        if problem is not None or choice_number(value) is not None:
            return problem
        return f"the label {written(value)!r} is neither the letter of a choice nor its number, from 0"

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head for labels as in "train"; refuse numbers that probably count from 1."""
        source = tables["train"]
        labels = source.column(column)
        numbers = [choice_number(label) or 0 for label in labels]
        if is_letter(labels[0]):
            return cls(tuple(LETTERS[: max(numbers) + 1]))
        if min(numbers) > 0:
            raise AttendropError(
                f"{source.path}, column {column!r}: no label is 0, and choices count from 0; subtract 1 if yours count "
                "from 1, or write letters, from A."
            )
        return cls(tuple(map(str, range(max(numbers) + 1))))

    def label_problem(self, value: Any) -> str | None:
        if is_letter(value) == self._has_letters:
            return None
        wanted = "letters" if self._has_letters else "numbers"
        return f"the label {written(value)!r} is not written as those of training, with {wanted}"

    def row_problem(self, inputs: Sequence[Any], label: Any) -> str | None:
        choices, number = len(inputs[1]), choice_number(label) or 0
        if number < choices:
            return None
        last = f"from {self.shown_label(0)} to {self.shown_label(choices - 1)}"
        return f"the label {written(label)!r} is none of the {choices} choices, {last}"

    def read_labels(self, values: Sequence[Any]) -> list[int]:
        return [choice_number(value) or 0 for value in values]

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
        if "input_ids" not in encoded:
            return row_array(list(raw))
        return row_array([logits[: len(row)] for logits, row in zip(raw, encoded["input_ids"][:], strict=True)])

    def decode(self, outputs: Array) -> list[int]:
        return [int(np.argmax(row)) for row in outputs]

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return ``label`` and its ``probability``; on request ``probabilities``, a list of those of all choices."""
        rows = []
        for best, logits in zip(self.decode(outputs), outputs, strict=True):
            shares = np.round(softmax(np.asarray(logits, dtype=np.float64)), 6).tolist()
            answer = {"label": self.shown_label(best), "probability": shares[best]}
            rows.append(answer | ({"probabilities": shares} if probabilities else {}))
        return rows

    def constant_answer(self, train: Array, references: Array) -> tuple[str, Array]:
        counts = np.bincount(train, minlength=len(self.label_names))
        return self.shown_label(counts.argmax()), row_array([np.log(counts + 1)] * len(references))

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        return [(question, *choices) for question, choices in zip(rows["question"][:], rows["choices"][:], strict=True)]

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        counts = [len(choices) for choices in rows["choices"][:]]
        places = Counter(rows["label"][:])
        return {
            "choices": {"min": min(counts), "mean": statistics.fmean(counts), "max": max(counts)},
            "correct": {self.shown_label(place): places[place] for place in range(max(counts))},
        }
