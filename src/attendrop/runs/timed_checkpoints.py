"""Training with checkpoints by the clock instead of by epochs: a short run writes none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput

from attendrop.runs.run_trainer import RunTrainer
from attendrop.trained_tensors import trained_tensors

_BEST = "best_weights.safetensors"


class SaveBySeconds(TrainerCallback):
    """Save a checkpoint at the first step that ends ``seconds`` or more after the last one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.last = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if time.monotonic() - self.last >= self.seconds:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = time.monotonic()


class BestInMemoryTrainer(RunTrainer):
    """Trainer that holds the weights of the best epoch in memory, since no checkpoint may have them.

    When training ends, the model has these weights. Each checkpoint has them beside the latest ones.
    """

    best_weights: dict[str, Tensor] | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in ``RegularizedTrainer``."""
        if isinstance(resume_from_checkpoint, str) and (Path(resume_from_checkpoint) / _BEST).exists():
            self.best_weights = load_file(Path(resume_from_checkpoint) / _BEST)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        best = super()._determine_best_metric(metrics, trial)
        if best:
            model = self.accelerator.unwrap_model(self.model)
            self.best_weights = {name: _copy(tensor.detach()) for name, tensor in trained_tensors(model).items()}
        return best

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.best_weights is not None and self.args.should_save:
            save_file(self.best_weights, Path(output_dir) / _BEST)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        found = super()._finalize_training(*args, **kwargs)
        if self.best_weights is not None:
            with torch.no_grad():
                for name, tensor in trained_tensors(self.accelerator.unwrap_model(self.model)).items():
                    tensor.copy_(self.best_weights[name])
        return found


def _copy(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
