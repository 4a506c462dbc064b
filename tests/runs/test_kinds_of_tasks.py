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


# Whole runs of models that translate


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = tmp_path_factory.mktemp("translation")
    tiny_translators.save_tiny_marian(pairs / "model")
    tiny_translators.write_pairs(pairs, "train", range(40))
    tiny_translators.write_pairs(pairs, "dev", range(100, 112))
    train, dev = (f"{pairs}/{part}.en,{pairs}/{part}.ro" for part in ("train", "dev"))
    files = f"train --train-file {train} --eval-file {dev} --model {pairs}/model --output-dir {pairs}/run"
    how = "--max-steps 6 --batch-size 8 --max-length 16 --learning-rate 1e-2 --device cpu --quiet"
    encoder = "--method ad-drop --set layers=encoder --set cross_tuning=false"
    generation = "--task-set max_new_tokens=6 --task-set num_beams=2"
    assert cli.main(f"{files} {how} {encoder} {generation}".split()) == 0
    return pairs


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
