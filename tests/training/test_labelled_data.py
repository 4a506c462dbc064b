"""Data that models are scored on while they train."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import zoo
from helpers.training import examples, history, trainer_of
from torch.utils.data import DataLoader, IterableDataset, default_collate

from attendrop import AttendOut, AttendropError
from attendrop.methods.core.context import LabelledRows, Processes
from attendrop.training.regularization import labelled_data
from attendrop.training.trainer import ColumnCollator, set_aside

CPU = torch.device("cpu")


def test_items_are_drawn_at_random_and_fixed_by_the_seed() -> None:
    data = LabelledRows(list(range(20)), lambda rows: {"rows": torch.tensor(rows)}, CPU)

    def sampled(seed: int, count: int = 3, size: int = 4) -> list[list[int]]:
        return [item["rows"].tolist() for item in data.sample(seed, count, size)]

    assert sampled(1) == sampled(1) != sampled(2)
    assert all(len(set(item)) == 4 for item in sampled(1))
    assert {row for seed in range(30) for item in sampled(seed) for row in item} == set(range(20))
    assert sorted(sampled(0, 1, 99)[0]) == [*range(20)]
    batches = LabelledRows([{"rows": torch.tensor(rows)} for rows in ([0, 1], [2, 3, 4], [5])], None, CPU)
    found = {tuple(item["rows"].tolist()) for item in batches.sample(1, 30, 2)}
    assert found == {(0, 1), (2, 3, 4), (5,)}


def test_processes_share_all_rows_out() -> None:
    batches = [{"rows": torch.tensor([number])} for number in range(5)]
    for data in (LabelledRows(list(range(5)), lambda rows: {"rows": torch.tensor(rows)}, CPU),
                 LabelledRows(batches, None, CPU)):  # fmt: skip
        parts = [[*data.iter_batches(1, Processes(rank, 2))] for rank in (0, 1)]
        assert [[int(batch["rows"]) for batch in part] for part in parts] == [[0, 2, 4], [1, 3]]
    whole = LabelledRows(batches, None, CPU).iter_batches(2, Processes())  # batches are not divided or joined
    assert [int(batch["rows"]) for batch in whole] == [0, 1, 2, 3, 4]
    ragged = LabelledRows(list(range(5)), lambda rows: {"rows": rows}, CPU)
    assert [batch["rows"] for batch in ragged.iter_batches(2, Processes(0, 2))] == [[0, 1], [4]]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_reward_data_may_be_a_loader_or_batches() -> None:
    rows = zoo.rows("bert", (4, 6, 5))
    of_loader = labelled_data("reward_data", DataLoader(rows, batch_size=2, collate_fn=zoo.collate), CPU)  # type: ignore[arg-type]
    assert of_loader is not None and of_loader.sample(0, 2, 2)[0]["input_ids"].shape[0] == 2
    of_batches = labelled_data("reward_data", [zoo.collate(rows)], CPU)
    assert of_batches is not None and len(of_batches.sample(0, 5, 1)) == 5
    for given, message in (
        (Stream(), "not Stream"), (DataLoader(Stream()), "stream"), ([], "is empty"), ([1, 2], "not list"),
    ):  # fmt: skip
        with pytest.raises(AttendropError, match=message):
            labelled_data("reward_data", given, CPU)


@pytest.mark.parametrize("kind", [list, Dataset])
def test_rows_are_set_aside(kind: Any) -> None:
    rows = list(range(50)) if kind is list else Dataset.from_dict({"number": list(range(50))})
    parts = set_aside(rows, 0.1, 3)
    assert all(isinstance(part, Dataset) == (kind is Dataset) for part in parts)  # whose columns the trainer knows
    kept, held = ([row if kind is list else row["number"] for row in part] for part in parts)
    assert len(held) == 5 and held != list(range(5)) and sorted(kept + held) == list(range(50))
    assert len(set_aside(range(100), 0.29, 0)[1]) == 29 and len(set_aside(range(5), 0.1, 0)[1]) == 1
    for few, message in (([1], "cannot be divided"), (Stream(), "stream")):
        with pytest.raises(AttendropError, match=message):
            set_aside(few, 0.1, 0)


def test_the_trainer_takes_the_rows_that_it_is_told_to(tmp_path: Path) -> None:
    for method, options, counts in (
        (AttendOut(reward_fraction=0.25), {}, (12, 4)),
        (AttendOut(), {"reward_dataset": examples(count=3)}, (16, 3)),
        (AttendOut(reward_data="eval"), {"eval_dataset": examples(count=5)}, (16, 5)),
    ):
        trainer = trainer_of(tmp_path, method, **options)
        assert (len(trainer.train_dataset), len(trainer.reward_dataset)) == counts
    with pytest.raises(AttendropError, match="needs one eval_dataset"):
        trainer_of(tmp_path, AttendOut(reward_data="eval"))


def of_labels(found: Any) -> dict[str, float]:
    """The mean logit of the labels."""
    return {"eval_logit": float(found.predictions[range(len(found.label_ids)), found.label_ids].mean())}


def rewards_of(folder: Path, **options: Any) -> list[float]:
    """The rewards of a run whose models are scored by a metric."""
    method = AttendOut(score="metric", dropout_step=1, reward_batch_size=3)
    trainer = trainer_of(folder, method, max_steps=4, **{"metric_for_best_model": "eval_logit"} | options)
    trainer.train()
    return history(trainer, "attendout/reward")


def negated(found: Any) -> dict[str, float]:
    return {"error": -of_labels(found)["eval_logit"]}


@pytest.mark.parametrize(
    "options",
    [
        {
            "compute_metrics": lambda found: {"logit": float(found.predictions.mean())},
            "preprocess_logits_for_metrics": lambda logits, labels: logits.gather(1, labels[:, None]),
        },
        {"compute_metrics": negated, "metric_for_best_model": "eval_two_error", "greater_is_better": False}
        | {"eval_dataset": {"one": examples(count=2), "two": examples(count=3)}},
    ],
    ids=["preprocessed", "of which less is better, of one of several sets"],
)
def test_the_metric_is_computed_as_the_trainer_does(options: dict[str, Any], tmp_path: Path) -> None:
    usual = rewards_of(tmp_path / "usual", compute_metrics=of_labels)
    assert any(usual) and rewards_of(tmp_path / "other", **options) == pytest.approx(usual)


@pytest.mark.parametrize(("name", "message"), [("loss", "needs a trainer with"), ("f1", "'f1' is none of .*: logit;")])
def test_a_metric_that_is_not_computed_is_refused(name: str, message: str, tmp_path: Path) -> None:
    method = AttendOut(score="metric", dropout_step=1)
    trainer = trainer_of(tmp_path, method, compute_metrics=of_labels, metric_for_best_model=name, max_steps=4)
    with pytest.raises(AttendropError, match=message):
        trainer.train()


def test_rows_without_columns_of_a_method_are_left_to_the_collator() -> None:
    """Rows may be tuples, and what loads them in other processes must be picklable."""
    collate = ColumnCollator(default_collate)
    assert [each.tolist() for each in pickle.loads(pickle.dumps(collate))([(1, 2), (3, 4)])] == [[1, 3], [2, 4]]
    rows = [{"a": 5, "row_index": 7, "answer_mask": [1, 1]}, {"a": 6, "row_index": 2, "answer_mask": [0]}]
    assert collate(rows)["row_index"].tolist() == [7, 2]
    assert collate(rows)["answer_mask"].tolist() == [[1, 1], [0, -1]]
