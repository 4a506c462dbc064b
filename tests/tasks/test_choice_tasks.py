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


def test_numbers_that_seem_to_count_from_one_are_refused(write: Write) -> None:
    with pytest.raises(
        AttendropError, match="no label is 0, and choices count from 0; subtract 1 if yours count from 1"
    ):
        load(write("why?,x,y,z,1", "how?,x,y,z,2"))
