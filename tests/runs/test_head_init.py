"""A new head that starts from a linear model of the frozen encoder, and one that reads the mean over tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2ForSequenceClassification, ModernBertConfig

from attendrop.errors import AttendropError
from attendrop.runs.data import encode_parts, resolve_run
from attendrop.runs.inference import predict_outputs
from attendrop.runs.model_loading import default_pooling, load_for, trained_pooling
from attendrop.runs.train import init_head, train
from attendrop.tasks.tokenization import of_documents

MEAN: dict[str, Any] = {"pooling": "mean", "method": "finetune", "max_steps": 1}


@pytest.fixture(scope="module")
def folder(own: Path) -> Path:
    """A model, data, and in ``run`` a finished run with the mean."""
    train(tiny.config(own, **MEAN))
    return own


def started(folder: Path, **options: Any) -> tuple[Any, Any, Any]:
    """The model of a run before its first step, how its head starts, and the outputs and labels of its texts."""
    config = tiny.config(folder, "unused", **(MEAN | options))
    run = resolve_run(config)
    torch.manual_seed(config.seed)
    loaded = load_for(config.model, run.task, config.pooling)
    parts = encode_parts(config, run.task, run.parts, loaded.tokenizer)
    found = init_head(loaded, run.task.type, parts, config)
    columns = parts.train.to_dict()
    outputs = predict_outputs(loaded.model, loaded.tokenizer, run.task.type, columns, 64, "cpu")
    return loaded.model, found, (outputs, np.array(of_documents(columns["labels"], columns)))


@pytest.mark.parametrize("options", [{}, {"long_texts": "windows", "max_length": 6}], ids=["", "windows"])
def test_the_head_is_a_logistic_regression_on_the_frozen_encoder(folder: Path, options: dict[str, Any]) -> None:
    if options:
        rows = [f"{' '.join(tiny.WORDS[n % (2 + n % 9) :])},{n % 2}" for n in range(40)]
        (folder / "long.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
        options = options | {"train_file": f"{folder}/long.csv", "text_columns": ("text",), "eval_file": None}
    _, found, (outputs, labels) = started(folder, **options)
    assert found["kind"] == "logistic regression" and found["settings"].keys() == {"C"}
    assert found["train_score"] == np.mean(outputs.argmax(1) == labels)
    assert outputs[:, 0] == pytest.approx(-outputs[:, 1])


def test_class_weights_count_in_the_start(folder: Path, tmp_path: Path) -> None:
    train_file = tiny.write_csv(tmp_path / "train.csv", ["no"] * 33 + ["yes"] * 7)
    found = [started(folder, train_file=str(train_file), class_weights=weights)[2][0] for weights in (None, "balanced")]
    assert (found[1][:, 1] > found[0][:, 1]).all()


def test_all_methods_and_the_base_model_start_alike(folder: Path) -> None:
    before = torch.get_rng_state()
    models = [started(folder, method=method)[0].state_dict() for method in ("finetune", "ad-drop")]
    torch.set_rng_state(before)
    models.append(started(folder)[0].state_dict())
    assert all(torch.equal(models[0][name], other[name]) for other in models[1:] for name in models[0])


def test_a_trained_head_is_kept(folder: Path) -> None:
    model, found, _ = started(folder, model=str(folder / "run"), pooling="auto")
    saved = load_file(folder / "run" / "model.safetensors")["mean_classifier.weight"]
    assert found is None and torch.equal(model.mean_classifier.weight, saved)
    assert model.config.classifier_pooling == "mean"
    again = {"model": str(folder / "run"), "method": "finetune", "epochs": 1, "selection_fraction": 0.0}
    assert train(tiny.config(folder, "again", **again))["training"]["head_init"] == "kept"
    with pytest.raises(AttendropError, match="'linear-probe' is not possible: the model has 0 new linear layers"):
        started(folder, model=str(folder / "run"), pooling="auto", head_init="linear-probe")


def test_features_that_are_random_themselves_start_nothing(folder: Path) -> None:
    options = {"model": str(folder / "run"), "pooling": "cls"}  # the run has no pooling layer
    model, found, _ = started(folder, **options)
    assert found is None and not hasattr(model.config, "classifier_pooling")
    assert started(folder, **options, head_init="linear-probe")[1]["kind"] == "logistic regression"


def test_a_model_that_reads_the_last_token_starts_at_random(folder: Path, tmp_path: Path) -> None:
    tiny.save_tiny_bert(tmp_path)
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).unlink()
    config = GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=32, num_labels=5, pad_token_id=0)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    options = {"model": str(tmp_path), "pooling": "auto"}
    assert started(folder, **options)[1] is None
    refused = "'linear-probe' is not possible: its layer score has no bias; use 'random'"
    with pytest.raises(AttendropError, match=refused):
        started(folder, **options, head_init="linear-probe")
    with pytest.raises(AttendropError, match="pooling 'mean' is for encoders, which gpt2 is not"):
        started(folder, model=str(tmp_path))


# What a model reads by default ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
    ],
)
def test_models_of_sentences_are_read_as_they_were_trained(pooling: Any, expected: str, tmp_path: Path) -> None:
    """As sentence-transformers saves them."""
    tiny.save_tiny_bert(tmp_path)
    modules = [{"path": "", "type": "a.Transformer"}, {"path": "1_Pooling", "type": "b.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    assert default_pooling(str(tmp_path)) == expected
    cls = bool(pooling.get("pooling_mode_cls_token")) and not pooling.get("pooling_mode_mean_tokens")
    assert (trained_pooling(str(tmp_path)) == "cls") is cls
    if cls:  # whatever the class of transformers reads
        assert default_pooling(str(tmp_path), ModernBertConfig(classifier_pooling="mean")) == "cls"
