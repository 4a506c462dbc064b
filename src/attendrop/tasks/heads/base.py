"""What a kind of task brings: its model, how labels become targets, how outputs become predictions and scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.label_column import text_problem, value_problem
from attendrop.tasks.table_files import Table

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Array = np.ndarray[Any, np.dtype[Any]]
Columns = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Metric:
    """A score of a model's outputs.

    Attributes:
        score: Computes it from labels and outputs, one row each.
        span: How far apart two scores can be.
        selects: Whether models may be selected by it, as more is better.
    """

    score: Callable[[Array, Array], float]
    span: float = 1.0
    selects: bool = True


@dataclass(frozen=True)
class Head(ABC):
    """A kind of task, with its classes. To add one, write a subclass and add it to ``heads/registry.py``.

    *Labels* are what a data set has in its column ``"label"``, *targets* what the model is given as ``labels``, and
    *outputs* an array with one row per example, as :meth:`predict` returns it. Rows are columns by name, as in
    :class:`attendrop.tasks.base.TaskData`.

    Attributes:
        label_names: The classes, where the position is the class id; empty if there are none.
        kind: Name of the kind, the ``kind`` of a task.
        label_type: What users call the labels of their files: the value of ``--label-type``.
        needs_labels: Whether rows to train or to score need a label of their own.
        auto_class: Class of transformers that loads such a model.
        problem_type: What the model's configuration says of the loss.
        pipeline_tag: The hub's name of the task, for model cards.
        default_metrics: Scores of own files; the first decides.
        metric_aliases: Other names of metrics.
        answer_column: Column of a file of predictions that is called ``predicted_...`` beside columns of the input.
        has_probabilities: Whether predictions can come with the probabilities of all classes.
        has_class_weights: Whether the loss can weigh classes.
    """

    label_names: tuple[str, ...] = ()

    kind: ClassVar[str]
    label_type: ClassVar[str]
    needs_labels: ClassVar[bool] = True
    auto_class: ClassVar[str]
    problem_type: ClassVar[Any] = None
    pipeline_tag: ClassVar[str]
    default_metrics: ClassVar[tuple[str, ...]]
    metric_aliases: ClassVar[Mapping[str, str]] = {}
    answer_column: ClassVar[str] = "label"
    has_probabilities: ClassVar[bool] = False
    has_class_weights: ClassVar[bool] = False

    # In words -------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def predicts(self) -> str:
        """What the model predicts, such as "2 classes" or "a number"."""

    @property
    def labels_are(self) -> str:
        """What the labels are, such as "numbers to predict"."""
        return self.predicts

    @property
    def answers(self) -> tuple[str, ...]:
        """What an answer can be, for a list of tasks."""
        return (self.predicts,)

    # The model ------------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Whether a saved model has this head. Heads are asked in the order of the registry."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        """The head of a saved model that :meth:`recognizes` accepts."""

    @property
    def num_classes(self) -> int:
        """Of how many classes a row of the outputs holds logits; 0: outputs are something else."""
        return 0

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the model's outputs for one prediction."""
        return self.label_names

    def model_class(self) -> Any:
        """The class of transformers that loads such a model."""
        import transformers

        return getattr(transformers, self.auto_class)

    def configure(self, config: PreTrainedConfig) -> None:
        """Write the size, the names and the loss of the head into a model's configuration."""
        config.num_labels = len(self.output_names)
        config.problem_type = self.problem_type
        config.id2label = dict(enumerate(self.output_names))
        config.label2id = {name: number for number, name in enumerate(self.output_names)}

    def usage(self, num_texts: int, max_length: int) -> str:
        """The lines of Python that load and call a model, for its card."""
        texts = ", ".join(("text", "second_text")[:num_texts])
        return f"""from transformers import {self.auto_class}, AutoTokenizer

model = {self.auto_class}.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
inputs = tokenizer({texts}, truncation=True, max_length={max_length}, return_tensors="pt")
logits = model(**inputs).logits"""

    # Labels and texts of own files ----------------------------------------------------------------------------------

    @staticmethod
    def text_problem(value: Any) -> str | None:
        """Say what is wrong with a text of a file; None if nothing is."""
        return text_problem(value)

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Say what is wrong with a label whatever the classes are; None if nothing is."""
        return value_problem(value)

    @classmethod
    @abstractmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str) -> Self:
        """Make the head of the labels in files.

        Args:
            tables: By split: "train", "dev" or both.
            column: That of the labels; none has a :meth:`value_problem`.

        Raises:
            AttendropError: Nothing can be learnt from these labels.
        """

    @abstractmethod
    def label_problem(self, value: Any) -> str | None:
        """Say what is wrong with a label without a :meth:`value_problem`; None if nothing is."""

    @abstractmethod
    def read_labels(self, values: Sequence[Any]) -> list[Any]:
        """Make labels of the values of a file, which have no :meth:`label_problem`."""

    # Encoding -------------------------------------------------------------------------------------------------------

    def tokenize(self, columns: Columns, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> BatchEncoding:
        """Tokenize the texts of rows, without padding; ``max_length=None`` does not cut them."""
        texts = [columns[name] for name in ("text", "text_pair") if name in columns]
        limits: dict[str, Any] = (
            {"verbose": False} if max_length is None else {"truncation": True, "max_length": max_length}
        )
        encoding: BatchEncoding = tokenizer(*texts, **limits)
        return encoding

    def lengths(self, encoded: Mapping[str, Any]) -> list[int]:
        """The length of each row, in tokens."""
        return [len(ids) for ids in encoded["input_ids"]]

    def token_ids(self, encoded: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        """All token ids of each row."""
        return encoded["input_ids"]  # type: ignore[no-any-return]

    @abstractmethod
    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: PreTrainedTokenizerBase) -> list[Any]:
        """Make what the model is given as ``labels``, without padding."""

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[Any]], Any]:
        """A function that makes a batch of encoded rows: tensors, padded to the longest."""
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(tokenizer)

    # Outputs --------------------------------------------------------------------------------------------------------

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Array:
        """The outputs of a model for a batch; called without gradients."""
        logits: Array = model(**batch).logits.float().cpu().numpy()
        return logits

    def trainer_outputs(self, logits: Any, labels: Any) -> Any:
        """What the trainer keeps of the model's outputs for scores: its ``preprocess_logits_for_metrics``."""
        return logits[0] if isinstance(logits, tuple) else logits  # some models return more than logits

    def concatenate(self, parts: Sequence[Any]) -> Array:
        """Join outputs, or targets, of some rows each."""
        return np.concatenate([np.asarray(part) for part in parts])

    def mask_outputs(self, outputs: Array, encoded: Mapping[str, Any]) -> Array:
        """Mark what answers nothing in the outputs for encoded rows, such as those for special tokens."""
        return outputs

    def checked(self, outputs: Array) -> Array:
        """The outputs in float64.

        Raises:
            AttendropError: An output is NaN or infinite.
        """
        outputs = np.asarray(outputs, dtype=np.float64)
        good = np.isfinite(outputs.reshape(len(outputs), -1)).all(axis=1) if len(outputs) else np.ones(0, dtype=bool)
        if not good.all():
            raise AttendropError(
                f"the model's output is NaN or infinite for {int(np.sum(~good))} of {len(good)} rows: training "
                "diverged; lower the learning rate."
            )
        return outputs

    @abstractmethod
    def decode(self, outputs: Array) -> list[Any]:
        """The labels that outputs predict."""

    @abstractmethod
    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """What a file of predictions says of each row: :attr:`answer_column` first, by column."""

    # Scores ---------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics that fit, by name: those of scikit-learn's scorers, where it has them."""

    def constant_answer(self, train_targets: Array, targets: Array) -> tuple[str | float, Array] | None:
        """The best answer that does not look at the texts, and outputs that give it to all ``targets``; or None."""
        return None

    def predicted_counts(self, outputs: Array) -> dict[str, int]:
        """How many rows are predicted to be of each class, for classes with any; empty if there are no classes."""
        return {}

    # Splits ---------------------------------------------------------------------------------------------------------

    @property
    def strata(self) -> tuple[str, ...]:
        """The groups of which samples take equal fractions, in words."""
        return ("the data",)

    def strata_of(self, rows: Dataset) -> Sequence[int]:
        """The group of each row, a position in :attr:`strata`."""
        return [0] * len(rows)

    # Reports on data ------------------------------------------------------------------------------------------------

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        """The texts of each row, to compare and to show."""
        columns = [rows[name][:] for name in ("text", "text_pair") if name in rows.column_names]
        return list(zip(*columns, strict=True))

    def shown_label(self, label: Any) -> Any:
        """A label as people know it."""
        return label

    @abstractmethod
    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        """Describe the labels of some rows in plain values, for :meth:`label_lines`."""

    @abstractmethod
    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        """The lines of a table about labels: a title, and a cell for each part, as :meth:`describe_labels` says it."""

    def label_warnings(self, train: Mapping[str, Any]) -> list[str]:
        """What is odd about the labels of the training part that :meth:`describe_labels` describes."""
        return []

    def similar_classes(self) -> list[list[str]]:
        """Pairs of classes that differ only in case and spaces."""
        return []
