"""Worker of ``test_ddp.py``, run in each of two processes; started by ``torchrun`` with an output folder."""

import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback, TrainingArguments

from attendrop import ADDrop, AttendOut, RegularizedTrainer
from attendrop.methods.core.context import Processes
from attendrop.training.regularization import Regularization
from helpers import zoo
from helpers.table import BY_MICRO_BATCH, TABLE

METHOD = ADDrop(p=0.5, q=0.5, cross_tuning=False)
OTHERS = {
    name: method
    for name, method in TABLE.items()
    if name not in BY_MICRO_BATCH and method.name not in ("finetune", "ad-drop", "attendout")
}
# Some of whose parameters get no gradient in a step, which activation checkpointing would have DDP not look for.
CHECKPOINTED = ("layerdrop", "attention-layerdrop")
LENGTHS = (9, 4, 6, 5, 8, 3, 7, 5, 6, 6, 4, 9, 3, 8, 7, 5)


def one_step(rank: int, world: int, name: str) -> dict[str, torch.Tensor]:
    """The gradients after two micro-batches on each process, by hand, without a trainer."""
    examples = zoo.rows(name, LENGTHS[:8])
    model = zoo.build(name, dtype=torch.float64)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True) if world > 1 else model
    reg = Regularization(zoo.training(model, Processes(rank, world)), METHOD)

    def compute_loss(batch: Any, plan: Any) -> Any:
        outputs = wrapped(**batch, attendrop_plan=plan)
        return outputs.loss, outputs

    for half in (0, 1):
        micro = examples[half * 4 : half * 4 + 4]
        size = len(micro) // world
        (reg.compute(zoo.collate(micro[rank * size : (rank + 1) * size]), compute_loss)[0] / 2).backward()
    reg.close()
    return zoo.gradients(model)


class Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        self.steps.append(
            {n.removeprefix("module."): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )


def train(
    folder: Path,
    world: int,
    strategy: str,
    resume: str | None = None,
    method: Any = METHOD,
    name: str = "",
    **options: Any,
) -> dict[str, Any]:
    """A whole run with the trainer: a global batch of eight, in two micro-batches."""
    kept = Gradients()
    args = TrainingArguments(
        output_dir=str(folder / (name or strategy)),
        per_device_train_batch_size=4 // world,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=1e-2,
        max_grad_norm=0.5,
        save_steps=3,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        train_sampling_strategy=strategy,
        ddp_backend="gloo" if world > 1 else None,
        **{"save_strategy": "steps", **options},
    )
    trainer = RegularizedTrainer(
        model=zoo.build("bert", dtype=torch.float64),
        args=args,
        train_dataset=list(zoo.rows("bert", LENGTHS)),
        data_collator=zoo.collate,
        regularizer=method,
        reward_dataset=list(zoo.rows("bert", LENGTHS[:6], seed=9)),
        callbacks=[kept],
    )
    trainer.train(resume_from_checkpoint=resume)
    shares = [entry["ad_drop/dropped"] for entry in trainer.state.log_history if "ad_drop/dropped" in entry]
    found = {"gradients": kept.steps, "weights": dict(trainer.model.state_dict()), "shares": shares}
    if isinstance(method, AttendOut):
        players = trainer.method_state.players
        found["generator"] = dict(players.generator.named_parameters())
        found["defender"] = dict(players.defender.model.named_parameters())
        found["log"] = [
            entry for entry in trainer.state.log_history if "attendout/reward" in entry and "loss" not in entry
        ]
    return found


def results(folder: Path, rank: int, world: int) -> dict[str, Any]:
    """Collect the compared values."""
    found: dict[str, Any] = {f"step {name}": one_step(rank, world, name) for name in ("bert", "bart-class")}
    for strategy in ("random", "group_by_length"):
        found[f"train {strategy}"] = train(folder, world, strategy)
    found["resumed"] = train(folder, world, "random", resume=str(folder / "random/checkpoint-3"))
    for variant in ("dropout", "pruning"):
        method = AttendOut(variant=variant, learner="policy_gradient", dropout_step=2)
        found[f"train {variant}"] = train(folder, world, "random", method=method, name=variant)
        resume = str(folder / variant / "checkpoint-3")
        found[f"resumed {variant}"] = train(folder, world, "random", resume, method, variant)
    for name, method in OTHERS.items():
        found[name] = train(folder, world, "random", method=method, name="other", save_strategy="no")["weights"]
    checkpointing = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}}
    for name in CHECKPOINTED:
        found[f"{name}, activation checkpointing"] = train(
            folder, world, "random", method=TABLE[name], name="other", save_strategy="no", **checkpointing
        )["weights"]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    output = Path(sys.argv[1])
    torch.save(results(output, distributed.get_rank(), 2), output / f"rank-{distributed.get_rank()}.pt")
    distributed.destroy_process_group()
