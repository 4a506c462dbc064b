"""``RegularizedTrainer``: every argument of the stock trainer, accumulation, the order of batches, resuming."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import zoo
from helpers.checkpointing import checkpointing_arguments
from helpers.training import ALWAYS, LENGTHS, Gradients, Stop, examples, history, trainer_of, weights
from torch import Tensor
from torch.nn import functional
from torch.utils.data import IterableDataset, SequentialSampler
from transformers import EarlyStoppingCallback, MarianMTModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

from attendrop import (
    ADDrop,
    AttendropError,
    ChildTuning,
    Compose,
    Mixout,
    RDrop,
    regularized,
)
from attendrop.methods.core.base import Method
from attendrop.training.checkpoints import is_complete, last_checkpoint, write_manifest
from attendrop.training.labelled_data import EpochSampler
from attendrop_methods import L2SP, R3F

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
        model=zoo.build("bert", dropout=0.1),
        args=reference.args,
        train_dataset=examples(),
        data_collator=zoo.collate,
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


def test_a_first_micro_batch_without_labels_does_not_decide_how_losses_are_weighted(tmp_path: Path) -> None:
    rows = examples("gpt2")
    rows[0] = rows[0] | {"labels": torch.full_like(rows[0]["labels"], -100)}
    found = {}
    for by_method in (True, False):
        cut: dict[str, Any] = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "max_steps": 2}
        cut |= {"train_sampling_strategy": "sequential", "logging_strategy": "steps", "logging_steps": 1}
        given = {"model": zoo.build("gpt2"), "train_dataset": rows, "data_collator": zoo.collate}
        ours = trainer_of(tmp_path, None, logging_nan_inf_filter=False, **given, **cut)
        trainer = ours if by_method else Trainer(args=ours.args, **given)
        trainer.train()
        found[by_method] = history(trainer, "loss") + history(trainer, "grad_norm")
    assert found[True] == pytest.approx(found[False], rel=1e-5)


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


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


@pytest.mark.parametrize("method", [ALWAYS, Mixout(), R3F(), Compose(L2SP(), ALWAYS)], ids=lambda m: m.name)
def test_reentrant_checkpointing_is_refused_to_what_acts_within_the_model(method: Any, tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=r"[Rr]eentrant.*'use_reentrant': False"):
        trainer_of(tmp_path, method, **checkpointing_arguments(use_reentrant=True))


@pytest.mark.parametrize("method", [None, L2SP(), ChildTuning(), RDrop()], ids=str)
def test_other_methods_train_as_without_reentrant_checkpointing(method: Any, tmp_path: Path) -> None:
    found = []
    for arguments in ({}, checkpointing_arguments(use_reentrant=True)):
        trainer = trainer_of(tmp_path, method, max_steps=2, **arguments)
        trainer.train()
        found.append(weights(trainer))
    zoo.assert_same(*found, 1e-6)


@pytest.mark.parametrize("number", [torch.tensor(0.5), torch.tensor(0), torch.tensor([0.5, 0.5])], ids=str)
def test_labels_that_are_numbers_are_not_smoothed(number: Tensor, tmp_path: Path) -> None:
    """Of a single output transformers takes a softmax, of which the loss is 0."""
    rows = [row | {"labels": number} for row in examples(count=4)]
    model = zoo.build("bert", num_labels=max(1, number.numel()), problem_type="regression")
    with pytest.raises(AttendropError, match=r"label_smoothing_factor is above 0.* set it to 0\."):
        trainer_of(tmp_path, None, model=model, train_dataset=rows, label_smoothing_factor=0.1, max_steps=1).train()


def test_data_parallel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 2))
    with pytest.raises(AttendropError, match=r"2 GPUs in one process.*torchrun"):
        trainer_of(tmp_path)


def test_a_model_in_the_wrapper_of_torch_compile_is_refused(tmp_path: Path) -> None:
    """The trainer of transformers saves it under other names, from which stock code loads random weights."""
    with pytest.raises(AttendropError, match=r"wrapped by torch\.compile.*torch_compile=True.*model\.compile\(\)"):
        trainer_of(tmp_path, model=torch.compile(zoo.build("bert"), backend="eager"), remove_unused_columns=False)


def test_a_model_that_is_compiled_elsewhere_notices_the_hooks_of_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it ignores those that come after its first pass, so HiddenCut would cut nothing."""
    guarded: list[bool] = []

    class Look(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            guarded.append(not torch._dynamo.config.skip_nnmodule_hook_guards)

    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")  # by `accelerate launch`
    with torch.compiler.set_stance("force_eager"):
        trainer_of(
            tmp_path, model=zoo.build("bert"), max_steps=1, remove_unused_columns=False, callbacks=[Look()]
        ).train()
    assert guarded == [True]


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


def test_the_length_column_groups(tmp_path: Path) -> None:
    """The column decides, not the number of tokens."""
    rows = [{key: value.tolist() for key, value in row.items()} for row in zoo.rows("bert", [6] * 16)]
    data = Dataset.from_list([row | {"length": i % 4} for i, row in enumerate(rows)]).with_format("torch")
    tokens = {tuple(row["input_ids"]): i for i, row in enumerate(rows)}
    batches = trainer_of(tmp_path, train_dataset=data, train_sampling_strategy="group_by_length").get_train_dataloader()
    assert [len({tokens[tuple(row.tolist())] % 4 for row in batch["input_ids"]}) for batch in batches] == [1] * 4


# --- Methods that rest


class Stream(IterableDataset[dict[str, Any]]):
    """Rows without end."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return itertools.cycle(examples())


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        (CROSS, {"num_train_epochs": 1}, ["ad-drop would regularise none of 1 epoch.", "was fine-tuned plainly"]),
        (Compose(CROSS, L2SP()), {"num_train_epochs": 1}, ["ad-drop would regularise none", "fine-tuned without it"]),
        (CROSS, {"max_steps": 3, "train_dataset": Stream()}, ["has no length", "never took effect"]),
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
    "workers that persist": (
        5,
        EVERY_STEP | {
            "save_steps": 3,
            "eval_strategy": "epoch",
            "dataloader_num_workers": 1,
            "dataloader_persistent_workers": True,
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


@pytest.mark.parametrize(
    ("step", "moment"), [(3, "forward pass"), (3, "update"), (4, "forward pass"), (8, "forward pass")]
)
def test_a_checkpoint_on_sigterm_is_of_whole_steps_and_loses_no_evaluation(
    step: int, moment: str, tmp_path: Path
) -> None:
    """Whenever in a step the signal comes: within an epoch, at its end, and at the end of the run."""
    options = {"eval_strategy": "epoch", "eval_dataset": examples(count=8), "compute_metrics": accuracy}
    whole = trainer_of(tmp_path / "whole", CROSS, **options)
    whole.train()
    trainer = trainer_of(tmp_path / "cut", CROSS, enable_jit_checkpoint=True, **options)
    callbacks = trainer.callback_handler.callbacks
    manager = next(each.jit_manager for each in callbacks if isinstance(each, JITCheckpointCallback))
    part, name = (
        (trainer, "compute_loss") if moment == "forward pass" else (trainer.callback_handler, "on_optimizer_step")
    )
    usual = getattr(part, name)

    def signalled(*given: Any, **more: Any) -> Any:
        manager.is_checkpoint_requested |= trainer.state.global_step == step - 1
        return usual(*given, **more)

    setattr(part, name, signalled)
    trainer.train()
    assert [path.name for path in (tmp_path / "cut").glob("checkpoint-*")] == [f"checkpoint-{step}"]
    again = trainer_of(tmp_path / "cut", CROSS, **options)
    again.train(resume_from_checkpoint=True)
    zoo.assert_same(weights(again), weights(whole))
    for found, expected in zip(comparable(again), comparable(whole), strict=True):
        assert found == pytest.approx(expected, rel=1e-6)


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


def test_batches_that_one_process_dispatches_are_not_resumed_within_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate would skip half of them in two processes."""
    options = EVERY_STEP | {"accelerator_config": {"dispatch_batches": True}}
    trained(tmp_path, max_steps=2, **options)
    trainer = trainer_of(tmp_path, max_steps=2, **options)
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    with pytest.raises(AttendropError, match=r"checkpoint-1' is of the middle of an epoch.*dispatch_batches=True"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_after_an_error_of_memory_the_method_begins_as_at_the_start(tmp_path: Path) -> None:
    """The weights are not those of the start."""
    trainer = trainer_of(tmp_path, L2SP(), auto_find_batch_size=True)
    start, sizes, step = weights(trainer), [], trainer.training_step

    def full_once(*given: Any) -> Any:
        sizes.append(len(given[1]["labels"]))
        if sizes == [4, 4, 4]:
            raise RuntimeError("CUDA out of memory.")
        return step(*given)

    trainer.training_step = full_once  # type: ignore[method-assign]
    trainer.train()
    assert sizes[2:4] == [4, 3]
    kept = trainer.method_state.start
    zoo.assert_same(kept, {name: start[name] for name in kept})


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


def test_a_second_training_in_a_folder_keeps_its_own_checkpoints(tmp_path: Path) -> None:
    """Those of the first have greater numbers."""
    found = []

    class Look(TrainerCallback):
        def on_save(self, *_: Any, **__: Any) -> None:
            found.append(sorted(path.name for path in tmp_path.glob("checkpoint-*")))

    trained(tmp_path, max_steps=3, save_total_limit=1, **EVERY_STEP)
    trained(tmp_path, max_steps=2, save_total_limit=1, callbacks=[Look()], **EVERY_STEP)
    assert found == [["checkpoint-1"], ["checkpoint-2"]]


def test_the_noise_of_transformers_own_neftune_acts_beside_a_method(tmp_path: Path) -> None:
    """Masks depend on their key alone, so only the noise can make a difference; it ends with the training."""
    losses = {}
    for alpha in (None, 15.0):
        trainer: Any = trainer_of(
            tmp_path, ALWAYS, model=zoo.build("bert"), max_steps=1, logging_steps=1, neftune_noise_alpha=alpha,
            logging_strategy="steps",
        )  # fmt: skip
        trainer.train()
        losses[alpha] = trainer.state.log_history[0]["loss"]
        assert not trainer.model.get_input_embeddings()._forward_hooks
    assert losses[None] != losses[15.0]
