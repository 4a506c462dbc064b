"""Data that models are scored on while they train."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers import zoo
from helpers.checkpointing import checkpointing_arguments
from helpers.training import examples, trainer_of
from torch.utils.data import DataLoader, IterableDataset, default_collate

from attendrop import AttendOut, AttendropError
from attendrop.training.labelled_data import ColumnCollator, LabelledBatches, LabelledRows, labelled_data, set_aside

CPU = torch.device("cpu")


def test_items_are_drawn_at_random_and_fixed_by_the_seed() -> None:
    data = LabelledRows(list(range(20)), lambda rows: {"rows": torch.tensor(rows)}, CPU)
    first, again, other = (data.sample(seed, 3, 4) for seed in (1, 1, 2))
    assert [item["rows"].tolist() for item in first] == [item["rows"].tolist() for item in again]
    assert [item["rows"].tolist() for item in first] != [item["rows"].tolist() for item in other]
    assert all(len(set(item["rows"].tolist())) == 4 for item in first)
    seen = {row for seed in range(30) for item in data.sample(seed, 3, 4) for row in item["rows"].tolist()}
    assert seen == set(range(20))


def test_an_item_has_no_more_rows_than_there_are() -> None:
    data = LabelledRows([1, 2], lambda rows: {"rows": torch.tensor(rows)}, CPU)
    assert sorted(data.sample(0, 1, 8)[0]["rows"].tolist()) == [1, 2]


def test_reward_data_may_be_a_loader_or_batches() -> None:
    rows = zoo.rows("bert", (4, 6, 5))
    of_loader = labelled_data("reward_data", DataLoader(rows, batch_size=2, collate_fn=zoo.collate), CPU)  # type: ignore[arg-type]
    assert isinstance(of_loader, LabelledRows)
    assert of_loader.sample(0, 2, 2)[0]["input_ids"].shape[0] == 2
    of_batches = labelled_data("reward_data", [zoo.collate(rows)], CPU)
    assert isinstance(of_batches, LabelledBatches)
    assert len(of_batches.sample(0, 5, 1)) == 5
    assert labelled_data("reward_data", None, CPU) is None
    assert labelled_data("reward_data", of_loader, CPU) is of_loader


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("given", "message"),
    [(Stream(), "not Stream"), (DataLoader(Stream()), "stream"), ([], "no batches"), ([1, 2], "not list")],
)
def test_other_reward_data_is_refused(given: Any, message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        labelled_data("reward_data", given, CPU)


@pytest.mark.parametrize("kind", [list, Dataset])
def test_rows_are_set_aside(kind: Any) -> None:
    rows = list(range(50)) if kind is list else Dataset.from_dict({"number": list(range(50))})
    parts = set_aside(rows, 0.1, 3)
    assert all(isinstance(part, Dataset) == (kind is Dataset) for part in parts)  # whose columns the trainer knows
    kept, held = ([row if kind is list else row["number"] for row in part] for part in parts)
    assert len(held) == 5
    assert sorted(kept + held) == list(range(50))
    assert list(set_aside(rows, 0.1, 3)[1]) == list(set_aside(rows, 0.1, 3)[1])


@pytest.mark.parametrize(("count", "fraction", "held"), [(100, 0.29, 29), (10, 0.19, 1), (5, 0.1, 1)])
def test_the_fraction_set_aside_is_rounded_down_and_never_empty(count: int, fraction: float, held: int) -> None:
    assert len(set_aside(list(range(count)), fraction, 0)[1]) == held


@pytest.mark.parametrize(("rows", "message"), [([1], "cannot be divided"), (Stream(), "stream")])
def test_what_cannot_be_divided(rows: Any, message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        set_aside(rows, 0.1, 0)


# --- The trainer


def test_the_trainer_sets_rows_aside(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, AttendOut(learner="policy_gradient", reward_fraction=0.25, dropout_step=2))
    assert (len(trainer.train_dataset), len(trainer.reward_dataset)) == (12, 4)
    trainer.train()
    told = [entry for entry in trainer.state.log_history if "attendout/reward" in entry]
    assert [entry["step"] for entry in told] == [2, 4, 6]
    assert all(0 < entry["attendout/drop_probability/encoder.1"] < 1 for entry in told)


def test_the_trainer_takes_the_development_set_where_it_is_told_to(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, AttendOut(reward_data="eval"), eval_dataset=examples(count=5))
    assert (len(trainer.train_dataset), len(trainer.reward_dataset)) == (16, 5)
    with pytest.raises(AttendropError, match="needs one eval_dataset"):
        trainer_of(tmp_path, AttendOut(reward_data="eval"))


def test_rows_that_are_given_are_used(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, AttendOut(), reward_dataset=examples(count=3))
    assert (len(trainer.train_dataset), len(trainer.reward_dataset)) == (16, 3)


def test_columns_that_the_model_does_not_take_are_no_trouble(tmp_path: Path) -> None:
    others = {"length": 3, "text": "of no use, and no number"}
    rows = Dataset.from_list([{k: v.tolist() for k, v in row.items()} | others for row in examples()])

    def collate(rows: Any) -> Any:
        return zoo.collate([{k: torch.tensor(v) for k, v in row.items()} for row in rows])

    trainer = trainer_of(tmp_path, AttendOut(dropout_step=2), train_dataset=rows, data_collator=collate)
    trainer.train()
    assert any("attendout/reward" in entry for entry in trainer.state.log_history)


def test_the_metric_of_the_task_may_be_the_score(tmp_path: Path) -> None:
    def accuracy(found: Any) -> dict[str, float]:
        return {"accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))}

    trainer = trainer_of(
        tmp_path,
        AttendOut(score="metric", dropout_step=2, reward_batch_size=3),
        compute_metrics=accuracy,
        metric_for_best_model="accuracy",
        greater_is_better=True,
    )
    trainer.train()
    rewards = [entry["attendout/reward"] for entry in trainer.state.log_history if "attendout/reward" in entry]
    assert rewards
    assert all(round(reward * 6, 6).is_integer() for reward in rewards)  # two items of three samples


def test_generator_and_defender_work_under_bfloat16(tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path, AttendOut(learner="policy_gradient", dropout_step=2), bf16=True, model=zoo.build("bert", dropout=0.1)
    )
    trainer.train()
    players = trainer.method_state.players  # type: ignore[union-attr]
    assert players.autocast == torch.bfloat16
    zoo.assert_same(dict(trainer.model.named_parameters()), dict(players.defender.model.named_parameters()))


def test_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    """With a generator that soon tells layers apart: when one runs again, its draw is the same."""
    method = AttendOut(learner="policy_gradient", dropout_step=1, generator_learning_rate=1.0)
    found = []
    for on in (False, True):
        trainer = trainer_of(
            tmp_path, method, **(checkpointing_arguments() if on else {}), model=zoo.build("bert", dropout=0.1)
        )
        trainer.train()
        found.append({name: value.detach().clone() for name, value in trainer.model.state_dict().items()})
    zoo.assert_same(*found, 1e-6)


def test_rows_without_columns_of_a_method_are_left_to_the_collator() -> None:
    """Rows may be tuples, and what loads them in other processes must be picklable."""
    collate = ColumnCollator(default_collate, ["answer_mask"])
    assert [each.tolist() for each in pickle.loads(pickle.dumps(collate))([(1, 2), (3, 4)])] == [[1, 3], [2, 4]]
    indexed = ColumnCollator(default_collate, [], with_index=True)
    assert indexed([{"a": 5, "row_index": 7}, {"a": 6, "row_index": 2}])["row_index"].tolist() == [7, 2]
