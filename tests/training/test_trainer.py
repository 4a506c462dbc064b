"""``RegularizedTrainer``: every argument of the stock trainer, accumulation, the order of batches, resuming."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import zoo
from helpers.checkpointing import checkpointing_arguments
from helpers.training import ALWAYS, LENGTHS, Gradients, examples, history, trainer_of, weights
from torch import Tensor
from torch.nn import functional
from torch.utils.data import IterableDataset
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from attendrop import ADDrop, AttendropError, Compose, RDrop, RegularizedTrainer
from attendrop.methods.core.base import Method
from attendrop.training.checkpoints import is_complete, last_checkpoint
from attendrop.training.sampler import EpochSampler

CROSS = ADDrop(p=0.5, q=0.5, layers="all", cross_tuning=True)


class Rows(list[dict[str, Any]]):
    """A data set that remembers in which order its rows were asked for."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.asked: list[int] = []

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(index)
        return super().__getitem__(index)


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


def test_the_model_is_restored_after_training_and_after_an_error(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.train()
    assert trainer.model.config._attn_implementation == "sdpa"
    trainer = trainer_of(tmp_path, callbacks=[Stop(3)])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.model.config._attn_implementation == "sdpa"


def test_an_unsupported_model_is_refused_before_training(tmp_path: Path) -> None:
    model = zoo.from_class(*zoo.REFUSED["megatron-bert"])
    with pytest.raises(AttendropError, match="MegatronBertForSequenceClassification is not supported"):
        trainer_of(tmp_path, model=model).train()
    trainer_of(tmp_path, None, model=model, max_steps=1).train()


def smooth_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    total = functional.cross_entropy(outputs.logits, labels, reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing_factor": 0.2},
        {"compute_loss_func": smooth_loss},
        {"train_dataset": examples(count=12), "max_steps": -1},
    ],
    ids=["plain", "smoothing", "loss function", "a partial last step"],
)
def test_accumulation_equals_the_whole_batch(options: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for size, steps in ((8, 1), (2, 4)):
        kept = Gradients()
        final = trained(
            tmp_path,
            ALWAYS,
            model=zoo.build("bert", dtype=torch.float64),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            callbacks=[kept],
            max_grad_norm=0.0,
            optim="sgd",
            **{"max_steps": 2, **options},
        )
        assert len(kept.steps) == (4 if "train_dataset" in options else 2)
        found.append([*kept.steps, final])
    for one, other in zip(*found, strict=True):
        zoo.assert_same(one, other, 1e-8)


def with_decoder_inputs(rows: Sequence[zoo.Batch]) -> zoo.Batch:
    """Collate as transformers' own collator does for label smoothing, under which the model sees no labels."""
    batch = zoo.collate(rows)
    shifted = batch["labels"].roll(1, -1).masked_fill(batch["labels"].roll(1, -1) == -100, zoo.PAD)
    shifted[:, 0] = zoo.EOS
    return batch | {"decoder_input_ids": shifted}


@pytest.mark.parametrize(("name", "smoothing"), [("bart", 0.1), ("gpt2", 0.0)])
def test_accumulation_equals_the_whole_batch_where_every_token_counts(
    name: str, smoothing: float, tmp_path: Path
) -> None:
    found = []
    for size, steps in ((8, 1), (2, 4)):
        kept = Gradients()
        trained(
            tmp_path,
            model=zoo.build(name, dtype=torch.float64),
            train_dataset=examples(name),
            data_collator=with_decoder_inputs if name == "bart" else zoo.collate,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            label_smoothing_factor=smoothing,
            max_grad_norm=0.0,
            callbacks=[kept],
            max_steps=2,
            optim="sgd",
        )
        found.append(kept.steps)
    for one, other in zip(*found, strict=True):
        zoo.assert_same(one, other, 2e-5 if name == "gpt2" else 1e-6)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_micro_batches_of_a_step_weigh_one_together(name: str, tmp_path: Path) -> None:
    """What a method adds to the loss then weighs as much as in one batch; Llama predicts no first token."""
    found: list[float] = []

    class Look(TrainerCallback):
        def on_substep_end(self, *_: Any, **__: Any) -> None:
            found.append(float(trainer._regularization.loss_weight))  # type: ignore[union-attr]

        on_step_end = on_substep_end

    cut = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 1}
    rows = [row | {"labels": row["input_ids"]} if name == "llama" else row for row in examples(name)]
    data = {"train_dataset": rows, "model": zoo.build(name), "callbacks": [Look()]}
    trainer = trainer_of(tmp_path, **cut, **data)
    trainer.train()
    assert len(found) == 4 and sum(found) == pytest.approx(1)


def test_label_smoothing_leaves_answers_to_questions_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=99, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    rows = [{"input_ids": [5, 6, 7, 8], "start_positions": 1, "end_positions": 2}] * 4
    arguments = TrainingArguments(
        str(tmp_path), max_steps=1, label_smoothing_factor=0.1, report_to="none", use_cpu=True, save_strategy="no"
    )
    trainer = RegularizedTrainer(BertForQuestionAnswering(config), arguments, train_dataset=rows, regularizer=ADDrop())
    assert trainer.train().training_loss > 0


# --- What is logged


@pytest.mark.parametrize(("method", "active"), [(ALWAYS, [1, 1]), (CROSS, [0, 1])])
def test_the_log_says_what_was_dropped_and_when(method: Method | None, active: list[float], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, method)
    trainer.train()
    assert history(trainer, "ad_drop/active") == active
    for key in ("ad_drop/dropped", "ad_drop/dropped/encoder.0", "ad_drop/dropped/encoder.1"):
        shares = history(trainer, key)
        assert len(shares) == sum(active)
        assert all(0 < share < 0.5 for share in shares)
    assert len(history(trainer, "loss")) == 2
    assert [entry["epoch"] for entry in trainer.state.log_history if "ad_drop/dropped" in entry] == [
        epoch + 1 for epoch, on in enumerate(active) if on
    ]


# --- Arguments of the stock trainer


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_metrics_best_model_and_early_stopping(tmp_path: Path) -> None:
    options = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "accuracy",
        "num_train_epochs": 8,
        "learning_rate": 0.0,
    }
    trainer = trainer_of(
        tmp_path,
        eval_dataset=examples(count=8),
        compute_metrics=accuracy,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
        **options,
    )
    trainer.train()
    assert len(history(trainer, "eval_accuracy")) == 3  # the first is the best; then patience runs out
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert trainer.evaluate()["eval_accuracy"] == max(history(trainer, "eval_accuracy"))


def test_evaluation_and_prediction_are_those_of_the_untouched_model(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, eval_dataset=examples(), eval_strategy="epoch", compute_metrics=accuracy)
    trainer.train()
    args = TrainingArguments(output_dir=str(tmp_path), report_to="none", disable_tqdm=True, use_cpu=True)
    stock = Trainer(model=trainer.model, args=args, data_collator=zoo.collate, compute_metrics=accuracy)
    expected = stock.predict(examples())
    assert (trainer.predict(examples()).predictions == expected.predictions).all()
    assert history(trainer, "eval_loss")[-1] == pytest.approx(expected.metrics["test_loss"], abs=1e-7)


def test_bf16_trains_and_keeps_its_weights_in_full_precision(tmp_path: Path) -> None:
    kept = Gradients()
    final = trained(tmp_path, bf16=True, callbacks=[kept])
    assert all(value.dtype == torch.float32 for value in final.values() if value.is_floating_point())
    assert all(torch.isfinite(g).all() and g.dtype == torch.float32 for step in kept.steps for g in step.values())
    full = Gradients()
    trained(tmp_path, callbacks=[full])
    assert kept.steps[0].keys() == full.steps[0].keys()


def test_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    plain = trained(tmp_path)
    checkpointed = trained(tmp_path, **checkpointing_arguments(use_reentrant=False))
    zoo.assert_same(plain, checkpointed, 1e-6)


def test_hyperparameter_search_makes_a_new_model_for_each_trial(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = []

    def model_init() -> Any:
        made.append(zoo.build("bert"))
        return made[-1]

    trainer = trainer_of(tmp_path, model_init=model_init, eval_dataset=examples(), eval_strategy="epoch")
    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", [1e-6, 1e-2])},
        n_trials=2,
        backend="optuna",
        sampler=optuna.samplers.GridSampler({"learning_rate": [1e-6, 1e-2]}),
    )
    assert best.hyperparameters == {"learning_rate": 1e-2}
    assert all(model.config._attn_implementation == "sdpa" for model in made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (checkpointing_arguments(use_reentrant=True),
         r"[Rr]eentrant.*'use_reentrant': False"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=message):
        trainer_of(tmp_path, **options)


def test_data_parallel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 2))
    with pytest.raises(AttendropError, match=r"2 GPUs in one process.*torchrun"):
        trainer_of(tmp_path)


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


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_all_methods_see_the_same_batches(strategy: str, tmp_path: Path) -> None:
    orders = []
    for method in (None, ALWAYS):
        rows = Rows(examples())
        trained(tmp_path, method, train_dataset=rows, train_sampling_strategy=strategy)
        epochs = [rows.asked[-32:-16], rows.asked[-16:]]
        assert all(sorted(epoch) == list(range(16)) for epoch in epochs)
        assert epochs[0] != epochs[1]
        orders.append(epochs)
    assert orders[0] == orders[1]


def test_the_data_seed_decides_the_order(tmp_path: Path) -> None:
    def order(seed: int, data_seed: int | None) -> list[int]:
        return [*trainer_of(tmp_path, None, seed=seed, data_seed=data_seed).get_train_dataloader().batch_sampler]

    assert order(3, None) == order(4, 3) != order(4, None) == order(3, 4)


def test_the_length_column_groups(tmp_path: Path) -> None:
    """The column decides, not the number of tokens."""
    rows = [{key: value.tolist() for key, value in row.items()} for row in zoo.rows("bert", [6] * 16)]
    data = Dataset.from_list([row | {"length": i % 4} for i, row in enumerate(rows)]).with_format("torch")
    tokens = {tuple(row["input_ids"]): i for i, row in enumerate(rows)}
    batches = trainer_of(tmp_path, train_dataset=data, train_sampling_strategy="group_by_length").get_train_dataloader()
    assert [len({tokens[tuple(row.tolist())] % 4 for row in batch["input_ids"]}) for batch in batches] == [1] * 4


def test_an_epoch_that_a_callback_cuts_short_counts_as_one(tmp_path: Path) -> None:
    class CutShort(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_epoch_stop = state.global_step == 2

    trainer = trainer_of(tmp_path, CROSS, callbacks=[CutShort()], logging_steps=1, logging_strategy="steps")
    trainer.train()
    assert history(trainer, "ad_drop/active") == [0, 0, 1, 1, 1, 1]


# --- Methods that rest


class Stream(IterableDataset[dict[str, Any]]):
    """Rows without a length: so many batches of four, or without end."""

    def __init__(self, batches: int | None = None) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return itertools.islice(itertools.cycle(examples()), None if self.batches is None else 4 * self.batches)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        (CROSS, {"num_train_epochs": 1}, ["ad-drop would regularise none of 1 epoch.", "never took effect"]),
        (CROSS, {"max_steps": 3, "train_dataset": Stream()}, ["has no length", "never took effect"]),
        (CROSS, {"max_steps": 3, "train_dataset": Stream(2)}, ["has no length"]),
        (CROSS, {"max_steps": 5}, []),
        (Compose(CROSS, RDrop()), {"max_steps": 2}, ["ad-drop would regularise none", "ad-drop never took effect"]),
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


class Stop(TrainerCallback):
    """Ends the process, as it were, after an optimizer step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


EVERY_STEP = {"save_strategy": "steps", "save_steps": 1}
EPOCHS = {"save_strategy": "epoch", "eval_strategy": "epoch"}
BEST = EPOCHS | {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "every-step": EVERY_STEP,
    "last-step-and-evaluation": {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "epoch"},
    "epochs": EPOCHS,
    "best": BEST,
    "grouped": EVERY_STEP | {"train_sampling_strategy": "group_by_length"},
    "accumulation": EVERY_STEP | {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    "partial": EVERY_STEP | {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2},
    "evaluation-at-other-steps": EVERY_STEP | {"eval_strategy": "steps", "eval_steps": 3},
}


def resumed(folder: Path, method: Method, stop: int, **options: Any) -> tuple[dict[str, Tensor], RegularizedTrainer]:
    with pytest.raises(KeyboardInterrupt):
        trainer_of(folder, method, callbacks=[Stop(stop)], **options).train()
    torch.manual_seed(12345)
    trainer = trainer_of(folder, method, **options)
    trainer.train(resume_from_checkpoint=True)
    return weights(trainer), trainer


def comparable(trainer: Trainer) -> list[dict[str, float]]:
    timing = ("runtime", "per_second", "total_flos", "train_loss")
    return [{k: v for k, v in e.items() if not any(t in k for t in timing)} for e in trainer.state.log_history]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Tensor], Trainer]]:
    """The run of a schedule that nothing interrupts; each runs once."""

    @cache
    def run(schedule: str) -> tuple[dict[str, Tensor], Trainer]:
        trainer = trainer_of(tmp_path_factory.mktemp("whole"), CROSS, **resumable(schedule))
        trainer.train()
        return weights(trainer), trainer

    return run


def resumable(schedule: str) -> dict[str, Any]:
    logged = {"logging_strategy": "steps", "logging_steps": 1}
    return SCHEDULES[schedule] | logged | {"eval_dataset": examples(count=8), "compute_metrics": accuracy}


@pytest.mark.parametrize(("schedule", "stop"), [("every-step", 3), ("best", 3), *((name, 5) for name in SCHEDULES)])
def test_a_resumed_run_equals_the_uninterrupted_one(
    schedule: str, stop: int, tmp_path: Path, uninterrupted: Callable[[str], tuple[dict[str, Tensor], Trainer]]
) -> None:
    expected, whole = uninterrupted(schedule)
    found, trainer = resumed(tmp_path, CROSS, stop, **resumable(schedule))
    zoo.assert_same(found, expected)
    assert comparable(trainer) == comparable(whole)
    assert trainer.state.global_step == whole.state.global_step


def test_the_log_of_an_epoch_survives_a_checkpoint_on_its_last_step(tmp_path: Path) -> None:
    options = EVERY_STEP | {"save_steps": 4}
    _, trainer = resumed(tmp_path, ALWAYS, 5, **options)
    assert [entry["epoch"] for entry in trainer.state.log_history if "ad_drop/dropped" in entry] == [1, 2]


def test_the_shares_of_a_logging_period_survive_a_checkpoint_within_it(tmp_path: Path) -> None:
    whole = trainer_of(tmp_path / "whole")
    whole.train()
    _, trainer = resumed(tmp_path / "cut", ALWAYS, 3, **EVERY_STEP)
    for key in ("ad_drop/dropped", "loss"):
        assert history(trainer, key) == pytest.approx(history(whole, key), rel=1e-6)


@pytest.mark.parametrize(("accumulation", "stop"), [(1, 2), (2, 3)])
def test_a_stream_is_resumed_where_it_was(accumulation: int, stop: int, tmp_path: Path) -> None:
    """In the epoch that it was in, which decides whether cross-tuning acts, and at the batch that was next."""
    options = {"logging_strategy": "steps", "logging_steps": 1, "gradient_accumulation_steps": accumulation}
    options |= {"train_dataset": Stream(2 * accumulation), "max_steps": 6, "save_strategy": "steps", "save_steps": stop}
    whole = trainer_of(tmp_path / "whole", CROSS, **options | {"save_strategy": "no"})
    whole.train()
    assert history(whole, "ad_drop/active") == [0, 0, 1, 1, 0, 0]
    found, trainer = resumed(tmp_path / "cut", CROSS, stop, **options)
    assert history(trainer, "ad_drop/active") == history(whole, "ad_drop/active")
    zoo.assert_same(found, weights(whole))


def test_early_stopping_counts_on(tmp_path: Path) -> None:
    options = BEST | {
        "num_train_epochs": 8,
        "learning_rate": 0.0,
        "eval_dataset": examples(),
        "compute_metrics": accuracy,
    }
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, callbacks=[EarlyStoppingCallback(3), Stop(10)], **options).train()
    trainer = trainer_of(tmp_path, callbacks=[EarlyStoppingCallback(3)], **options)
    trainer.train(resume_from_checkpoint=True)
    assert len(history(trainer, "eval_accuracy")) == 4


def test_without_a_checkpoint_resuming_starts_over(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    zoo.assert_same(weights(trainer), trained(tmp_path))


@pytest.mark.parametrize("moment", ["optimizer", "manifest"])
def test_a_process_that_dies_while_it_writes_a_checkpoint(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half-written checkpoint is passed over."""
    options = EVERY_STEP | {"save_steps": 2}
    whole = trained(tmp_path / "whole", CROSS, **options)
    trainer = trainer_of(tmp_path / "cut", CROSS, **options)

    def die_at(target: Any, name: str) -> None:
        stock = getattr(target, name)

        def dying(*args: Any, **kwargs: Any) -> Any:
            if trainer.state.global_step == 6:
                raise KeyboardInterrupt
            return stock(*args, **kwargs)

        monkeypatch.setattr(target, name, dying)

    match moment:
        case "optimizer":
            die_at(trainer, "_save_optimizer_and_scheduler")
        case _:
            die_at(__import__("attendrop.training.trainer", fromlist=["seal"]), "seal")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    monkeypatch.undo()
    assert not is_complete(tmp_path / "cut/checkpoint-6")
    assert last_checkpoint(tmp_path / "cut") == tmp_path / "cut/checkpoint-4"
    again = trainer_of(tmp_path / "cut", CROSS, **options)
    again.train(resume_from_checkpoint=True)
    zoo.assert_same(weights(again), whole)
    assert is_complete(tmp_path / "cut/checkpoint-6")


def test_a_checkpoint_that_is_written_again_is_not_complete_meanwhile(tmp_path: Path) -> None:
    trained(tmp_path, max_steps=3, **EVERY_STEP)
    trainer = trainer_of(tmp_path, max_steps=3, **EVERY_STEP)
    complete = []
    trainer._save_rng_state = lambda folder: complete.append(is_complete(Path(folder)))  # type: ignore[method-assign]
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert complete == [False, False]


@pytest.mark.parametrize("limit", [1, 2])
def test_rotation_keeps_a_complete_checkpoint_at_every_moment(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = []

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


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, max_steps=2, **EVERY_STEP)
    for checkpoint in (True, str(tmp_path / "checkpoint-1")):
        with pytest.raises(AttendropError, match="made with cross_tuning=False, not cross_tuning=True"):
            trainer_of(tmp_path, CROSS, **EVERY_STEP).train(resume_from_checkpoint=checkpoint)


def test_a_named_checkpoint_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, max_steps=2, **EVERY_STEP)
    file = tmp_path / "checkpoint-2/optimizer.pt"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(AttendropError, match=r"checkpoint-2' is not complete"):
        trainer_of(tmp_path, **EVERY_STEP).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_the_checkpoint_loads_with_stock_code_and_names_the_method(tmp_path: Path) -> None:
    final = trained(tmp_path, max_steps=2, **EVERY_STEP)
    loaded = type(zoo.build("bert")).from_pretrained(tmp_path / "checkpoint-2")
    zoo.assert_same(loaded.state_dict(), final)
    assert "attendrop" not in (tmp_path / "checkpoint-2/config.json").read_text()
    assert not list((tmp_path / "checkpoint-2").glob("*model*.bin"))
    state = json.loads((tmp_path / "checkpoint-2/attendrop_state.json").read_text())
    assert state["method"] == "ad-drop"
    assert state["options"] == ALWAYS.options()
