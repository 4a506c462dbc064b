"""The demonstration: its generated messages, and the comparison that it runs on them."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from pathlib import Path

import pytest
from helpers import tiny

from attendrop import AttendropError, cli
from attendrop.cli import demo
from attendrop.cli.demo_messages import generate_messages, write_messages
from attendrop.tasks.registry import load_files

Captured = pytest.CaptureFixture[str]
SHA256 = {
    "train.csv": "6111653599e82470840ff78c0e31b721c5bf242868ba76a7165baaaf306eca34",
    "test.csv": "786f72bad26fed1695b3a6a0fc4914ef3aa3e7f59c6148634d87a85217931a37",
}
TRAIN, TEST = generate_messages()


def test_the_files_are_the_same_everywhere(tmp_path: Path) -> None:
    """A change of the messages changes every published figure: it must be meant."""
    written = write_messages(tmp_path)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in written} == SHA256
    assert write_messages(tmp_path) == written  # where they are already


def test_all_topics_have_as_many_rows() -> None:
    assert set(Counter(topic for _, topic in TRAIN).values()) == {5}
    assert set(Counter(topic for _, topic in TEST).values()) == {105}
    assert {topic for _, topic in TRAIN} == {topic for _, topic in TEST}
    assert len({topic for _, topic in TRAIN}) == 48


def test_no_message_is_there_twice_or_in_both_files() -> None:
    messages = [message for message, _ in TRAIN + TEST]
    assert len(set(messages)) == len(messages)


def test_rows_are_in_random_order() -> None:
    assert len({topic for _, topic in TRAIN[:24]}) > 12


def test_half_of_the_phrases_are_new_in_the_test_messages() -> None:
    def words(rows: list[tuple[str, str]], topic: str) -> set[str]:
        return {word for message, of in rows if of.endswith(topic) for word in message.split()}

    for topic in {topic.split(": ")[1] for _, topic in TRAIN}:
        assert len(words(TEST, topic)) > len(words(TRAIN, topic)) + 10


def test_another_seed_gives_other_messages() -> None:
    assert not {message for message, _ in generate_messages(1)[0]} <= {message for message, _ in TRAIN + TEST}


def test_the_files_are_valid_data(tmp_path: Path) -> None:
    train, test = write_messages(tmp_path)
    data = load_files(train_file=train, eval_file=test, text_columns=["message"], label_column="topic")
    assert [(row["text"], data.task.label_names[row["label"]]) for row in data.splits["dev"]] == TEST


def test_another_file_of_the_same_name_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("mine")
    with pytest.raises(AttendropError, match=r"test\.csv' is not the demonstration's; name another folder"):
        write_messages(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test.csv"]
    assert (tmp_path / "test.csv").read_text() == "mine"


def test_the_demonstration_answers_and_is_not_run_again(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.save_tiny_bert(tmp_path / "model")
    monkeypatch.setattr(demo, "SETTINGS", [*demo.SETTINGS, "--max-steps", "2", "--max-length", "24"])
    asked = ["demo", "--model", str(model), "--seeds", "1", "--workers", "0", "--output-dir", str(tmp_path / "demo")]
    assert cli.main(asked) == 0
    out, err = capsys.readouterr()
    assert f"accuracy of {model} on test.csv (5040 rows), trained on train.csv:" in out
    compared = {"finetune", "ad-drop p=0.3 attribution=recorded layers=all", "frozen", "tfidf", "majority"}
    assert {line.split("  ")[0] for line in out.splitlines()} >= compared
    assert f"attendrop predict {tmp_path / 'demo' / 'answer' / 'best'}" in out

    command = next(line for line in err.splitlines() if line.startswith("attendrop compare "))
    before = finished(tmp_path / "demo")
    assert len(before) == 6  # two methods, three baselines, and the model that is kept
    assert cli.main([*shlex.split(command)[1:], "--json"]) == 0  # what it says that it runs is what it ran
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "demo/answer/answer.json").read_text())
    assert finished(tmp_path / "demo") == before


def finished(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.json")}
