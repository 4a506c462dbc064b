"""Pairs of texts: parallel files, plain text, and the tasks of WMT16 in folders and on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from attendrop import AttendropError
from attendrop.tasks.registry import get_task, load_task, task_files


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for split in ("train", "newsdev2016", "newstest2016"):
        write(tmp_path / "wmt16" / "tr-en" / f"{split}.tr", f"bir {split}", "", "üç")
        write(tmp_path / "wmt16" / "tr-en" / f"{split}.en", f"one {split}", "two", "three")
    return tmp_path


def test_each_direction_reads_the_same_files(corpus: Path) -> None:
    there, back = (load_task(name, data_dir=corpus, splits=("train", "dev")) for name in ("wmt16-tr-en", "wmt16-en-tr"))
    assert there.splits["dev"].to_list() == [
        {"text": "bir newsdev2016", "label": "one newsdev2016", "index": 0},
        {"text": "üç", "label": "three", "index": 2},
    ]
    assert (back.splits["train"]["text"][:], back.splits["train"]["label"][:]) == (
        there.splits["train"]["label"][:],
        there.splits["train"]["text"][:],
    )
    assert len(task_files("wmt16-tr-en", corpus)) == 6
    assert get_task("wmt16-en-ro").metric == "bleu"


def test_the_hub_has_one_configuration_for_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(*args: str, split: str) -> Dataset:
        asked.append((*args, split))
        return Dataset.from_dict({"translation": [{"ro": "un", "en": "one"}, {"ro": " ", "en": "two"}]})

    monkeypatch.setattr("datasets.load_dataset", load)
    monkeypatch.delenv("ATTENDROP_DATA", raising=False)
    found = load_task("wmt16-en-ro", splits=("dev",)).splits["dev"]
    assert asked == [("wmt/wmt16", "ro-en", "validation")]
    assert found.to_list() == [{"text": "one", "label": "un", "index": 0}]


def test_a_missing_split_is_named(corpus: Path) -> None:
    (corpus / "wmt16" / "tr-en" / "train.en").unlink()
    with pytest.raises(AttendropError, match=r"has no file of wmt16-tr-en train, such as 'train.en'\."):
        load_task("wmt16-tr-en", data_dir=corpus, splits=("train",))
