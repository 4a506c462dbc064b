"""``RegularizedTrainer``: every argument of the stock trainer, accumulation, the order of batches, resuming."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.checkpointing import checkpointing_arguments
from helpers.training import ALWAYS, LENGTHS, Gradients, Stop, examples, history, trainer_of, weights
from torch import Tensor
from torch.nn import functional
from torch.utils.data import IterableDataset, SequentialSampler
from transformers import EarlyStoppingCallback, MarianMTModel, Trainer, TrainerCallback, TrainingArguments

from attendrop import ADDrop, AttendOut, AttendropError, Compose, regularized
from attendrop.methods.core.base import Method
from attendrop.training.checkpoints import is_complete, last_checkpoint, write_manifest
from attendrop.training.trainer import EpochSampler
from attendrop_methods import L2SP

CROSS = ADDrop(p=0.5, q=0.5, layers="all", cross_tuning=True)


def trained(folder: Path, method: Method | None = ALWAYS, **options: Any) -> dict[str, Tensor]:
    trainer = trainer_of(folder, method, **options)
    trainer.train()
    return weights(trainer)


# --- The same weights


def test_plain_fine_tuning_is_what_the_stock_trainer_does(tmp_path: Path) -> None:
    """Given the same order of batches."""
    ours = trained(tmp_path, None, train_sampling_strategy="sequential")
    reference = trainer_of(tmp_path, None, train_sampling_strategy="sequential")
    stock = Trainer(
        model=zoo.build("bert", dropout=0.1), args=reference.args, train_dataset=examples(), data_collator=zoo.collate
    )
    stock.train()
    zoo.assert_same(ours, weights(stock))


def mean_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    total = functional.cross_entropy(outputs.logits, labels, reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def with_decoder_inputs(rows: Sequence[zoo.Batch]) -> zoo.Batch:
    """Collate as transformers' own collator does for label smoothing, under which the model sees no labels."""
    batch = zoo.collate(rows)
    shifted = batch["labels"].roll(1, -1).masked_fill(batch["labels"].roll(1, -1) == -100, zoo.PAD)
    shifted[:, 0] = zoo.EOS
    return batch | {"decoder_input_ids": shifted}


ACCUMULATED: dict[str, dict[str, Any]] = {
    "a loss function, and a partial last step": {
        "compute_loss_func": mean_loss, "train_dataset": examples(count=12), "max_steps": -1,
        "train_sampling_strategy": "group_by_length",
    },
    "bart": {"train_dataset": examples("bart"), "label_smoothing_factor": 0.1},
    "gpt2": {"train_dataset": examples("gpt2")},
    "numbers, of which -100 is one": {
        "of_model": {"num_labels": 1},
        "train_dataset": [row | {"labels": (row["labels"] % 2) * torch.tensor(-100.0).double()} for row in examples()],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ACCUMULATED)
def test_accumulation_equals_the_whole_batch(name: str, tmp_path: Path) -> None:
    """Also where every token counts, and of the weights in the end."""
    found = []
    for size, steps in ((8, 1), (2, 4)):
        kept = Gradients()
        options = {"max_steps": 2, **ACCUMULATED[name]}
        of_model = {"dtype": torch.float64, **options.pop("of_model", {})}
        final = trained(
            tmp_path,
            model=zoo.build(name if name in zoo.ZOO else "bert", **of_model),
            data_collator=with_decoder_inputs if name == "bart" else zoo.collate,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            callbacks=[kept],
            max_grad_norm=0.0,
            optim="sgd",
            **options,
        )
        assert len(kept.steps) == (4 if options["max_steps"] < 0 else 2)
        found.append([*kept.steps, final])
    for one, other in zip(*found, strict=True):
        zoo.assert_same(one, other, 2e-5 if name in ("bart", "gpt2") else 1e-8)


def test_the_micro_batches_of_a_step_weigh_one_together(tmp_path: Path) -> None:
    """What a method adds to the loss then weighs as much as in one batch; Llama predicts no first token."""
    found: list[float] = []

    class Look(TrainerCallback):
        def on_substep_end(self, *_: Any, **__: Any) -> None:
            found.append(float(trainer._regularization.loss_weight))  # type: ignore[union-attr]

        on_step_end = on_substep_end

    cut = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 1}
    rows = [row | {"labels": row["input_ids"]} for row in examples("llama")]
    data = {"train_dataset": rows, "model": zoo.build("llama"), "callbacks": [Look()]}
    trainer = trainer_of(tmp_path, **cut, **data)
    trainer.train()
    assert len(found) == 4 and sum(found) == pytest.approx(1)


# --- What is logged


def test_the_log_says_what_was_dropped_and_when(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, CROSS)
    trainer.train()
    assert history(trainer, "ad_drop/active") == [0, 1]
    for key in ("ad_drop/dropped", "ad_drop/dropped/encoder.0", "ad_drop/dropped/encoder.1"):
        (share,) = history(trainer, key)
        assert 0 < share < 0.5
    assert len(history(trainer, "loss")) == 2
    assert [entry["epoch"] for entry in trainer.state.log_history if "ad_drop/dropped" in entry] == [2]


def test_micro_batches_without_labels_add_nothing_to_the_loss(tmp_path: Path) -> None:
    """Their mean, over no tokens, is NaN, which the stock trainer replaces in its log by the mean of other losses."""
    rows = examples("bert-tokens", count=8)
    rows = [row if i % 4 == 1 else row | {"labels": torch.full_like(row["labels"], -100)} for i, row in enumerate(rows)]
    logged = []
    for size, steps in ((4, 1), (1, 4)):
        trainer = trainer_of(
            tmp_path, None, model=zoo.build("bert-tokens"), train_dataset=rows, per_device_train_batch_size=size,
            gradient_accumulation_steps=steps, max_steps=2, train_sampling_strategy="sequential",
            logging_strategy="steps", logging_steps=1,
        )  # fmt: skip
        trainer.train()
        logged.append(history(trainer, "loss"))
    assert logged[1] == pytest.approx(logged[0], rel=1e-5)


# --- Arguments of the stock trainer


class Stream(IterableDataset[dict[str, Any]]):
    """Rows without end."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return itertools.cycle(examples())


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


ENDLESS = {"train_dataset": Stream(), "max_steps": 3}


@pytest.mark.parametrize("number", [torch.tensor(0.5), torch.tensor(0), torch.tensor([0.5, 0.5])], ids=str)
def test_labels_that_are_numbers_are_not_smoothed(number: Tensor, tmp_path: Path) -> None:
    """Of a single output transformers takes a softmax, of which the loss is 0."""
    rows = [row | {"labels": number} for row in examples(count=4)]
    model = zoo.build("bert", num_labels=max(1, number.numel()), problem_type="regression")
    with pytest.raises(AttendropError, match=r"label_smoothing_factor is above 0.* set it to 0\."):
        trainer_of(tmp_path, None, model=model, train_dataset=rows, label_smoothing_factor=0.1, max_steps=1).train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (checkpointing_arguments(use_reentrant=True), r"reentrant.*'use_reentrant': False"),
        ({"auto_find_batch_size": True}, "does not support auto_find_batch_size"),
        ({"dataloader_persistent_workers": True, "dataloader_num_workers": 1}, "does not support dataloader_pers"),
        # The trainer of transformers saves it under other names, from which stock code loads random weights.
        ({"remove_unused_columns": False}, r"wrapped by torch\.compile.*torch_compile=True.*model\.compile\(\)"),
        ({"n_gpu": 2}, r"2 GPUs in one process.*torchrun"),
        ({**ENDLESS, "train_sampling_strategy": "group_by_length"}, "sorts rows by their lengths, and those given are"),
        ({**ENDLESS, "method": AttendOut()}, "cannot be set aside from a stream"),
        ({"reward_dataset": Stream(), "method": AttendOut()}, "draws rows at random, and those given are a stream"),
    ],
)
def test_what_the_trainer_refuses(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, model = dict(options), zoo.build("bert")
    count = options.pop("n_gpu", 1)
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: count))
    if "remove_unused_columns" in options:
        model = torch.compile(model, backend="eager")
    with pytest.raises(AttendropError, match=message):
        trainer_of(tmp_path, model=model, **{"method": ALWAYS} | options)


# --- The order of batches


@pytest.mark.parametrize("lengths", [None, [LENGTHS[i % 16] for i in range(50)]], ids=["random", "grouped"])
def test_each_epoch_is_a_permutation_that_seed_and_epoch_decide(lengths: list[int] | None) -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        sampler = EpochSampler(50, seed, 4, lengths)
        sampler.epoch = epoch
        torch.rand(epoch + seed)  # the global state plays no part
        assert len(sampler) == 50
        return tuple(sampler)

    orders = {(seed, epoch): order(seed, epoch) for seed in range(4) for epoch in range(4)}
    assert all(sorted(found) == list(range(50)) for found in orders.values())
    assert len(set(orders.values())) == 16
    assert orders == {(seed, epoch): order(seed, epoch) for seed, epoch in orders}


def test_grouped_batches_hold_similar_lengths() -> None:
    lengths = [(i * 37) % 64 for i in range(256)]

    def spread(sampler: EpochSampler) -> float:
        order = list(sampler)
        batches = [[lengths[row] for row in order[i : i + 8]] for i in range(0, 256, 8)]
        return sum(max(batch) - min(batch) for batch in batches) / len(batches)

    assert spread(EpochSampler(256, 0, 8, lengths)) < 0.3 * spread(EpochSampler(256, 0, 8))


def test_the_data_seed_decides_the_order(tmp_path: Path) -> None:
    def order(seed: int, data_seed: int | None) -> list[int]:
        return [*trainer_of(tmp_path, None, seed=seed, data_seed=data_seed).get_train_dataloader().batch_sampler]

    assert order(3, None) == order(4, 3) != order(4, None) == order(3, 4)


def test_the_order_of_a_trainer_of_one_s_own_is_kept(tmp_path: Path) -> None:
    class Ordered(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SequentialSampler(self.train_dataset)

    args = TrainingArguments(str(tmp_path), per_device_train_batch_size=4, report_to="none", use_cpu=True)
    given: dict[str, Any] = {"model": zoo.build("bert"), "args": args, "train_dataset": examples()}
    for own, kept in ((Ordered, True), (Trainer, False)):
        order = list(regularized(own)(**given, regularizer=ALWAYS).get_train_dataloader().batch_sampler.sampler)
        assert sorted(order) == list(range(16)) and (order == list(range(16))) == kept


# --- Methods that rest


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        (Compose(CROSS, L2SP()), {"num_train_epochs": 1}, ["ad-drop would regularise none", "fine-tuned without it"]),
        (CROSS, ENDLESS, ["has no length", "never took effect"]),
        (CROSS, {"max_steps": 5}, []),
    ],
)
def test_a_method_that_rests_throughout_is_warned_of_at_the_start_and_at_the_end(
    method: Method | None,
    options: dict[str, Any],
    expected: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = trainer_of(tmp_path, method, **options)
    trainer.train()
    found = [record.getMessage() for record in caplog.records if record.name.startswith("attendrop")]
    assert len(found) == len(expected)
    assert all(part in message for part, message in zip(expected, found, strict=True))
    assert len(expected) < 2 or ("set cross_tuning=False" in found[0] and "cross_tuning" not in found[1])


# --- Resuming


EVERY_STEP = {"save_strategy": "steps", "save_steps": 1}
EPOCHS = {"save_strategy": "epoch", "eval_strategy": "epoch"}
BEST = EPOCHS | {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
EACH_LOGGED = {"logging_strategy": "steps", "logging_steps": 1}
# When a run is interrupted, and what it does.
SCHEDULES: dict[str, tuple[int, dict[str, Any]]] = {
    "within a period of logging": (3, EVERY_STEP),
    "after the last step of an epoch": (5, EVERY_STEP | {"save_steps": 4, "eval_strategy": "epoch"}),
    "after all steps, within an epoch": (6, EVERY_STEP | {"max_steps": 6, "eval_strategy": "epoch"}),
    "best": (5, BEST | EACH_LOGGED),
    "grouped, with partial steps": (
        5,
        EVERY_STEP | EACH_LOGGED | {
            "train_sampling_strategy": "group_by_length",
            "per_device_train_batch_size": 3,
            "gradient_accumulation_steps": 2,
        },
    ),
}  # fmt: skip


def comparable(trainer: Trainer) -> list[dict[str, float]]:
    timing = ("runtime", "per_second", "total_flos", "train_loss")
    return [{k: v for k, v in e.items() if not any(t in k for t in timing)} for e in trainer.state.log_history]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_resumed_run_equals_the_uninterrupted_one(schedule: str, tmp_path: Path) -> None:
    stop, options = SCHEDULES[schedule]
    options = options | {"eval_dataset": examples(count=8), "compute_metrics": accuracy}
    saving = {} if schedule == "best" else {"save_strategy": "no"}
    whole = trainer_of(tmp_path / "whole", CROSS, **options | saving)
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path / "cut", CROSS, callbacks=[Stop(stop)], **options).train()
    torch.manual_seed(12345)
    trainer = trainer_of(tmp_path / "cut", CROSS, **options)
    trainer.train(resume_from_checkpoint=True)
    zoo.assert_same(weights(trainer), weights(whole))
    for found, expected in zip(comparable(trainer), comparable(whole), strict=True):
        assert found == pytest.approx(expected, rel=1e-6)
    assert trainer.state.global_step == whole.state.global_step


def test_what_a_model_does_not_save_is_not_trained(tmp_path: Path) -> None:
    """A resumed run, and the saved model, would lose what Marian's positions learnt."""
    zoo.build("marian").save_pretrained(tmp_path / "model")
    model = MarianMTModel.from_pretrained(tmp_path / "model")  # in which transformers 5.24 trains them
    unsaved = {name: model.state_dict()[name].clone() for name in model._keys_to_ignore_on_save}
    trainer = trainer_of(tmp_path, model=model, train_dataset=examples("marian"), max_steps=2)
    trainer.train()
    assert len(unsaved) == 2
    zoo.assert_same({name: weights(trainer)[name] for name in unsaved}, unsaved)


def test_early_stopping_counts_on(tmp_path: Path) -> None:
    """Up to the patience that it has now."""
    options = BEST | {
        "num_train_epochs": 5,
        "learning_rate": 0.0,
        "train_dataset": examples(count=4),
        "eval_dataset": examples(count=4),
        "compute_metrics": accuracy,
    }
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, callbacks=[EarlyStoppingCallback(4), Stop(2)], **options).train()
    trainer = trainer_of(tmp_path, callbacks=[EarlyStoppingCallback(3)], **options)
    trainer.train(resume_from_checkpoint=True)
    assert len(history(trainer, "eval_accuracy")) == 4  # the first is the best; then patience runs out
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")


def test_a_process_that_dies_while_it_writes_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half-written checkpoint is passed over."""
    options = EVERY_STEP | {"save_steps": 2}
    trainer = trainer_of(tmp_path, CROSS, **options)

    def dying(*given: Any) -> None:
        if trainer.state.global_step == 6:
            raise KeyboardInterrupt
        write_manifest(*given)

    monkeypatch.setattr("attendrop.training.checkpoints.write_manifest", dying)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    monkeypatch.undo()
    assert not is_complete(tmp_path / "checkpoint-6")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
    again = trainer_of(tmp_path, CROSS, **options)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 8
    assert is_complete(tmp_path / "checkpoint-6")


def test_a_checkpoint_is_pushed_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = []
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", lambda _, folder: pushed.append(is_complete(Path(folder))))
    trainer = trainer_of(tmp_path, max_steps=2, **EVERY_STEP)
    trainer.args.push_to_hub = True
    trainer.train()
    assert pushed == [True, True]


def test_rotation_keeps_a_complete_checkpoint_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, complete = 2, []

    def delete(folder: Any, **_: Any) -> None:
        complete.append(last_checkpoint(tmp_path))
        remove(folder)

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", delete)
    trained(tmp_path, save_total_limit=limit, **EVERY_STEP)
    assert [path and path.name for path in complete] == [f"checkpoint-{i}" for i in range(limit + 1, 9)]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        f"checkpoint-{i}" for i in range(9 - limit, 9)
    ]
