"""Multiple choice in files of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attendrop import AttendropError
from attendrop.tasks.custom_files import load_files

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
