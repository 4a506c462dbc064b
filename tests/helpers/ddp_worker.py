"""The jobs of ``test_ddp.py``, which two processes run together, and one alone."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

from attendrop import ADDrop, AttendOut
from attendrop.methods.core.context import Processes
from attendrop.runs.run_trainer import learnt
from attendrop.training.regularization import Regularization
from helpers import zoo
from helpers.checkpointing import checkpointing_arguments
from helpers.table import BY_MICRO_BATCH, TABLE
from helpers.training import ALWAYS, LENGTHS, Gradients, examples, trainer_of

# Rows come to another process in the second epoch.
RECORDED = ADDrop(p=0.5, q=0.5, layers="all", attribution="recorded")
OTHERS = {
    name: method
    for name, method in TABLE.items()
    if name not in BY_MICRO_BATCH and method.name not in ("finetune", "ad-drop", "attendout")
}
# Some of whose parameters get no gradient in a step, which activation checkpointing would have DDP not look for.
CHECKPOINTED = ("layerdrop", "attention-layerdrop")


def one_step(folder: Path, rank: int, world: int, name: str) -> dict[str, torch.Tensor]:
    """Compute the gradients of two micro-batches on each process, without a trainer."""
    examples = zoo.rows(name, LENGTHS[:8])
    model = zoo.build(name, dtype=torch.float64)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True) if world > 1 else model
    reg = Regularization(zoo.training(model, Processes(rank, world)), ALWAYS)

    def compute_loss(batch: Any, plan: Any, _: Any) -> Any:
        outputs = wrapped(**batch, attendrop_plan=plan)
        return outputs.loss, outputs

    for half in (0, 1):
        micro = examples[half * 4 : half * 4 + 4]
        size = len(micro) // world
        part = zoo.on_device(zoo.collate(micro[rank * size : (rank + 1) * size]))
        (reg.compute(part, compute_loss)[0] / 2).backward()
    reg.close()
    return zoo.gradients(model)


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    """The rows, without their number."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(zoo.rows("bert", LENGTHS))


def train(
    folder: Path,
    rank: int,
    world: int,
    name: str,
    method: Any = ALWAYS,
    resume: str | None = None,
    stream: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train with the trainer: global batches of eight, in two micro-batches."""
    kept = Gradients()
    # What was counted before a checkpoint is in it.
    given = {"save_strategy": "steps", "save_steps": 3, "logging_strategy": "steps", "logging_steps": 4}
    given |= {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "lr_scheduler_type": "linear"}
    given |= {"ddp_backend": "gloo"} if world > 1 else {}
    trainer = trainer_of(
        folder / name,
        method,
        model=zoo.build("bert", dtype=torch.float64),
        train_dataset=Stream() if stream else examples(),
        reward_dataset=list(zoo.rows("bert", LENGTHS[:6], seed=9)),
        callbacks=[kept],
        **{"per_device_train_batch_size": 4 // world, **given, **options},
    )
    trainer.train(resume_from_checkpoint=str(folder / name / resume) if resume else None)
    log = trainer.state.log_history
    found = {"gradients": kept.steps, "weights": dict(trainer.model.state_dict())}
    found["shares"] = [entry["ad_drop/dropped"] for entry in log if "ad_drop/dropped" in entry]
    if isinstance(method, AttendOut):
        found["pi"] = learnt(trainer, SimpleNamespace(train=trainer.train_dataset, selection=None))["pruning"]["pi"]
        players = trainer.method_state.players
        found["generator"] = dict(players.generator.named_parameters())
        found["defender"] = dict(players.defender.model.named_parameters())
        found["log"] = [entry for entry in log if "attendout/reward" in entry and "loss" not in entry]
    return found


def last_weights(folder: Path, rank: int, world: int, method: Any, **options: Any) -> Any:
    """Train without checkpoints, and return the weights."""
    return train(folder, rank, world, "other", method, save_strategy="no", **options)["weights"]


def evaluated(folder: Path, rank: int, world: int) -> float:
    """Evaluate, and return the loss."""
    options = {"eval_dataset": examples(count=12), "per_device_eval_batch_size": 8 // world}
    options |= {"ddp_backend": "gloo"} if world > 1 else {}
    return float(trainer_of(folder / "evaluated", **options).evaluate()["eval_loss"])


# Adam makes whole steps of the rounding errors of weights that have no effect (biases of keys) and are pulled back.
OPTIONS: dict[str, dict[str, Any]] = {"l2-sp": {"optim": "sgd"}}
CHECKPOINTING = checkpointing_arguments(use_reentrant=False)
# Each process reads the stream and takes its rows; batches that one process reads must be equally long for all.
STREAM = {"stream": True, "max_steps": 4, "accelerator_config": {"dispatch_batches": False}}
JOBS: dict[str, Callable[[Path, int, int], Any]] = {
    "step bert": partial(one_step, name="bert"),
    "step bart-class": partial(one_step, name="bart-class"),
    "train random": partial(train, name="random"),
    "resumed random": partial(train, name="random", resume="checkpoint-3"),
    "train stream": partial(train, name="stream", **STREAM),
    "resumed stream": partial(train, name="stream", resume="checkpoint-3", **STREAM),
    "train recorded": partial(train, name="recorded", method=RECORDED),
    "resumed recorded": partial(train, name="recorded", method=RECORDED, resume="checkpoint-3"),
    "train group_by_length": partial(train, name="grouped", train_sampling_strategy="group_by_length"),
    "evaluated": evaluated,
}
for variant in ("dropout", "pruning"):
    players = AttendOut(variant=variant, dropout_step=2)
    JOBS[f"train {variant}"] = partial(train, name=variant, method=players)
    JOBS[f"resumed {variant}"] = partial(train, name=variant, method=players, resume="checkpoint-3")
JOBS |= {name: partial(last_weights, method=method, **OPTIONS.get(name, {})) for name, method in OTHERS.items()}
JOBS |= {
    f"{name}, activation checkpointing": partial(last_weights, method=TABLE[name], **CHECKPOINTING)
    for name in CHECKPOINTED
}
# The jobs of the default tests, with a method of each kind; the others are slow.
SAMPLE = (
    *("step bert", "train recorded", "resumed recorded", "train dropout", "resumed dropout"),
    *("r-drop", "layerdrop, activation checkpointing", "evaluated"),
)
PARTS = {"sample": SAMPLE, "rest": tuple(name for name in JOBS if name not in SAMPLE)}


def results(folder: Path, rank: int, world: int, part: str) -> dict[str, Any]:
    """Run the jobs of a part."""
    return {name: JOBS[name](folder, rank, world) for name in PARTS[part]}
