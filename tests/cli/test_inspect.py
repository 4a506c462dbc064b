"""`attendrop inspect` on ugly files, and what is told of files before training."""

from __future__ import annotations

import io
import json
import random
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Captured, assert_refused

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, Source
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
        *("skipped", "without_label", "variants", "rare", "duplicates", "conflicts", "in_both", "unknown_labels"),
    }
    assert doubts["without_label"].startswith("1 row ") and "1 of 2 rows of dev.csv" in doubts["in_both"]
    assert "'Lost' (1)" in doubts["unknown_labels"] and "'Refund', 'Delivery'" in doubts["conflicts"]


def test_a_report_ends_with_the_commands_to_run(ugly: str, capsys: Captured) -> None:
    assert cli.main(["inspect", ugly]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tickets.csv: 119 rows, Windows-1252 (a guess), separated by semicolons\n")
    assert "Length in words: " in out
    data = "tickets.csv --text-columns message --label-column category"
    assert f"  attendrop compare {data} --skip-bad-rows\n" in out
    Path("map.csv").write_text("label,meaning\nrefund,Refund\nRefnud,Refund\ndelivery,Delivery\n")
    merged = inspect_files(ugly, label_map="map.csv")
    assert set(merged.labels) == set(TOPICS) and not merged.variants


def test_the_commands_keep_a_type_of_labels_that_was_asked_for(tmp_path: Path, capsys: Captured) -> None:
    write_rows(tmp_path / "a.jsonl", [{"text": f"a b c {n}", "score": n % 3} for n in range(9)])
    written = (["--label-type", "text"], " --label-type text --model MODEL")  # the default model does not write
    for options, kept in (([], ""), (["--label-type", "number"], " --label-type number"), written):
        assert cli.main(["inspect", str(tmp_path / "a.jsonl"), *options]) == 0
        assert f"  attendrop train {tmp_path}/a.jsonl --text-columns text --label-column score{kept}\n" in (
            capsys.readouterr().out
        )


def test_the_commands_leave_out_words_for_missing_numbers(tmp_path: Path, capsys: Captured) -> None:
    write_rows(tmp_path / "a.jsonl", [{"text": f"a b c {n}", "score": ["1.5", "2", "-"][n % 3]} for n in range(9)])
    assert cli.main(["inspect", str(tmp_path / "a.jsonl")]) == 0
    assert capsys.readouterr().out.endswith(" --label-column score --label-type number --skip-bad-rows\n")


def test_labels_whose_kind_is_unclear_are_doubtful_and_refused_by_a_run(tmp_path: Path, capsys: Captured) -> None:
    file = str(tmp_path / "a.jsonl")
    mixed = [{"text": f"a b c {n}", "label": ["1", "x", ""][n % 3]} for n in range(9)]
    for rows, unclear in (
        ([{"text": f"a b c {n}", "label": n % 40} for n in range(99)], "40 different whole numbers may be classes"),
        (mixed, "the labels mix numbers, such as '1'"),
        ([{"text": f"a b c {n}", "label": f"w{n % 60}"} for n in range(99)], "60 different labels in 99 rows"),
    ):
        write_rows(tmp_path / "a.jsonl", rows)
        assert unclear in inspect_files(file).doubts()["label_type"]
        assert cli.main(["inspect", file]) == 0
        assert "--label-column label --label-type class" in capsys.readouterr().out
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


@pytest.mark.parametrize(
    ("labels", "kind", "label"),
    [
        (lambda n: {"labels": ["x", "y"][: n % 3]}, "labels", "labels"),
        (lambda n: {"tags": "x|y" if n % 2 else "xy"[n % 4 // 2]}, "class", "tags"),
        (lambda n: {"score": n / 4}, "number", "score"),
        (lambda n: {"score": n % 3}, "class", "score"),
        (lambda n: {}, "auto", None),
    ],
)
def test_kinds_of_labels(tmp_path: Path, labels: Callable[[int], dict[str, Any]], kind: str, label: str | None) -> None:
    rows = [{"text": f"a b c {n}"} | labels(n) for n in range(9)]
    write_rows(tmp_path / "a.jsonl", rows)
    found = inspect_files(tmp_path / "a.jsonl")
    assert (found.label_type, found.text_columns, found.label_column) == (kind, ("text",), label)


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.csv"], "there is no file nowhere.csv"),
        (["tickets.csv", "--label-column", "categry"], "did you mean 'category'?"),
        (["tickets.csv", "--eval-file", "nowhere.csv"], "there is no file nowhere.csv"),
    ],
)
def test_mistakes_are_refused(ugly: str, arguments: list[str], message: str, capsys: Captured) -> None:
    assert_refused(["inspect", *arguments], Path("none"), message, capsys)


def test_a_run_takes_the_columns_that_are_clear(ugly: str) -> None:
    run = RunConfig(model="m", output_dir="r", train_file=ugly, method="finetune")
    assert (run.text_columns, run.label_column) == (("message",), "category")
    with pytest.raises(AttendropError, match=r"hold the texts \(text-columns\); name them, of 'id', 'date', 'channel'"):
        RunConfig(model="m", output_dir="r", train_file=ugly, method="finetune", label_column="message")
    number = RunConfig(model="m", output_dir="r", train_file=ugly, method="finetune", label_column="hours")
    assert number.text_columns == ("message",)


def test_the_column_of_labels_may_have_no_name(tmp_path: Path) -> None:
    rows = [f"message {n} of a customer,{'xyz'[n % 3]},{'ab'[n % 2]}" for n in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label,", *rows]))
    run = RunConfig(model="m", output_dir="r", train_file=str(tmp_path / "a.csv"), method="finetune", label_column="")
    assert run.label_column == inspect_files(tmp_path / "a.csv", label_column="").label_column == ""
    assert Source(file="b.csv").columns_of("b.csv", run.as_dict(), labelled=True) == (("text",), "")


@pytest.mark.parametrize(
    ("columns", "unclear"),
    [
        (("message", "answer", "label"), "the texts (text-columns)"),
        (("message", "label", "category"), "the labels (label-column)"),
        (("message", "answer", "label", "category"), "the texts (text-columns) and the labels (label-column)"),
        (("message", "x", "y"), "the labels (label-column)"),
    ],
)
def test_a_run_does_not_guess_between_columns(columns: tuple[str, ...], unclear: str, tmp_path: Path) -> None:
    texts = {name: f"{name} number" for name in ("message", "answer")}
    rows = [{name: f"{texts[name]} {n}" if name in texts else f"{name}{n % 2}" for name in columns} for n in range(20)]
    write_rows(tmp_path / "a.jsonl", rows)
    with pytest.raises(AttendropError, match=re.escape(f"a.jsonl hold {unclear}; name them, of")):
        RunConfig(model="m", output_dir="r", train_file=str(tmp_path / "a.jsonl"), method="finetune")


def test_columns_of_zeros_and_ones_may_be_labels_together(tmp_path: Path, capsys: Captured) -> None:
    lines = [f"message {n} of a customer,{n % 2},{n % 3 % 2},{n % 5 % 2}" for n in range(30)]
    (tmp_path / "data.csv").write_text("\n".join(["text,toxic,spam,rude", *lines]))
    together = "in all of toxic,spam,rude if a row may have several labels"
    found = inspect_files(tmp_path / "data.csv")
    assert found.doubts()["label_column"] == (
        f"The labels may also be in 'spam' or 'toxic', or {together}: name their column with --label-column."
    )
    with pytest.raises(AttendropError, match=f"The labels may be in 'rude' or 'spam' or 'toxic', or {together}"):
        RunConfig(model="m", output_dir="r", train_file=str(tmp_path / "data.csv"), method="finetune")
    assert cli.main(["inspect", str(tmp_path / "data.csv"), "--label-column", "toxic,spam,rude"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{tmp_path}/data.csv: 30 rows, UTF-8, separated by commas\n")  # not quoted
    assert [line.split()[:2] for line in shown.splitlines()[3:7]] == [
        *(["text", "text"], ["toxic", "label"], ["spam", "label"], ["rude", "label"]),
    ]
    assert "label 'toxic,spam,rude' (3 labels, several of a row)" in shown
    assert "attendrop train" in shown and "--label-column toxic,spam,rude --label-type labels" in shown


@pytest.mark.parametrize("label", [{}, {"label": "good"}])
@pytest.mark.parametrize("command", ["inspect", "train --model minilm --output-dir {folder}/run --train-file"])
def test_chats_are_for_a_language_model(tmp_path: Path, capsys: Captured, label: dict[str, str], command: str) -> None:
    chat = {"messages": [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "Here."}]}
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps(chat | label) for _ in range(3)))
    columns = ["--text-columns", "messages", "--label-column", "label"] if label and command != "inspect" else []
    assert cli.main([*command.format(folder=tmp_path).split(), f"{tmp_path}/chats.jsonl", *columns]) == 2
    said = " ".join(capsys.readouterr().err.split())
    if label or command == "inspect":
        assert "'messages' has chats; to classify them, write each as one text." in said and "examples/sft.py" in said


def test_answers_in_texts_are_learnt_in_python(tmp_path: Path, capsys: Captured) -> None:
    answer = {"text": ["dog"], "answer_start": [2]}
    rows = [{"question": f"who sees {n}", "context": f"a dog sees {n}", "answers": answer} for n in range(12)]
    write_rows(tmp_path / "a.jsonl", rows)
    columns = ["--text-columns", "question,context", "--label-column", "answers"]
    assert cli.main(["inspect", f"{tmp_path}/a.jsonl", *columns]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "the labels are objects, spans of characters or answers in texts" in said
        and "examples/question_answering.py" in said
    )


def test_letters_that_the_output_lacks_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe on Windows is in the code page of its language."""
    (tmp_path / "a.csv").write_text("text,label\n我想取消订单,订单\n查看余额,账户\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["attendrop", "inspect", str(tmp_path / "a.csv")])
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="cp1252"))
    assert cli.main() == 0
    sys.stdout.flush()
    assert b"\\u8d26\\u6237" in written.getvalue()
