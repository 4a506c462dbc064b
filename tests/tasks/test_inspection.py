"""What inspection counts, beside what `tests/cli/test_inspect.py` shows of a whole report."""

from pathlib import Path

from attendrop.tasks.inspection import inspect_files


def test_rows_of_evaluation_that_are_in_training_are_counted_once_each(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text("text,label\nthe first text,yes\nthe second text,no\n")
    dev.write_text("text,label\nThe  first text,yes\nthe first text,no\nanother text,no\n")
    assert inspect_files(train, dev).doubts()["in_both"].startswith("2 of 3 rows of ")
