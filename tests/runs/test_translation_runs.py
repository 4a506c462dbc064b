"""Whole runs of models that translate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from helpers import tiny, tiny_translators
from helpers.command_line import Captured
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


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
