"""``RegularizedTrainer``: arguments of the stock trainer, accumulation, the order of batches, resuming, streams."""

import ast
import inspect
import itertools
import re
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

import attendrop
from attendrop import ADDrop, AttendOut, AttendropError, Compose, RegularizedTrainer, regularized
from attendrop.methods.core.base import Method
from attendrop.training.checkpoints import is_complete, last_checkpoint
from attendrop.training.trainer import EpochSampler
from attendrop_methods import L2SP

CROSS = ADDrop(p=0.5, q=0.5, layers="all", cross_tuning=True)


EACH_LOGGED = {"logging_strategy": "steps", "logging_steps": 1}


def trained(folder: Path, method: Method | None = ALWAYS, **options: Any) -> dict[str, Tensor]:
    trainer = trainer_of(folder, method, **options)
    trainer.train()
    return weights(trainer)


def test_plain_fine_tuning_is_what_the_stock_trainer_does(tmp_path: Path) -> None:
    """Given the same order of batches."""
    ours = trainer_of(tmp_path, None, train_sampling_strategy="sequential")
    data = {"train_dataset": examples(), "data_collator": zoo.collate}
    stock = Trainer(model=zoo.build("bert", dropout=0.1), args=ours.args, **data)
    for trainer in (ours, stock):
        torch.manual_seed(0)
        trainer.train()
    zoo.assert_same(weights(ours), weights(stock))


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
        options |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "callbacks": [kept]}
        options |= {"data_collator": with_decoder_inputs if name == "bart" else zoo.collate}
        model = zoo.build(name if name in zoo.ZOO else "bert", **of_model)
        final = trained(tmp_path, model=model, max_grad_norm=0.0, optim="sgd", **options)
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


def test_micro_batches_without_labels_add_nothing_to_the_loss(tmp_path: Path) -> None:
    """Their mean, over no tokens, is NaN, which the stock trainer replaces in its log by the mean of other losses."""
    rows = examples("bert-tokens", count=8)
    rows = [row if i % 4 == 1 else row | {"labels": torch.full_like(row["labels"], -100)} for i, row in enumerate(rows)]
    logged = []
    for size, steps in ((4, 1), (1, 4)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "max_steps": 2}
        options |= EACH_LOGGED | {"train_dataset": rows, "train_sampling_strategy": "sequential"}
        trainer = trainer_of(tmp_path, None, model=zoo.build("bert-tokens"), **options)
        trainer.train()
        logged.append(history(trainer, "loss"))
    assert logged[1] == pytest.approx(logged[0], rel=1e-5)


class Stream(IterableDataset[dict[str, Any]]):
    """Rows without end."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return itertools.cycle(examples())


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


ENDLESS = {"train_dataset": Stream(), "max_steps": 3}


@pytest.mark.parametrize("number", [torch.tensor(0), torch.tensor([0.5, 0.5])], ids=str)
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
        # The trainer of transformers saves it under other names, from which stock code loads random weights.
        ({"remove_unused_columns": False}, r"wrapped by torch\.compile.*torch_compile=True"),
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


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        (Compose(CROSS, L2SP()), {"num_train_epochs": 1}, ["ad-drop would regularise none", "fine-tuned without it"]),
        (CROSS, ENDLESS, ["never took effect"]),
        (CROSS, {"max_steps": 5}, []),
    ],
)
def test_a_method_that_rests_throughout_is_warned_of_at_the_start_and_at_the_end(
    method: Any, options: dict[str, Any], expected: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path, method, **options)
    found = [record.getMessage() for record in caplog.records if record.name.startswith("attendrop")]
    assert len(found) == len(expected)
    assert all(part in message for part, message in zip(expected, found, strict=True))


EVERY_STEP = {"save_strategy": "steps", "save_steps": 1}
EPOCHS = {"save_strategy": "epoch", "eval_strategy": "epoch"}
BEST = EPOCHS | {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
# When a run is interrupted, and what it does.
SCHEDULES: dict[str, tuple[int, dict[str, Any]]] = {
    "after the last step of an epoch": (5, EVERY_STEP | {"save_steps": 4, "eval_strategy": "epoch"}),
    "after all steps, within an epoch": (6, EVERY_STEP | {"max_steps": 6, "eval_strategy": "epoch"}),
    "between two logs": (5, EVERY_STEP | {"logging_strategy": "steps", "logging_steps": 3}),
    "best": (5, BEST | EACH_LOGGED),
    "grouped, with partial steps": (
        5,
        EVERY_STEP
        | EACH_LOGGED
        | {"train_sampling_strategy": "group_by_length", "per_device_train_batch_size": 3}
        | {"gradient_accumulation_steps": 2},
    ),
}


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


@pytest.mark.parametrize("given", ["model", "model_init"])
def test_what_a_model_does_not_save_is_not_trained(given: str, tmp_path: Path) -> None:
    """A resumed run, and the saved model, would lose what Marian's positions learnt."""
    zoo.build("marian").save_pretrained(tmp_path / "model")
    model = MarianMTModel.from_pretrained(tmp_path / "model")  # in which transformers 5.24 trains them
    unsaved = {name: model.state_dict()[name].clone() for name in model._keys_to_ignore_on_save}
    rows, source = examples("marian"), {"model": model}
    if given == "model_init":
        source = {"model": None, "model_init": lambda: MarianMTModel.from_pretrained(tmp_path / "model")}
    trainer = trainer_of(tmp_path, train_dataset=rows, max_steps=2, **source)
    trainer.train()
    assert len(unsaved) == 2
    zoo.assert_same({name: weights(trainer)[name] for name in unsaved}, unsaved)


def test_a_run_is_not_resumed_without_its_best_weights(tmp_path: Path) -> None:
    """It would end with the last, and call them the best."""
    data = {"train_dataset": examples(count=4), "eval_dataset": examples(count=4), "compute_metrics": accuracy}
    options = BEST | {"num_train_epochs": 3, "learning_rate": 0.0} | data
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, callbacks=[Stop(2)], **options).train()
    (tmp_path / "checkpoint-1" / "model.safetensors").unlink()
    trainer = trainer_of(tmp_path, **options)
    with pytest.raises(AttendropError, match=r"best checkpoint, '.*checkpoint-1', .* is missing or not complete"):
        trainer.train(resume_from_checkpoint=True)
    shutil.rmtree(tmp_path / "checkpoint-1")
    with pytest.raises(AttendropError, match=r"best checkpoint, '.*checkpoint-1', .* is missing or not complete"):
        trainer.train(resume_from_checkpoint=True)


def test_early_stopping_counts_on(tmp_path: Path) -> None:
    """Up to the patience that it has now."""
    data = {"train_dataset": examples(count=4), "eval_dataset": examples(count=4), "compute_metrics": accuracy}
    options = BEST | {"num_train_epochs": 5, "learning_rate": 0.0} | data
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, callbacks=[EarlyStoppingCallback(4), Stop(2)], **options).train()
    trainer = trainer_of(tmp_path, callbacks=[EarlyStoppingCallback(3)], **options)
    trainer.train(resume_from_checkpoint=True)
    assert len(history(trainer, "eval_accuracy")) == 4  # the first is the best; then patience runs out
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")


def test_checkpoints_are_complete_when_they_are_pushed_and_while_others_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, pushed, remove = [], [], shutil.rmtree

    def delete(folder: Any, **_: Any) -> None:
        complete.append(last_checkpoint(tmp_path).name)
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", delete)
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", lambda _, path: pushed.append(is_complete(Path(path))))
    trainer = trainer_of(tmp_path, save_total_limit=2, max_steps=4, **EVERY_STEP)
    trainer.args.push_to_hub = True
    trainer.train()
    assert pushed == [True] * 4 and complete == ["checkpoint-3", "checkpoint-4"]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]


def shuffled_stream() -> Any:
    """Rows from two files, shuffled anew in each epoch, with a column that the model does not read."""
    rows = [{name: value.tolist() for name, value in row.items()} | {"text": "a cat"} for row in examples()]
    return Dataset.from_list(rows).to_iterable_dataset(num_shards=2).shuffle(seed=5, buffer_size=6)


def collate(rows: Sequence[Any]) -> zoo.Batch:
    return zoo.collate([{name: torch.as_tensor(value) for name, value in row.items()} for row in rows])


def stream_trainer(folder: Path, method: Method, **given: Any) -> RegularizedTrainer:
    options = {"max_steps": 8, "data_collator": collate, "train_dataset": shuffled_stream()}
    return trainer_of(folder, method, model=zoo.build("bert"), **options | given)


def test_a_stream_trains_as_its_rows_in_that_order(tmp_path: Path) -> None:
    """Masks are keyed by the place of a row in the stream."""
    rows: list[dict[str, Any]] = []
    for epoch in (0, 1):
        stream = shuffled_stream()
        stream.set_epoch(epoch)
        rows += [{name: value for name, value in row.items() if name != "text"} for row in stream]
    assert rows[:16] != rows[16:]
    trainers = [
        stream_trainer(tmp_path / "rows", ALWAYS, train_dataset=rows, train_sampling_strategy="sequential"),
        stream_trainer(tmp_path / "stream", ALWAYS),
    ]
    for trainer in trainers:
        trainer.train()
    zoo.assert_same(*map(weights, trainers))


def test_a_stream_is_resumed_where_it_was(tmp_path: Path) -> None:
    """In the epoch that it was in, which decides whether cross-tuning acts, and at the batch that was next, twice."""
    whole = stream_trainer(tmp_path / "whole", CROSS)
    whole.train()
    saved = {"save_strategy": "steps", "save_steps": 1}
    for step in (5, 6):
        with pytest.raises(KeyboardInterrupt):
            stream_trainer(tmp_path / "cut", CROSS, callbacks=[Stop(step)], **saved).train(resume_from_checkpoint=True)
    resumed = stream_trainer(tmp_path / "cut", CROSS, **saved)
    resumed.train(resume_from_checkpoint=True)
    zoo.assert_same(weights(resumed), weights(whole))


def loss_of(model: torch.nn.Module, batch: dict[str, Any]) -> float:
    """Loss of a new model with the same weights, in float32."""
    new = zoo.build("bert").eval()
    new.load_state_dict(model.state_dict())
    with torch.no_grad():
        return float(new(**batch).loss)


def test_models_are_scored_in_float32_while_they_train_in_bfloat16(tmp_path: Path) -> None:
    """Also when the trainer trains again, which prepares the model for mixed precision twice."""
    scored = []

    class Scoring(RegularizedTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            found = super().compute_loss(model, inputs, *args, **options)
            if not torch.is_grad_enabled():
                scored.append((float(found), loss_of(model, inputs)))
            return found

    options = {"bf16": True, "max_steps": 4, "reward_dataset": examples(count=4)}
    trainer = trainer_of(tmp_path, AttendOut(dropout_step=1), kind=Scoring, **options)
    for _ in range(2):
        trainer.train()
    assert scored and all(found == expected for found, expected in scored)
    batch = zoo.collate(examples(count=4))
    with torch.no_grad():
        assert float(trainer.model.eval()(**batch).loss) != loss_of(trainer.model, batch)  # it still is in bfloat16


# Private parts of the stock trainer -----------------------------------------------------------------------------------


SOURCE = Path(attendrop.__file__).parent
HOOKS = SOURCE / "training/trainer.py"
STOCK = inspect.getsource(Trainer)
# Methods and attributes of the stock trainer whose names begin with one underscore.
PRIVATE = set(re.findall(r"(?:def |self\.)(_[a-z]\w*)", STOCK))
CALLED = {"_push_from_checkpoint", "_remove_unused_columns", "_get_collator_with_removed_columns", "_get_output_dir"}
ATTRIBUTES = {"_signature_columns", "_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_loss_shifts_labels"}


def used_privately(path: Path) -> set[str]:
    """The stock trainer's private names that a file defines or reads."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    bodies = [node.body for node in nodes if isinstance(node, ast.ClassDef)]
    return (read | {node.name for body in bodies for node in body if isinstance(node, ast.FunctionDef)}) & PRIVATE


def test_what_is_used_is_there_with_its_parameters_and_nothing_else_is_used() -> None:
    overridden = {
        name for name in vars(RegularizedTrainer) if name in PRIVATE and callable(getattr(Trainer, name, None))
    }
    for name in overridden:
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (RegularizedTrainer, Trainer))
        assert list(ours) == list(theirs), name
        assert f"self.{name}" in STOCK, name  # the trainer calls it
    assert used_privately(HOOKS) == overridden | CALLED | ATTRIBUTES
    assert not [name for name in ATTRIBUTES if f"self.{name}" not in STOCK]
    trainers = [path for path in SOURCE.rglob("*.py") if path != HOOKS and "rainer" in path.read_text("utf-8")]
    assert not {path.name: names for path in trainers if (names := used_privately(path))}
