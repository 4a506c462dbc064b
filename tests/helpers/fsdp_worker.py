"""The jobs of ``test_fsdp.py``, which two processes run together, and one alone."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from attendrop import Method, regularize
from helpers import zoo
from helpers.checkpointing import checkpoint_activations
from helpers.table import BY_MICRO_BATCH, TABLE

LENGTHS = (9, 4, 6, 5, 8, 3, 7, 5)
BLOCKS = {"bert": "bert.encoder.layer", "llama-class": "model.layers", "bart-class": "model.decoder.layers"}
ON_PARTS = {
    name: method
    for name, method in TABLE.items()
    if name not in BY_MICRO_BATCH and not any(part.needs_whole_model for part in method.parts)
}
# What is trained: a name in the zoo, a row of the table, and whether blocks are recomputed in the backward pass.
JOBS = {
    **{f"bert {name}": ("bert", name, False) for name in ON_PARTS},
    **{f"llama-class {name}": ("llama-class", name, False) for name in ("ad-drop", "layerdrop", "variational-dropout")},
    "bart-class ad-drop": ("bart-class", "ad-drop", False),
    **{f"bert {name}, recomputed": ("bert", name, True) for name in ("ad-drop", "layerdrop", "r3f")},
}


def divided(name: str, world: int, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """Make a model whose blocks, and the rest of it, are divided among so many processes, with options of FSDP2."""
    model = zoo.build(name, dtype=dtype)
    mesh = init_device_mesh("cpu", (world,))
    for block in model.get_submodule(BLOCKS[name]):
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(model: nn.Module, name: str, method: Method, rank: int, world: int) -> dict[str, Any]:
    """Take three steps of two micro-batches of four rows, of which each process has its part."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    examples = zoo.rows(name, LENGTHS)
    size = 4 // world
    gradients = []
    train_data = [zoo.collate(examples)]
    with regularize(model, method, optimizer=optimizer, total_steps=3, train_data=train_data) as reg:
        reg.set_epoch(0)
        for _ in range(3):
            for first in (rank * size, 4 + rank * size):
                (reg.loss(zoo.collate(examples[first : first + size])) / 2).backward()
            named = model.named_parameters()
            gradients.append({name: whole(each.grad) for name, each in named if each.grad is not None})
            optimizer.step()
            optimizer.zero_grad()
            reg.step()
        logs = reg.logs()
    weights = {name: whole(each) for name, each in model.named_parameters()}
    return {"gradients": gradients, "weights": weights, "logs": logs}


def results(folder: Path, rank: int, world: int) -> dict[str, Any]:
    """Run all jobs."""
    found = {}
    for job, (name, row, recomputed) in JOBS.items():
        model = divided(name, world) if world > 1 else zoo.build(name, dtype=torch.float64)
        if recomputed:
            checkpoint_activations(model)
        found[job] = train(model, name, ON_PARTS[row], rank, world)
    return found
