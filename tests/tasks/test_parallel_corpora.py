"""Pairs of texts: parallel files, plain text, and the tasks of WMT16 in folders and on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from attendrop import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.run_file import read_run_file, run_file
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.registry import get_task, load_task, task_files
from attendrop.tasks.table_files import read_chunks, read_table


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


# Files ----------------------------------------------------------------------------------------------------------------


def test_parallel_files_are_one_table(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.tr", "bir, iki", "üç\r", "dört"), write(tmp_path / "a.en", "x", " y", "z")
    chunks = list(read_chunks(f"{first},{second}", 2))
    assert [chunk.columns for chunk in chunks] == [["source", "target"]] * 2
    assert [row for chunk in chunks for row in chunk.rows] == [["bir, iki", "x"], ["üç", " y"], ["dört", "z"]]
    assert chunks[1].places == ["line 3"] and chunks[1].index == [2]


def test_a_file_whose_name_has_a_comma_is_one_file(tmp_path: Path) -> None:
    assert read_table(write(tmp_path / "a,b.txt", "one")).rows == [["one"]]


def test_parallel_files_name_their_columns_and_labels(tmp_path: Path) -> None:
    files = f"{write(tmp_path / 'a.tr', 'bir')},{write(tmp_path / 'a.en', 'one')}"
    config = RunConfig(model="minilm", output_dir="out", train_file=files)
    assert (config.text_columns, config.label_column, config.label_type) == (("source",), "target", "text")
    write(tmp_path / "run.yaml", run_file(config))
    assert read_run_file(str(tmp_path / "run.yaml"))["train_file"] == files


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("one", "two"), r"a\.en ends before line 3, and the other file goes on"),
        (("one", "two", "three", "four"), r"a\.tr ends before line 4"),
        (("one", "  ", "three"), r"line 2, column 'target': the text is empty"),
    ],
)
def test_lines_without_a_partner(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    files = f"{write(tmp_path / 'a.tr', 'bir', 'iki', 'üç')},{write(tmp_path / 'a.en', *lines)}"
    with pytest.raises(AttendropError, match=message):
        load_files(train_file=files, text_columns=["source"], label_column="target", label_type="text")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=r"there is no file .*b\.en"):
        read_table(f"{write(tmp_path / 'a.tr', 'bir')},{tmp_path / 'b.en'}")
    with pytest.raises(AttendropError, match="are 3 parallel files; give two"):
        read_table("a,b,c")
