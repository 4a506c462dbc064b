"""Trainer of runs: evaluates rows of similar length together, and returns their outputs in the order of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Sampler
from transformers import EvalPrediction
from transformers.trainer_utils import EvalLoopOutput

from attendrop.training.model_call import replaced_attribute
from attendrop.training.sampler import row_lengths
from attendrop.training.trainer import RegularizedTrainer


class RunTrainer(RegularizedTrainer):
    """Trainer whose evaluation starts with the longest rows.

    Metrics, and callers of ``predict``, get predictions and labels in the order of the rows, so that these can be
    compared with columns of the rows that the trainer does not see.
    """

    def evaluation_loop(self, dataloader: DataLoader[Any], *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in ``transformers.Trainer``, but for the order of the outputs."""
        places = np.argsort(self._longest_first(dataloader.dataset), kind="stable")
        compute = self.compute_metrics

        def compute_in_order(found: EvalPrediction) -> dict[str, float]:
            assert compute is not None
            return compute(EvalPrediction(_ordered(found.predictions, places), _ordered(found.label_ids, places)))

        with replaced_attribute(self, "compute_metrics", None if compute is None else compute_in_order):
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        return output._replace(
            predictions=_ordered(output.predictions, places), label_ids=_ordered(output.label_ids, places)
        )

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        return _Order(self._longest_first(eval_dataset))

    def _longest_first(self, rows: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        lengths = row_lengths(rows, rows, self.args.length_column_name)
        return np.argsort(-np.asarray(lengths), kind="stable")


class _Order(Sampler[int]):
    """Sampler of rows in a given order."""

    def __init__(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __len__(self) -> int:
        return len(self.rows)


def _ordered(values: Any, places: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """Reorder an array of rows, or each array of a tuple; None stays None."""
    if values is None:
        return None
    if isinstance(values, tuple | list):
        return tuple(_ordered(each, places) for each in values)
    return values[places]
