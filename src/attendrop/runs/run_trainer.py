"""Trainer of runs: evaluates rows of similar length together, and returns their outputs in the order of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers import EvalPrediction
from transformers.trainer_utils import EvalLoopOutput

from attendrop.peft_models import transformers_model
from attendrop.tasks.heads.base import Head
from attendrop.tasks.tokenization import columns_of
from attendrop.training.model_call import replaced_attribute
from attendrop.training.trainer import RegularizedTrainer


class RunTrainer(RegularizedTrainer):
    """Trainer whose evaluation starts with the longest rows.

    Metrics, and callers of ``predict``, get predictions and labels in the order of the rows, so that these can be
    compared with columns of the rows that the trainer does not see.

    Args:
        *args: As for ``RegularizedTrainer``.
        head: Head of the task, which makes the predictions of what the model returns.
        **kwargs: As for ``RegularizedTrainer``.
    """

    def __init__(self, *args: Any, head: Head, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head = head
        tokenizer: Any = self.processing_class
        self._training_collator: Any = head.training_collator(self.data_collator, tokenizer, self.args.seed)
        if head.rewarded_by_loss:
            self.compute_reward_metrics = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """As in ``transformers.Trainer``, with the head's collator of training rows."""
        with replaced_attribute(self, "data_collator", self._training_collator):
            return super().get_train_dataloader()

    def _begin_epoch(self, epoch: int) -> None:
        super()._begin_epoch(epoch)
        if hasattr(self._training_collator, "epoch"):
            self._training_collator.epoch = epoch

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """As in ``transformers.Trainer``, with the raw outputs of the head instead of the logits."""
        loss, logits, labels = super().prediction_step(model, inputs, *args, **kwargs)
        if logits is not None:
            batch, unwrapped = self._prepare_inputs(inputs), self.accelerator.unwrap_model(model)
            with torch.no_grad():
                logits = self.head.trainer_outputs(unwrapped, batch, logits)
        return loss, logits, labels

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

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """As in ``transformers.Trainer``, but for weights that no checkpoint has: tied ones, and fixed positions."""
        model: Any = transformers_model(self.model)
        absent = {*model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or ())}
        missing = [key for key in load_result.missing_keys if key not in absent]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the targets, to which the collator may give other names than columns have, and columns for training."""
        super()._set_signature_columns_if_needed()
        known: Any = self._signature_columns
        self._signature_columns: Any = [*known, *({"labels", *self.head.training_columns} - {*known})]

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        return _Order(self._longest_first(eval_dataset))

    def _longest_first(self, rows: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.argsort(-np.asarray(self.head.lengths(columns_of(rows))), kind="stable")


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
