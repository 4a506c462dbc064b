"""``attendrop.load``: models that predict texts as ``attendrop predict`` does."""

from __future__ import annotations

import copy
import csv
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

import attendrop
from attendrop import AttendropError
from attendrop.runs import inference
from attendrop.runs.config import Source
from attendrop.runs.inference import predict
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train

PAIRS = [("the cat sees", "a dog"), ("a bird", "the red bird likes a cat"), ("not far", "near")]


@pytest.fixture(scope="module")
def runs(own: Path, shared: Path) -> Path:
    """Finished runs on pairs of texts: ``run``, and ``light`` with a layer pruned."""
    (own / "run").symlink_to(shared / "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attendrop.runs.prune.SECONDS", 0.01)
        prune_run(str(own / "run"), str(own / "light"), layers="1,", device="cpu")
    return own


@pytest.mark.parametrize("name", ["run", "light"])
def test_texts_get_the_predictions_of_a_file(
    runs: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("\n".join(["sentence1,sentence2", *map(",".join, PAIRS)]) + "\n")
    predict(str(runs / name), Source(file=str(file), device="cpu"), str(tmp_path / "out.csv"), probabilities=True)
    with (tmp_path / "out.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    model = attendrop.load(runs / name)
    monkeypatch.setattr(inference, "CHUNK_ROWS", 2)
    assert model.predict(PAIRS) == [row["label"] for row in rows]
    for found, row in zip(model.predict(iter(PAIRS), probabilities=True), rows, strict=True):
        assert found["label"] == row["label"]
        for column in ("probability", "probability_no", "probability_yes"):
            assert found[column] == pytest.approx(float(row[column]), abs=2e-6)
    assert model.predict([]) == []


def test_a_copy_of_a_model_predicts_with_its_own_weights(runs: Path) -> None:
    model = attendrop.load(runs / "run")
    before = model.predict(PAIRS, probabilities=True)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.predict(PAIRS, probabilities=True) == before
        for weight in copied.classifier.parameters():
            weight.data.zero_()
        assert {row["probability"] for row in copied.predict(PAIRS, probabilities=True)} == {0.5}
    assert model.predict(PAIRS, probabilities=True) == before


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ("the cat", "predict reads a list of texts, not the text 'the cat'; write [text]."),
        (
            [PAIRS[0], "the cat"],
            "Text 1 has 1 text; the model reads 2 texts together, as a tuple.",
        ),
        ([("a", "b", "c")], "Text 0 has 3 texts; the model reads 2 texts together, as a tuple."),
        ([PAIRS[0], ("a", " ")], "Text 1 cannot be predicted: the text is empty."),
        ([("a", 1.5)], "Text 0 cannot be predicted: 1.5 is not text."),
    ],
)
def test_texts_that_the_model_cannot_read_are_refused(runs: Path, texts: Any, problem: str) -> None:
    with pytest.raises(AttendropError, match=re.escape(problem)):
        attendrop.load(runs / "run").predict(texts)


def test_a_model_without_a_head_predicts_nothing(runs: Path) -> None:
    with pytest.raises(AttendropError, match="has no trained head: fine-tune it first"):
        attendrop.load(runs / "model").predict(PAIRS)


def test_a_number_has_no_probabilities(runs: Path) -> None:
    file = tiny.write_csv(runs / "numbers.csv", [0.5 + number % 5 for number in range(20)])
    how = {"method": "finetune", "max_steps": 0, "epochs": None, "pooling": "mean", "head_init": "linear-probe"}
    train(tiny.config(runs, "number", train_file=str(file), eval_file=None, **how))
    model = attendrop.load(runs / "number")
    assert all(isinstance(found, float) for found in model.predict(PAIRS))
    with pytest.raises(AttendropError, match="predicts a number: it has no probabilities of classes"):
        model.predict(PAIRS, probabilities=True)


def test_without_the_packages_of_the_command_line_models_load_and_do_not_predict(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = attendrop.load(runs / "run")
    monkeypatch.setitem(sys.modules, "attendrop.runs.inference", None)
    with pytest.raises(AttendropError, match=r"predict needs .*; run `pip install 'attendrop\[cli\]'`"):
        model.predict(PAIRS)
