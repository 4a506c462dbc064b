"""Tiny models with adapters of PEFT."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, PeftConfig, get_peft_model
from torch import Tensor

from helpers import zoo

_TASKS = {"class": "SEQ_CLS", "lm": "CAUSAL_LM", "tokens": "TOKEN_CLS", "seq2seq": "SEQ_2_SEQ_LM"}


def lora(**options: Any) -> LoraConfig:
    """Options of LoRA of rank 2 on all linear layers but the head."""
    return LoraConfig(**({"r": 2, "lora_alpha": 4, "target_modules": "all-linear"} | options))


def adapted(name: str, config: PeftConfig | None = None, *, trained: bool = True, **options: Any) -> Any:
    """Make a model of the zoo with an adapter, LoRA if not given, whose weights are as after training."""
    config = config or lora()
    config.task_type = config.task_type or _TASKS[zoo.ZOO[name].task]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        model = get_peft_model(zoo.build(name, **options), config)
        for key, parameter in model.named_parameters():
            if trained and "modules_to_save" not in key and parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.train()


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def frozen(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
