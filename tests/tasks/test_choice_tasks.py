"""Multiple-choice tasks: SWAG and ARC in their official files, in a copy, and on the hub; files of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from attendrop import AttendropError
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.registry import load_task, task_files

SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
SWAG_ROW = '0,a-1,7,They look up. She,They look up.,She,gold,"smiles, then leaves.",sings.,runs.,sits.'


def arc(number: int, key: str, labels: str = "ABC") -> str:
    choices = [{"text": f"choice {label}", "label": label} for label in labels]
    return json.dumps({"id": str(number), "question": {"stem": f"why {number}?", "choices": choices}, "answerKey": key})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "swag").mkdir()
    for name in ("train", "val", "test"):
        label = ("", "") if name == "test" else (",label", ",2")
        (tmp_path / "swag" / f"{name}.csv").write_text(f"{SWAG_HEADER}{label[0]}\n{SWAG_ROW}{label[1]}\n")
    for name in ("Easy", "Challenge"):
        inside = tmp_path / "ARC-V1-Feb2018-2" / f"ARC-{name}"
        inside.mkdir(parents=True)
        for title in ("Train", "Dev", "Test"):
            rows = [arc(1, "C"), arc(2, "2", "1234"), arc(3, "E", "ABCDE")][: 3 if title == "Train" else 1]
            (inside / f"ARC-{name}-{title}.jsonl").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("ATTENDROP_DATA", str(tmp_path))
    return tmp_path


# Named tasks ----------------------------------------------------------------------------------------------------------


def test_swag_asks_how_the_second_sentence_goes_on(folder: Path) -> None:
    data = load_task("swag", splits=("train", "dev", "test"))
    (row,) = data.splits["dev"]
    assert row == {
        "question": "They look up.",
        "choices": ["She smiles, then leaves.", "She sings.", "She runs.", "She sits."],
        "label": 2,
        "index": 0,
    }
    assert "label" not in data.splits["test"].column_names
    assert [path.name for path in task_files("swag")] == ["train.csv", "val.csv", "test.csv"]
    file = folder / "swag" / "train.csv"
    file.write_text(file.read_text().replace(",2\n", ",4\n"))
    with pytest.raises(
        AttendropError, match=r"train.csv, line 2: the label '4' is none of the 4 choices, from 0 to 3\."
    ):
        load_task("swag")


def test_arc_has_easy_and_challenging_questions_of_three_to_five_choices(folder: Path) -> None:
    rows = load_task("arc").splits["train"]
    assert rows["label"][:] == [2, 1, 4] * 2 and rows["index"][:] == list(range(6))
    assert [len(choices) for choices in rows["choices"]] == [3, 4, 5] * 2
    easy = load_task("arc-easy", splits=("train", "dev", "test"))
    assert {split: len(rows) for split, rows in easy.splits.items()} == {"train": 3, "dev": 1, "test": 1}
    file = folder / "ARC-V1-Feb2018-2" / "ARC-Challenge" / "ARC-Challenge-Dev.jsonl"
    file.unlink()
    with pytest.raises(AttendropError, match=r"no file of arc-challenge dev, such as '\*\*/ARC-Challenge-Dev.jsonl'"):
        load_task("arc-challenge")


def test_a_copy_of_arc_that_lost_choices_is_read_without_those_questions(tmp_path: Path) -> None:
    (tmp_path / "arc").mkdir()
    lines = ['"who, then?",a,b,c,d,B', "why?,a,b,c,,C", "lost?,,,,,1", "five?,a,b,c,d,E", "last?,a,b,c,d,2"]
    for name in ("dev", "test"):
        (tmp_path / "arc" / f"arc_easy_{name}.csv").write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="skipped 2 of 5 questions, whose choices are not in the file"):
        data = load_task("arc-easy", data_dir=tmp_path)
    assert data.splits["train"]["question"][:] == ["who, then?", "why?", "last?"]
    assert data.splits["dev"]["label"][:] == [1, 2, 1]


def test_questions_come_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTENDROP_DATA", raising=False)
    choices = {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}
    there = {
        "allenai/ai2_arc": {"question": ["why?"], "choices": [choices], "answerKey": ["3"]},
        "allenai/swag": {"sent1": ["A."], "sent2": ["B"], **{f"ending{n}": [f"e{n}"] for n in range(4)}, "label": [-1]},
    }
    asked: list[Any] = []

    def load_dataset(name: str, *names: str, split: str, **options: Any) -> Dataset:
        asked.append((name, *names, split))
        return Dataset.from_dict(there[name])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    data = load_task("arc", splits=("dev",))
    assert data.splits["dev"]["label"][:] == [2, 2] and data.source == "Hugging Face hub allenai/ai2_arc"
    assert "label" not in load_task("swag", splits=("test",)).splits["test"].column_names
    assert asked == [
        ("allenai/ai2_arc", "ARC-Easy", "validation"),
        ("allenai/ai2_arc", "ARC-Challenge", "validation"),
        ("allenai/swag", "regular", "test"),
    ]


# Files of one's own ---------------------------------------------------------------------------------------------------

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def written(*rows: str, header: str = "q,a,b,c,label") -> Path:
        Path("own.csv").write_text("\n".join([header, *rows]) + "\n")
        return Path("own.csv")

    return written


def load(path: Path, columns: str = "q,a,b,c", **options: Any) -> Any:
    return load_files(train_file=path, text_columns=columns.split(","), label_column="label", **options)


def test_choices_in_columns_of_which_the_last_may_be_empty(write: Write) -> None:
    data = load(write("why?,x, y ,z,C", "how?,x,y,,a"))
    rows = data.splits["train"]
    assert rows["choices"][:] == [["x", "y", "z"], ["x", "y"]] and rows["label"][:] == [2, 0]
    assert data.task.kind == "multiple-choice" and data.task.label_names == ("A", "B", "C")


def test_choices_in_a_list_with_numbers_as_labels(write: Write) -> None:
    file = write('why?,"[""x"", 5, ""z""]",1.0', 'how?,"[""x"", ""y""]",0', header="q,all,label")
    data = load(file, "q,all")
    assert data.splits["train"]["choices"][:] == [["x", "5", "z"], ["x", "y"]]
    assert data.splits["train"]["label"][:] == [1, 0] and data.task.label_names == ("0", "1")
    records = [{"q": "why?", "all": ["x", "y"], "label": "B"}, {"q": "how?", "all": ["x", "y", "z"], "label": "A"}]
    Path("own.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert load(Path("own.jsonl"), "q,all").splits["train"]["label"][:] == [1, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("why?,x,,,A", "own.csv, line 3: only one choice; give 2 to 26, in a column each, or as a list."),
        ("why?,,,,A", "own.csv, line 3: no choice; give 2 to 26"),
        ("why?,x,,z,A", "own.csv, line 3: choice 2 of 3 is empty."),
        (",x,y,z,A", "own.csv, line 3, column 'q': the text is empty."),
        ("why?,x,y,,C", "own.csv, line 3: the label 'C' is none of the 2 choices, from A to B."),
        ("why?,x,y,z,", "own.csv, line 3, column 'label': the label is empty."),
        ("why?,x,y,z,yes", "the label 'yes' is neither the letter of a choice nor its number, from 0."),
        ("why?,x,y,z,-1", "the label '-1' is neither the letter of a choice nor its number, from 0."),
        ("why?,x,y,z,1", "the label '1' is not written as those of training, with letters."),
    ],
)
def test_bad_rows_are_named(row: str, message: str, write: Write) -> None:
    with pytest.raises(AttendropError) as refused:
        load(write("how?,x,y,z,A", row))
    assert message in str(refused.value)
    kept = load(write("how?,x,y,z,A", row), skip_bad_rows=True)
    assert len(kept.splits["train"]) == 1 and len(kept.skipped) == 1


def test_numbers_that_seem_to_count_from_one_are_refused(write: Write) -> None:
    with pytest.raises(
        AttendropError, match="no label is 0, and choices count from 0; subtract 1 if yours count from 1"
    ):
        load(write("why?,x,y,z,1", "how?,x,y,z,2"))
