"""`attendrop inspect` on ugly files, and what is told of files before training."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Captured

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.tasks.inspection import check_files, inspect_files

TOPICS = {
    "Refund": ("please send my money back for order", "wann kommt die Rückzahlung für Auftrag"),
    "Delivery": ("the parcel has not arrived, number", "wo bleibt mein Päckchen mit der Nummer"),
    "Account": ("I cannot log in to account", "Konto gesperrt, bitte prüfen:"),
}


@pytest.fixture
def ugly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file as a spreadsheet leaves it after a year of hands: 120 tickets of three classes."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    lines = ["id;date;channel;message;category;hours;category;note"]
    for n in range(120):
        label = list(TOPICS)[n % 3]
        text = f"{draw.choice(TOPICS[label])} {n}"
        text = {20: f'"well, {text}', 23: f'{text}"', 50: f'"{text}; asap"'}.get(n, text)
        written = {30: "refund", 31: "delivery ", 60: "Refnud", 77: "", 90: "refund"}.get(n, label)
        channel = draw.choice(("mail", "web"))
        lines.append(f"{1000 + n};2024-03-{n % 28 + 1:02d};{channel};{text};{written};{n % 7},5;x;")
        lines += ["", ";;;;;;;"] if n == 100 else []
    repeated = "send  MY parcel back"
    lines += [f"{1500 + n};2024-04-01;web;{repeated};{list(TOPICS)[n]};1,5;x;" for n in range(2)]
    lines += ["2000;2024-04-01;mail;broken"]
    Path("tickets.csv").write_bytes("\r\n".join(lines).encode("cp1252"))
    return "tickets.csv"


def test_all_that_is_doubtful_is_found(ugly: str) -> None:
    known = inspect_files(ugly).table.column("message")[0]
    Path("dev.csv").write_text(f"message,category\n  {known.upper()},Delivery\nnew,Lost\n")
    found = inspect_files(ugly, "dev.csv")
    assert (len(found.table), found.written_as) == (119, "Windows-1252 (a guess), separated by semicolons")
    assert {column.name: column.role for column in found.columns} == {
        **{"id": "id", "date": "date", "channel": "source", "message": "text", "category": "label"},
        **{"hours": "", "category.2": "constant", "note": "empty"},
    }
    assert (found.text_columns, found.label_column, found.label_type) == (("message",), "category", "class")
    assert found.variants == [["Delivery", "delivery"], ["Refund", "refund"]]
    assert [row.place for row in found.bad.skipped] == ["line 126"]
    guess, swallowed = (note for note in found.notes if "category" not in note)
    assert "a guess" in guess and "(lines 22-25)" in swallowed
    doubts = found.doubts()
    assert set(doubts) == {
        *("skipped", "without_label", "variants", "rare", "duplicates", "conflicts", "in_both", "unknown_labels")
    }
    assert doubts["without_label"].startswith("1 row ") and "1 of 2 rows of dev.csv" in doubts["in_both"]
    assert "'Lost' (1)" in doubts["unknown_labels"] and "'Refund', 'Delivery'" in doubts["conflicts"]


def test_a_report_ends_with_the_commands_to_run(ugly: str, capsys: Captured) -> None:
    assert cli.main(["inspect", ugly]) == 0
    data = "tickets.csv --text-columns message --label-column category"
    assert f"  attendrop compare {data} --skip-bad-rows\n" in capsys.readouterr().out
    Path("map.csv").write_text("label,meaning\nrefund,Refund\nRefnud,Refund\ndelivery,Delivery\n")
    merged = inspect_files(ugly, label_map="map.csv")
    assert set(merged.labels) == set(TOPICS) and not merged.variants


def test_the_commands_keep_a_type_of_labels_that_was_asked_for(tmp_path: Path, capsys: Captured) -> None:
    missing = " --label-type number --skip-bad-rows"  # a word for a number that is not there
    written = " --label-type text --model MODEL"  # the default model does not write
    for scores, options, kept in (
        ("012", [], ""),
        ("012", ["--label-type", "number"], " --label-type number"),
        ("012", ["--label-type", "text"], written),
        (["1.5", "2", "-"], [], missing),
    ):
        write_rows(tmp_path / "a.jsonl", [{"text": f"a b c {n}", "score": scores[n % 3]} for n in range(9)])
        assert cli.main(["inspect", str(tmp_path / "a.jsonl"), *options]) == 0
        command = f"  attendrop train {tmp_path}/a.jsonl --text-columns text --label-column score{kept}\n"
        assert command in capsys.readouterr().out


def test_labels_whose_kind_is_unclear_are_doubtful_and_refused_by_a_run(tmp_path: Path) -> None:
    file = str(tmp_path / "a.jsonl")
    for labels, unclear in (
        (range(40), "40 different whole numbers may be classes"),
        (["1", "x", ""], "the labels mix numbers, such as '1'"),
        ([f"w{n}" for n in range(60)], "60 different labels in 99 rows"),
    ):
        write_rows(tmp_path / "a.jsonl", [{"text": f"a b c {n}", "label": labels[n % len(labels)]} for n in range(99)])
        assert unclear in inspect_files(file).doubts()["label_type"]
        with pytest.raises(AttendropError, match=unclear):
            check_files(file, None, skip_bad_rows=True)
        assert "label_type" not in inspect_files(file, label_type="class").doubts()


def test_the_commands_quote_columns_with_a_comma(tmp_path: Path, capsys: Captured) -> None:
    rows = [{"what, in words": f"a b c {n}", "label, final": "xy"[n % 2]} for n in range(9)]
    write_rows(tmp_path / "a.jsonl", rows)
    assert cli.main(["inspect", str(tmp_path / "a.jsonl")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    given = shlex.split(last)[2:]
    assert given[1:] == ["--text-columns", '"what, in words"', "--label-column", "label, final"]
    assert cli.main(["inspect", *given]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_texts_of_a_word_are_texts_rather_than_ids(tmp_path: Path) -> None:
    """The column of ids was as long as that of queries, and before it."""
    rows = [{"id": n, "query": f"word{n % 7}", "label": "xy"[n % 2]} for n in range(12)]
    write_rows(tmp_path / "a.jsonl", rows)
    assert inspect_files(tmp_path / "a.jsonl").text_candidates == [("query",)]


def test_a_run_takes_the_columns_that_are_clear(ugly: str) -> None:
    run = RunConfig(model="m", output_dir="r", train_file=ugly, method="finetune")
    assert (run.text_columns, run.label_column) == (("message",), "category")
    with pytest.raises(AttendropError, match=r"hold the texts \(text-columns\); name them, of 'id', 'date', 'channel'"):
        RunConfig(model="m", output_dir="r", train_file=ugly, method="finetune", label_column="message")
    number = RunConfig(model="m", output_dir="r", train_file=ugly, method="finetune", label_column="hours")
    assert number.text_columns == ("message",)


@pytest.mark.parametrize(
    ("columns", "unclear"),
    [
        (("message", "answer", "label"), "the texts (text-columns)"),
        (("message", "label", "category"), "the labels (label-column)"),
        (("message", "x", "y"), "the labels (label-column)"),
        (("message", "opinion", "y"), "the labels (label-column)"),
    ],
)
def test_a_run_does_not_guess_between_columns(columns: tuple[str, ...], unclear: str, tmp_path: Path) -> None:
    texts = {name: f"{name} of a customer with the number" for name in ("message", "answer")}
    rows = [{name: f"{texts[name]} {n}" if name in texts else f"{name}{n % 2}" for name in columns} for n in range(20)]
    for row in rows if "opinion" in columns else []:  # whose names have more words than most
        row["opinion"] = f"I do not agree {row['opinion']}"
    write_rows(tmp_path / "a.jsonl", rows)
    with pytest.raises(AttendropError, match=re.escape(f"a.jsonl hold {unclear}; name them, of")):
        RunConfig(model="m", output_dir="r", train_file=str(tmp_path / "a.jsonl"), method="finetune")


def test_columns_of_zeros_and_ones_may_be_labels_together(tmp_path: Path) -> None:
    lines = [f"message {n} of a customer,{n % 2},{n % 3 % 2},{n % 5 % 2}" for n in range(30)]
    (tmp_path / "data.csv").write_text("\n".join(["text,toxic,spam,rude", *lines]))
    together = "or in all of toxic,spam,rude if a row may have several labels"
    assert together in inspect_files(tmp_path / "data.csv").doubts()["label_column"]
    with pytest.raises(AttendropError, match=f"The labels may be in 'rude' or 'spam' or 'toxic', {together}"):
        RunConfig(model="m", output_dir="r", train_file=str(tmp_path / "data.csv"), method="finetune")
    assert inspect_files(tmp_path / "data.csv", label_column="toxic,spam,rude").label_type == "labels"


CHAT = {"messages": [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "Here."}]}
ANSWERED = {"question": "who sees", "context": "a dog sees", "answers": {"text": ["dog"], "answer_start": [2]}}


@pytest.mark.parametrize(
    ("row", "columns", "told", "example"),
    [
        (CHAT | {"label": "good"}, [], "'messages' has chats; to classify them, write each as one text.", "sft"),
        (
            ANSWERED,
            ["--text-columns", "question,context", "--label-column", "answers"],
            "the labels are objects, spans of characters or answers in texts",
            "question_answering",
        ),
    ],
)
def test_what_is_learnt_in_python_only_names_its_example(
    tmp_path: Path, capsys: Captured, row: dict[str, Any], columns: list[str], told: str, example: str
) -> None:
    write_rows(tmp_path / "a.jsonl", [row] * 12)
    assert cli.main(["inspect", f"{tmp_path}/a.jsonl", *columns]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert told in said and f"examples/{example}.py" in said
