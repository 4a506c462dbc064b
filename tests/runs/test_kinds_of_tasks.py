"""A run of each kind of task learns it, and its model predicts other rows as well as its scores say."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from helpers import tiny, tiny_translators
from helpers.command_line import Captured
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NOUNS = ("cat", "dog", "bird")
OTHERS = [word for word in tiny.WORDS if word not in NOUNS]


def chosen(number: int) -> dict[str, Any]:
    """Of two to four choices, the one with an animal is correct."""
    draw = random.Random(number)
    choices = [f"{draw.choice(OTHERS)} {draw.choice(OTHERS)}" for _ in range(2 + number % 3)]
    correct = draw.randrange(len(choices))
    choices[correct] = f"{draw.choice(OTHERS)} {draw.choice(NOUNS)}"
    return {"q": tiny.sentence(number), "text": choices, "label": "ABCD"[correct]}


def tagged(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    words = [draw.choice(tiny.WORDS) for _ in range(2 + number % 7)]
    return {"q": "", "text": words, "label": ["B-ANIMAL" if word in NOUNS else "O" for word in words]}


@pytest.mark.parametrize(
    ("row", "options", "metric", "column"),
    [(chosen, "q,text --label-type choice", "accuracy", "label"), (tagged, "text", "entity_f1", "tags")],
)
def test_a_run_learns_and_its_predictions_are_as_good_as_its_scores(
    row: Callable[[int], dict[str, Any]], options: str, metric: str, column: str, tmp_path: Path, capsys: Captured
) -> None:
    tiny.save_tiny_bert(tmp_path / "model")
    for name, numbers in (("train", range(70)), ("dev", range(100, 120))):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in numbers))
    files = f"--train-file {tmp_path}/train.jsonl --eval-file {tmp_path}/dev.jsonl --model {tmp_path}/model"
    how = "--epochs 5 --batch-size 8 --max-length 24 --learning-rate 1e-2 --method finetune --device cpu --quiet"
    columns = f"--label-column label --text-columns {options}"
    assert cli.main(f"train {files} {how} {columns} --output-dir {tmp_path}/run".split()) == 0
    metrics = tiny.read_metrics(tmp_path / "run")
    scores = metrics["all_scores"]["dev"]
    assert metrics["score"] == scores[metric] >= 0.9
    assert metrics["baseline"]["dev"]["scores"][metric] < 0.7
    (tmp_path / "dev.jsonl").rename(tmp_path / "new.jsonl")
    capsys.readouterr()
    new = ["--device", "cpu", f"{tmp_path}/run", f"{tmp_path}/new.jsonl"]
    assert cli.main(["evaluate", *new, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == pytest.approx(scores)
    assert cli.main(["predict", *new, "--quiet", "--output", f"{tmp_path}/out.jsonl"]) == 0
    found = [json.loads(line)[column] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    pairs = zip(found, (row(number)["label"] for number in range(100, 120)), strict=True)
    right = [one == other for given, label in pairs for one, other in zip(given, label, strict=True)]
    assert sum(right) / len(right) == pytest.approx(scores["accuracy"])


def test_words_of_a_column_file_get_tags_beside_its_columns(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The run is that of an untrained model: its tags are whatever."""
    tiny.save_tiny_bert(tmp_path / "model")
    text = "the O\ncat B-ANIMAL\n\nbad O\n"
    (tmp_path / "in.conll").write_text(text)
    how = f"--train-file {tmp_path}/in.conll --model {tmp_path}/model --device cpu --quiet --max-steps 1"
    assert cli.main([*f"train {how} --method finetune --selection-fraction 0 --output-dir {tmp_path}/run".split()]) == 0
    asked = f"predict {tmp_path}/run --predict-file {tmp_path}/in.conll --device cpu --quiet --keep-columns"
    assert cli.main([*asked.split(), "--output", f"{tmp_path}/out.conll"]) == 0
    lines = [line.split("\t") for line in (tmp_path / "out.conll").read_text().splitlines()]
    assert [line[:-1] for line in lines] == [["the", "O"], ["cat", "B-ANIMAL"], [], ["bad", "O"], []]
    assert all(line[-1] in ("O", "B-ANIMAL") for line in lines if len(line) > 1)
    (tmp_path / "in.conll").write_text(f"{text}\nbad far O\n\ncat O\n\nbad\n")  # of too many columns, and too few
    for name in ("out.conll", "out.jsonl"):
        assert cli.main([*asked.split(), "--output", f"{tmp_path}/{name}", "--skip-bad-rows", "--overwrite"]) == 0
    skipped = ["_", "_", "_"]
    lines = [line.split("\t") for line in (tmp_path / "out.conll").read_text().splitlines()]
    assert [[line[:-1], line][line == skipped] for line in lines] == [
        *(["the", "O"], ["cat", "B-ANIMAL"], [], ["bad", "O"], [], skipped, [], ["cat", "O"], [], skipped, []),
    ]
    rows = list(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines()))
    assert [row["tokens"] for row in rows] == [["the", "cat"], ["bad"], None, ["cat"], None]
    assert [bool(row["skipped"]) for row in rows] == [row["predicted_tags"] is None for row in rows]


# Whole runs of models that translate


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = tmp_path_factory.mktemp("translation")
    tiny_translators.save_tiny_marian(pairs / "model")
    tiny_translators.write_pairs(pairs, "train", range(40))
    tiny_translators.write_pairs(pairs, "dev", range(100, 112))
    encoder = ("--method", "ad-drop", "--set", "layers=encoder", "--set", "cross_tuning=false")
    assert cli.main(train(pairs, "run", *encoder, "--task-set", "num_beams=2")) == 0
    return pairs


def train(pairs: Path, name: str, *more: str) -> list[str]:
    train, dev = (f"{pairs}/{part}.en,{pairs}/{part}.ro" for part in ("train", "dev"))
    return [
        *("train", "--train-file", train, "--eval-file", dev, "--model", f"{pairs}/model", "--max-steps", "6"),
        *("--output-dir", f"{pairs}/{name}", "--batch-size", "8", "--max-length", "16", "--learning-rate", "1e-2"),
        *("--task-set", "max_new_tokens=6", "--device", "cpu", "--quiet", *more),
    ]


def evaluate(run: Path, capsys: Captured, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--device", "cpu", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)["all_scores"]


def test_the_score_is_that_of_what_the_saved_model_writes(pairs: Path, capsys: Captured) -> None:
    metrics = tiny.read_metrics(pairs / "run")
    scores = metrics["all_scores"]["dev"]
    assert list(scores) == ["bleu", "chrf", "neg_log_loss"] and metrics["metric"] == "bleu"
    model, tokenizer = (loader.from_pretrained(pairs / "run") for loader in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert (model.generation_config.num_beams, model.generation_config.max_new_tokens) == (2, 6)
    texts = [tiny_translators.pair(number) for number in range(100, 112)]
    written = [
        tokenizer.decode(model.generate(**tokenizer(text, return_tensors="pt"))[0], skip_special_tokens=True)
        for text, _ in texts
    ]
    expected = sacrebleu.corpus_chrf(written, [[target for _, target in texts]]).score / 100
    assert scores["chrf"] == pytest.approx(expected) and expected > 0
    assert evaluate(pairs / "run", capsys) == pytest.approx(scores)
    shorter = evaluate(pairs / "run", capsys, "--task-set", "max_new_tokens=1")  # instead of the run's own
    assert shorter["chrf"] != scores["chrf"] and shorter["neg_log_loss"] == pytest.approx(scores["neg_log_loss"])
    history = metrics["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"] and history[0]["dropped"]["ad-drop"] > 0.02
