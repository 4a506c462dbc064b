"""Base class of heads: model, encoding of labels, decoding and scoring of outputs for one kind of task."""

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

    from attendrop.tasks.heads.linear_fit import LinearFit

Array = np.ndarray[Any, np.dtype[Any]]
Columns = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Metric:
    """A score of model outputs.

    Attributes:
        score: Function that computes it from labels and outputs, one row per example.
        span: Largest possible difference of two scores.
        selects: Whether models can be selected by it, because greater is better.
    """

    score: Callable[[Array, Array], float]
    span: float = 1.0
    selects: bool = True


@dataclass(frozen=True)
class Head(ABC):
    """A kind of task, with its classes. To add one, write a subclass and add it to ``heads/registry.py``.

    *Labels* are the values of the column ``"label"`` of a data set, *targets* the ``labels`` passed to the model, and
    *outputs* an array with one row per example, as returned by :meth:`predict`. Rows are columns by name, as in
    :class:`attendrop.tasks.base.TaskData`.

    Attributes:
        label_names: The classes, in the order of their ids; empty if there are none.
        kind: Name of the kind of task, ``Task.kind``.
        label_type: Value of ``--label-type`` for labels of this kind.
        needs_labels: Whether rows for training and scoring need a label.
        auto_class: Class of transformers that loads models of this kind.
        problem_type: ``problem_type`` of the model's configuration, which selects the loss.
        pipeline_tag: Name of the task on the hub, for model cards.
        default_metrics: Metrics of custom files; models are selected by the first.
        metric_aliases: Alternative names of metrics.
        fitted_at: Metric, and its least value on the training rows for a model that has fitted them; None: unknown.
        answer_column: Column of the prediction; it is called ``predicted_...`` beside columns of the input.
        has_probabilities: Whether predictions can come with the probabilities of all classes.
        has_class_weights: Whether the loss supports class weights.
        has_pooling: Whether models read one vector for the whole input, for which there is a choice.
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
    fitted_at: ClassVar[tuple[str, float] | None] = None
    answer_column: ClassVar[str] = "label"
    has_probabilities: ClassVar[bool] = False
    has_class_weights: ClassVar[bool] = False
    has_pooling: ClassVar[bool] = False

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
        """Possible answers, for a list of tasks."""
        return (self.predicts,)

    # The model ------------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Tell whether a saved model has this head. Heads are tried in the order of the registry."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        """Make the head of a saved model that :meth:`recognizes` accepts."""

    @property
    def num_classes(self) -> int:
        """Number of classes whose logits form a row of the outputs; 0 if outputs are not class logits."""
        return 0

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the model's outputs per prediction."""
        return self.label_names

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class that loads the model with this configuration."""
        import transformers

        return getattr(transformers, self.auto_class)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the size, the names and the loss of the head in a model's configuration."""
        config.num_labels = len(self.output_names)
        config.problem_type = self.problem_type
        config.id2label = dict(enumerate(self.output_names))
        config.label2id = {name: number for number, name in enumerate(self.output_names)}

    def usage(self, num_texts: int, max_length: int, *, stock: bool = True) -> str:
        """Return Python code that loads and calls the model, for its card.

        Args:
            num_texts: Number of texts of an input.
            max_length: In tokens.
            stock: Whether the model's class is one of transformers.
        """
        texts = ", ".join(("text", "second_text")[:num_texts])
        imports, load = (
            f"from transformers import {self.auto_class}, AutoTokenizer",
            f"{self.auto_class}.from_pretrained",
        )
        if not stock:
            imports, load = "import attendrop\nfrom transformers import AutoTokenizer", "attendrop.load"
        return f"""{imports}

model = {load}(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
inputs = tokenizer({texts}, truncation=True, max_length={max_length}, return_tensors="pt")
logits = model(**inputs).logits"""

    def fit_linear(self, features: Array, targets: Sequence[Any], *, balanced: bool) -> LinearFit | None:
        """Fit a linear model of fixed features to targets, with as many outputs as the model has; None if none fits.

        Args:
            features: ``(rows, features)``.
            targets: As :meth:`targets` makes them.
            balanced: Whether classes have equal weight, instead of rows.
        """
        return None

    # Labels and texts of custom files -------------------------------------------------------------------------------

    @staticmethod
    def text_problem(value: Any) -> str | None:
        """Describe what is wrong with a text of a file, or return None."""
        return text_problem(value)

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Describe what is wrong with a label, independent of the classes, or return None."""
        return value_problem(value)

    @classmethod
    @abstractmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str) -> Self:
        """Make the head for the labels in files.

        Args:
            tables: By split: "train", "dev" or both.
            column: Column of the labels; none has a :meth:`value_problem`.

        Raises:
            AttendropError: No model can be trained on these labels.
        """

    @abstractmethod
    def label_problem(self, value: Any) -> str | None:
        """Describe what is wrong with a label that has no :meth:`value_problem`, or return None."""

    @abstractmethod
    def read_labels(self, values: Sequence[Any]) -> list[Any]:
        """Convert values of a file that have no :meth:`label_problem` to labels."""

    # Encoding -------------------------------------------------------------------------------------------------------

    def tokenize(self, columns: Columns, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> BatchEncoding:
        """Tokenize the texts of rows, without padding; with ``max_length=None``, without truncation."""
        texts = [columns[name] for name in ("text", "text_pair") if name in columns]
        limits: dict[str, Any] = (
            {"verbose": False} if max_length is None else {"truncation": True, "max_length": max_length}
        )
        encoding: BatchEncoding = tokenizer(*texts, **limits)
        return encoding

    def lengths(self, encoded: Mapping[str, Any]) -> list[int]:
        """Return the length of each row, in tokens."""
        return [len(ids) for ids in encoded["input_ids"]]

    def token_ids(self, encoded: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        """Return all token ids of each row."""
        return encoded["input_ids"]  # type: ignore[no-any-return]

    @abstractmethod
    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: PreTrainedTokenizerBase) -> list[Any]:
        """Make the ``labels`` of the model, without padding."""

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[Any]], Any]:
        """Return a function that makes a batch of encoded rows: tensors, padded to the longest."""
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(tokenizer)

    # Outputs --------------------------------------------------------------------------------------------------------

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Array:
        """Compute the outputs of a model for a batch; called without gradients."""
        logits: Array = model(**batch).logits.float().cpu().numpy()
        return logits

    def trainer_outputs(self, logits: Any, labels: Any) -> Any:
        """Select the outputs that the trainer keeps for scoring: its ``preprocess_logits_for_metrics``."""
        return logits[0] if isinstance(logits, tuple) else logits  # some models return more than logits

    def concatenate(self, parts: Sequence[Any]) -> Array:
        """Concatenate the outputs, or targets, of several batches."""
        return np.concatenate([np.asarray(part) for part in parts])

    def mask_outputs(self, outputs: Array, encoded: Mapping[str, Any]) -> Array:
        """Mark outputs that are not predictions, such as those for special tokens."""
        return outputs

    def checked(self, outputs: Array) -> Array:
        """Convert outputs to float64.

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
        """Return the predicted labels."""

    @abstractmethod
    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return the columns of a file of predictions for each row, :attr:`answer_column` first."""

    # Scores ---------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics by name; the names are those of scikit-learn's scorers where it has them."""

    def constant_answer(self, train_targets: Array, targets: Array) -> tuple[str | float, Array] | None:
        """Return the best constant prediction, and outputs that make it for all ``targets``; or None."""
        return None

    def predicted_counts(self, outputs: Array) -> dict[str, int]:
        """Count the predictions of each class, for classes with any; empty if there are no classes."""
        return {}

    # Splits ---------------------------------------------------------------------------------------------------------

    @property
    def strata(self) -> tuple[str, ...]:
        """Names of the groups by which samples are stratified."""
        return ("the data",)

    def strata_of(self, rows: Dataset) -> Sequence[int]:
        """Return the group of each row, an index of :attr:`strata`."""
        return [0] * len(rows)

    # Reports on data ------------------------------------------------------------------------------------------------

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        """Return the texts of each row, for comparison and display."""
        columns = [rows[name][:] for name in ("text", "text_pair") if name in rows.column_names]
        return list(zip(*columns, strict=True))

    def shown_label(self, label: Any) -> Any:
        """Return a label for display."""
        return label

    @abstractmethod
    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        """Summarize the labels of some rows as JSON values, for :meth:`label_lines`."""

    @abstractmethod
    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        """Return the lines of a table of labels: a title, and a cell for each result of :meth:`describe_labels`."""

    def label_warnings(self, train: Mapping[str, Any]) -> list[str]:
        """Return warnings about the training labels, given their :meth:`describe_labels`."""
        return []

    def similar_classes(self) -> list[list[str]]:
        """Return pairs of classes that differ only in case and spaces."""
        return []
