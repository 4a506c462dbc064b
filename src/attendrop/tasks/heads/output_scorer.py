"""How outputs of a model are computed, read as predictions, and scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from attendrop.errors import AttendropError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Metric:
    """A score of model outputs.

    Attributes:
        score: Function that computes it from labels and outputs, one row per example.
        span: Largest possible difference of two scores.
        selects: Whether models can be selected by it, because greater is better.
        right: Function that tells of each row whether it is right; None: the score is not the fraction of these rows.
    """

    score: Callable[[Array, Array], float]
    span: float = 1.0
    selects: bool = True
    right: Callable[[Array, Array], Array] | None = None

    @classmethod
    def counting(cls, right: Callable[[Array, Array], Array]) -> Self:
        """Make the fraction of rows that are right."""
        return cls(lambda labels, outputs: float(np.mean(right(labels, outputs))), right=right)


class OutputScorer(ABC):
    """Outputs of a kind of task: from the model's pass to predictions and metrics.

    *Raw outputs* are what passes of the model return, collected over batches, and *outputs* an array with one entry per
    row of the data, which :meth:`row_outputs` makes of them. Metrics compare outputs with *references*, one entry per
    row.

    Attributes:
        default_metrics: Metrics of custom files; models are selected by the first.
        metric_aliases: Alternative names of metrics.
        answer_column: Column of the prediction; it is called ``predicted_...`` beside columns of the input.
        has_probabilities: Whether predictions can come with the probabilities of all classes.
        rewarded_by_loss: Whether methods are not rewarded by scores, because these are not of the logits of one pass.
        reads_labels: Whether raw outputs depend on the labels, if there are any.
        in_sequence: Whether rows are parts of running text, so that neighbours are alike.
    """

    default_metrics: ClassVar[tuple[str, ...]]
    metric_aliases: ClassVar[Mapping[str, str]] = {}
    answer_column: ClassVar[str] = "label"
    has_probabilities: ClassVar[bool] = False
    rewarded_by_loss: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = False
    in_sequence: ClassVar[bool] = False

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Array:
        """Compute the raw outputs of a model for a batch; called without gradients."""
        logits: Array = model(**batch).logits.float().cpu().numpy()
        return logits

    def trainer_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], logits: Any) -> Any:
        """Return the raw outputs that a trainer keeps for scoring, as tensors.

        Args:
            model: The model, in evaluation mode; called without gradients.
            batch: The batch, with labels.
            logits: What the model returned for it, beside the loss.
        """
        return logits[0] if isinstance(logits, tuple) else logits  # some models return more than logits

    def concatenate(self, parts: Sequence[Any]) -> Array:
        """Concatenate the raw outputs of several batches."""
        return np.concatenate([np.asarray(part) for part in parts])

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Array:
        """Convert raw outputs to outputs, one entry per row of the data, that can be decoded and scored.

        Args:
            raw: Raw outputs of all encoded rows, in their order.
            encoded: All columns that :meth:`tokenize` made, and "labels"; in training, of the batches on which a
                method is rewarded, only "labels".
            tokenizer: The tokenizer.
        """
        return raw

    def references(self, encoded: Mapping[str, Any]) -> Array:
        """Return what outputs are scored against, one entry per row of the data; as for :meth:`row_outputs`."""
        return self.label_array(encoded["labels"][:])

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Convert labels of rows to references."""
        return np.asarray(labels)

    def checked(self, outputs: Array) -> Array:
        """Convert outputs to float64, unless they are objects.

        Raises:
            AttendropError: An output is NaN or infinite.
        """
        outputs = outputs if outputs.dtype == object else np.asarray(outputs, dtype=np.float64)
        good = self.finite(outputs) if len(outputs) else np.ones(0, dtype=bool)
        if not good.all():
            raise AttendropError(
                f"the model's output is NaN or infinite for {int(np.sum(~good))} of {len(good)} rows: training "
                "diverged; lower the learning rate."
            )
        return outputs

    def finite(self, outputs: Array) -> Array:
        """Tell of each row whether its outputs are what a model can return that did not diverge."""
        good: Array = np.asarray(np.isfinite(outputs.reshape(len(outputs), -1)).all(axis=1))
        return good

    @abstractmethod
    def decode(self, outputs: Array) -> list[Any]:
        """Return the predicted labels."""

    @abstractmethod
    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return the columns of a file of predictions for each row, :attr:`answer_column` first."""

    # Scores -----------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics by name; the names are those of scikit-learn's scorers where it has them."""

    def constant_answer(self, train: Array, references: Array) -> tuple[str | float, Array] | None:
        """Return the best constant prediction, given the references of training, and outputs that make it; or None."""
        return None

    def predicted_counts(self, outputs: Array) -> dict[str, int]:
        """Count the predictions of each class, for classes with any; empty if there are no classes."""
        return {}
