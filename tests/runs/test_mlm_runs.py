"""Whole runs that pre-train on texts: scores, filled masks, resumption, split batches, fine-tuning of the result."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.command_line import Captured, assert_refused
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop import cli
from attendrop.runs.config import RunConfig
from attendrop.runs.model_loading import default_pooling, load_model_and_tokenizer
from attendrop.runs.train import train as train_run
from attendrop.tasks.heads.masked_tokens import TokenMasks
from attendrop.tasks.registry import get_task

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
AD_DROP = ("--method", "ad-drop", "--set", "cross_tuning=false")


def write(path: Path, first: int, count: int) -> Path:
    """Write a corpus with an empty line after every fifth one, and one that no model knows."""
    lines = [tiny.sentence(n) + ("\n" if n % 5 == 0 else "") for n in range(first, first + count)]
    path.write_text("\n".join([*lines, "zebra"]) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    tiny.save_tiny_bert(folder / "model")
    write(folder / "train.txt", 0, 40)
    write(folder / "dev.txt", 100, 12)
    assert cli.main(train(folder, "run", *AD_DROP)) == 0
    return folder


def train(folder: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", "--task", "mlm", "--train-file", f"{folder}/train.txt", "--eval-file", f"{folder}/dev.txt"),
        *("--model", f"{folder}/model", "--output-dir", f"{folder}/{name}", "--max-steps", "6", "--batch-size", "8"),
        *("--max-length", "24", "--learning-rate", "1e-2", "--device", "cpu", "--quiet", *more),
    ]


def test_a_run_is_scored_by_the_likelihood_of_hidden_tokens(folder: Path, capsys: Captured) -> None:
    metrics = tiny.read_metrics(folder / "run")
    assert metrics["config"]["task"] is None and metrics["config"]["label_type"] == "mlm"
    assert metrics["data"]["rows"] == {"train": 41, "dev": 13}
    assert metrics["data"]["report"]["parts"]["dev"]["unknown"] == 1  # the zebra, which is not scored
    assert metrics["history"][0]["dropped"]["ad-drop"] > 0.02
    scores = metrics["all_scores"]["dev"]
    assert list(scores) == ["neg_log_loss", "perplexity", "accuracy"]
    assert scores["perplexity"] == pytest.approx(math.exp(-scores["neg_log_loss"])) and scores["perplexity"] < 21
    capsys.readouterr()
    assert cli.main(["evaluate", f"{folder}/run", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all_scores"] == pytest.approx(scores) and found["rows"] == 12


def test_texts_of_unknown_tokens_alone_have_no_score(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "unknown.txt").write_text("zebra\n\nzebra zebra\n")
    asked = ["evaluate", f"{folder}/run", "--eval-file", f"{tmp_path}/unknown.txt", "--device", "cpu"]
    capsys.readouterr()
    assert_refused(asked, tmp_path / "none", "unknown.txt has no row with a token that the model knows", capsys)
    file = ["--train-file", f"{tmp_path}/unknown.txt"]
    message = "none of 2 rows has a token that the model knows"
    assert_refused(train(folder, "refused", *file), folder / "refused", message, capsys)


# What training does not depend on -------------------------------------------------------------------------------------


def config(folder: Path, name: str, **options: Any) -> RunConfig:
    chosen = {"train_file": str(folder / "train.txt"), "eval_file": str(folder / "dev.txt"), "label_type": "mlm"}
    chosen |= {"text_columns": (), "label_column": None, "selection_fraction": 0.0, "options": {"p": 0.5}}
    return tiny.config(folder, name, **(chosen | options))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


class Stopped(Exception):
    pass


class StopAfter(TrainerCallback):
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == 13:  # in the second epoch; the last checkpoint is that of step 12
            raise Stopped


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the keys of all masks that are made from here on."""
    found, mask = set(), TokenMasks.mask

    def noted(self: TokenMasks, ids: Any, key: str, words: Any = None) -> Any:
        found.add(key)
        return mask(self, ids, key, words)

    monkeypatch.setattr(TokenMasks, "mask", noted)
    return found


def test_a_resumed_run_sees_the_same_masks(folder: Path, keys: set[str]) -> None:
    options: dict[str, Any] = {"epochs": 2, "save_steps": 3, "task_options": {"pack": True, "whole_words": True}}
    options |= {"batch_size": 2, "max_length": 16}
    train_run(config(folder, "whole", **options))
    assert keys == {"scored", "0/0", "0/1"}  # seed and epoch
    with pytest.raises(Stopped):
        train_run(config(folder, "stopped", **options), callbacks=[StopAfter()])
    keys.clear()
    train_run(config(folder, "stopped", **options), resume=True)
    assert keys == {"scored", "0/1"}
    whole, resumed = weights(folder / "whole"), weights(folder / "stopped")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    scores = [tiny.read_metrics(folder / name)["all_scores"] for name in ("whole", "stopped")]
    assert scores[0] == scores[1]


# Afterwards -----------------------------------------------------------------------------------------------------------


def test_the_folder_is_a_model_to_fine_tune(folder: Path) -> None:
    model, _ = load_model_and_tokenizer(str(folder / "run"), get_task("rte"))
    name = "bert.encoder.layer.1.attention.self.query.weight"
    before, pre_trained = weights(folder / "model")[name.removeprefix("bert.")], weights(folder / "run")[name]
    assert torch.equal(model.state_dict()[name], pre_trained) and not torch.equal(before, pre_trained)


def test_the_folder_keeps_the_pooling_of_its_model(folder: Path, tmp_path: Path) -> None:
    """A model of sentence-transformers says in files of its own, which no run writes, that it pools the mean."""
    model = tiny.save_tiny_bert(tmp_path / "model")
    (model / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": "pool"}]')
    (model / "pool").mkdir()
    (model / "pool" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    train_run(config(folder, "pooled", model=str(model), max_steps=1, epochs=None))
    assert default_pooling(str(folder / "pooled")) == "mean" and default_pooling(str(folder / "run")) == "cls"


def test_attend_out_is_rewarded_by_the_loss(folder: Path, capsys: Captured) -> None:
    asked = ("--method", "attendout", "--set", "dropout_step=2")
    assert cli.main(train(folder, "attendout", *asked)) == 0
    assert tiny.read_metrics(folder / "attendout")["data"]["rows"].keys() == {"train", "dev"}
    capsys.readouterr()
    metric = train(folder, "metric", *asked, "--set", "score=metric")
    assert_refused(metric, folder / "metric", "metric", capsys)
