"""Whole runs that tag words: training, scores, predictions, comparison, pruning, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from helpers import tiny
from helpers.command_line import Captured, assert_refused

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NOUNS = ("cat", "dog", "bird")


def tag(word: str) -> str:
    return "B-ANIMAL" if word in NOUNS else "O"


def words_of(number: int) -> list[str]:
    draw = random.Random(number)
    return [draw.choice(tiny.WORDS) for _ in range(2 + number % 7)]


def write_conll(path: Path, first: int, count: int, *, tagged: bool = True) -> Path:
    rows = [[f"{word} {tag(word)}" if tagged else word for word in words_of(n)] for n in range(first, first + count)]
    path.write_text("\n\n".join("\n".join(row) for row in rows) + "\n")
    return path


def write_conllu(path: Path, first: int, count: int) -> Path:
    """Each word below the word before it."""
    parts = {word: "NOUN" if word in NOUNS else "X" for word in tiny.WORDS}
    rows = (
        "\n".join(f"{i}\t{word}\t_\t{parts[word]}\t_\t_\t{i - 1}\t_\t_\t_" for i, word in enumerate(words_of(n), 1))
        for n in range(first, first + count)
    )
    path.write_text("\n\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tags")
    tiny.save_tiny_bert(folder / "model")
    write_conll(folder / "train.conll", 0, 80)
    write_conll(folder / "dev.conll", 100, 20)
    write_conllu(folder / "train.conllu", 0, 24)
    assert cli.main(train(folder, "run", "--epochs", "5", "--learning-rate", "1e-2", "--method", "finetune")) == 0
    return folder


def train(folder: Path, name: str, *more: str, file: str = "train.conll") -> list[str]:
    dev = ("--eval-file", f"{folder}/dev.conll") if file == "train.conll" else ("--test-fraction", "0.2")
    return [
        *("train", "--train-file", f"{folder}/{file}", *dev, "--model", f"{folder}/model"),
        *("--output-dir", f"{folder}/{name}", "--batch-size", "8", "--max-length", "24", "--device", "cpu", "--quiet"),
        *more,
    ]


def lines_of(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


# Training and scores --------------------------------------------------------------------------------------------------


def test_a_run_learns_its_tags(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    scores = metrics["all_scores"]["dev"]
    assert list(scores) == ["entity_f1", "entity_precision", "entity_recall", "accuracy", "f1_macro"]
    assert metrics["score"] == scores["entity_f1"] > 0.9
    baseline = metrics["baseline"]["dev"]
    assert baseline["answer"] == "O" and baseline["scores"]["entity_f1"] == 0 < baseline["scores"]["accuracy"] < 1
    assert metrics["train_fit"]["metric"] == "entity_f1" and metrics["train_fit"]["fitted"]
    parts = metrics["data"]["report"]["parts"]
    assert parts["train"]["entities"]["ANIMAL"] == sum(tag(w) != "O" for n in range(80) for w in words_of(n))
    assert set(metrics["predicted"]["dev"]) == {"O", "B-ANIMAL"}
    assert metrics["training"]["head_start"] == "random" and metrics["training"]["pooling"] is None


def test_dependencies_of_words_restrict_attention(folder: Path) -> None:
    asked = train(folder, "run-ud", "--max-steps", "2", "--method", "structure-mask", file="train.conllu")
    assert cli.main([*asked, "--set", "structure=dependencies", "--set", "p=1"]) == 0
    metrics = tiny.read_metrics(folder / "run-ud")
    assert metrics["metric"] == "accuracy" and metrics["data"]["classes"] == ["NOUN", "X"]
    assert metrics["history"][0]["dropped"]["structure-mask"] > 0.1


# Other data -----------------------------------------------------------------------------------------------------------


def test_evaluation_repeats_the_score(folder: Path, capsys: Captured) -> None:
    assert cli.main(["evaluate", f"{folder}/run", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all_scores"] == pytest.approx(tiny.read_metrics(folder / "run")["all_scores"]["dev"])
    rows = [{"tokens": words_of(n), "tags": [tag(word) for word in words_of(n)]} for n in range(100, 120)]
    (folder / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["evaluate", f"{folder}/run", "--eval-file", f"{folder}/dev.jsonl", "--device", "cpu", "--json"]
    assert cli.main(asked) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == found["all_scores"]


def test_tags_that_training_lacks_count_as_wrong_where_asked(folder: Path, capsys: Captured) -> None:
    (folder / "new.conll").write_text("the O\ncat B-ANIMAL\ndog I-ANIMAL\n\nthe O\nbird B-PLANT\n")
    options = ["--eval-file", f"{folder}/new.conll", "--unknown-labels", "wrong", "--max-steps", "1"]
    assert cli.main(train(folder, "new", *options)) == 0
    assert "2 labels of dev that train lacks count as wrong: 'I-ANIMAL' (1), 'B-PLANT' (1)." in capsys.readouterr().err
    evaluate = ["evaluate", f"{folder}/run", "--eval-file", f"{folder}/new.conll", "--device", "cpu", "--json"]
    assert cli.main(evaluate) == 2
    assert "the tag 'I-ANIMAL' is not among those of training (--unknown-labels wrong" in capsys.readouterr().err
    assert cli.main([*evaluate, "--unknown-labels", "wrong"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unknown_labels"] == {"I-ANIMAL": 1, "B-PLANT": 1} and found["rows"] == 2
    assert found["all_scores"]["accuracy"] == pytest.approx(3 / 5)  # this model has learnt its tags
    assert found["all_scores"]["entity_f1"] == 0.0  # both animals are one entity


def test_words_get_tags_beside_the_columns_of_the_input(folder: Path, tmp_path: Path) -> None:
    words, tagged = write_conll(tmp_path / "in.conll", 100, 5, tagged=False), write_conll(tmp_path / "b.conll", 100, 5)
    asked = ["predict", f"{folder}/run", "--device", "cpu", "--quiet", "--output"]
    assert cli.main([*asked, f"{tmp_path}/out.conll", "--predict-file", str(words)]) == 0
    expected = [line for n in range(100, 105) for line in [*([w, tag(w)] for w in words_of(n)), [""]]]
    assert lines_of(tmp_path / "out.conll") == expected
    assert cli.main([*asked, f"{tmp_path}/kept.conll", "--predict-file", str(tagged), "--keep-columns"]) == 0
    assert lines_of(tmp_path / "kept.conll")[0] == [words_of(100)[0], tag(words_of(100)[0]), tag(words_of(100)[0])]
    assert cli.main([*asked, f"{tmp_path}/out.jsonl", "--predict-file", str(words), "--probabilities"]) == 0
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert first["tags"] == [tag(word) for word in words_of(100)]
    assert np.add(first["probability_O"], first["probability_B-ANIMAL"]) == pytest.approx(1, abs=1e-5)
    assert cli.main([*asked, f"{tmp_path}/out.csv", "--predict-file", str(words)]) == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith('0,"[""')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pooling", "mean"), "pooling 'mean' is for tasks with one prediction for a whole text"),
        (("--head-start", "frozen"), "head-start 'frozen' is not possible: it needs one vector for the whole input"),
        (("--class-weights", "balanced"), "class-weights='balanced' needs classes; the labels are 2 tags of words."),
        (("--text-columns", "tokens,tags"), "text, label and token columns must differ"),
        (("--text-columns", "tokens,column_2"), "2 text columns are given; give 1."),
        (("--label-type", "class"), "is not text"),
    ],
)
def test_options_of_other_kinds_are_refused(
    folder: Path, tmp_path: Path, options: tuple[str, ...], message: str, capsys: Captured
) -> None:
    (folder / "three.conll").write_text("a X O\ncat Y B-X\n")
    asked = [*train(folder, "other", *options), "--output-dir", str(tmp_path / "out")]
    if "tokens,column_2" in options:
        asked[2] = asked[4] = f"{folder}/three.conll"
    assert_refused(asked, tmp_path / "out", message, capsys)
