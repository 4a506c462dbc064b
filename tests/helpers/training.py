"""Training of tiny models, and values that tests compare."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from attendrop import ADDrop, RegularizedTrainer
from attendrop.methods.core.base import Method
from helpers import zoo
from helpers.device import ON_CPU

ALWAYS = ADDrop(p=0.5, q=0.5, layers="all")
LENGTHS = (9, 4, 6, 5, 8, 3, 7, 5, 6, 6, 4, 9, 3, 8, 7, 5)


def examples(name: str = "bert", count: int = 16) -> list[dict[str, Any]]:
    return list(zoo.rows(name, [LENGTHS[i % 16] for i in range(count)]))


def take_step(reg: Any, *micro_batches: zoo.Batch) -> None:
    """Take one optimizer step in a loop of one's own."""
    for batch in micro_batches:
        (reg.loss(batch) / len(micro_batches)).backward()
    reg.training.optimizer.step()
    reg.training.optimizer.zero_grad()
    reg.step()


def trainer_of(
    folder: Path,
    method: Method | None = ALWAYS,
    *,
    model: Any = None,
    kind: type[RegularizedTrainer] = RegularizedTrainer,
    **options: Any,
) -> RegularizedTrainer:
    """Make a trainer of a tiny BERT, two epochs of four steps; accepts training arguments and trainer arguments."""
    names = {*inspect.signature(Trainer.__init__).parameters, "reward_dataset"}
    given = {key: options.pop(key) for key in list(options) if key in names}
    defaults = {
        **{"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 1e-2, "seed": 3},
        **{"lr_scheduler_type": "constant", "logging_strategy": "epoch", "save_strategy": "no"},
        **{"report_to": "none", "disable_tqdm": True, "use_cpu": ON_CPU},
    }
    args = TrainingArguments(output_dir=str(folder), **{**defaults, **options})
    given = {"train_dataset": examples(), "data_collator": zoo.collate} | given
    model = None if "model_init" in given else model if model is not None else zoo.build("bert", dropout=0.1)
    return kind(model=model, args=args, regularizer=method, **given)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def history(trainer: Trainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


class Stop(TrainerCallback):
    """Ends the process, as it were, after an optimizer step, also after the last one."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt

    on_train_end = on_step_begin


class Gradients(TrainerCallback):
    """Recorder of the gradients of every optimizer step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        named = [(name.removeprefix("module."), p.grad) for name, p in model.named_parameters()]  # DDP's prefix
        self.steps.append({name: gradient.clone() for name, gradient in named if gradient is not None})


def moved(model: Any) -> dict[str, Tensor]:
    """Change all weights, as training would; returns what they were."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.2
    return before
