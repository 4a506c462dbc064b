"""Classifiers of the mean over tokens: what they compute, for which encoders, and what a saved one is taken for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import zoo

import attendrop
from attendrop.errors import AttendropError
from attendrop.runs.model_loading import load_config
from attendrop.tasks.types.model_classes import configure_pooling

SUFFIX = "MeanPoolingForSequenceClassification"
BERT, DISTILBERT = zoo.ZOO["bert"].options, zoo.ZOO["distilbert"].options
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": BERT,
    "Albert": BERT | {"embedding_size": 8, "classifier_dropout_prob": 0.0},
    "DistilBert": DISTILBERT,
}


def mean_model(family: str, **options: Any) -> Any:
    return zoo.from_class(f"{family}{SUFFIX}", FAMILIES[family] | options).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_a_linear_function_of_the_mean_over_valid_tokens(family: str) -> None:
    model, batch = mean_model(family), zoo.batch_of("bert", (8, 5, 3), labels=False)
    with torch.no_grad():
        hidden = model.base_model(**batch).last_hidden_state
        means = torch.stack([row[:length].sum(0) / length for row, length in zip(hidden, (8, 5, 3), strict=True)])
        expected = means @ model.mean_classifier.weight.T + model.mean_classifier.bias
        torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model(**batch, return_dict=False)[0], expected, rtol=1e-5, atol=1e-6)
    assert getattr(model, model.base_model_prefix) is model.base_model
    assert getattr(model.base_model, "pooler", None) is None


@pytest.mark.parametrize("config", [hf.GPT2Config(), hf.BartConfig()])
def test_models_that_are_no_encoders_of_text_are_refused(config: Any) -> None:
    with pytest.raises(AttendropError, match=f"pooling 'mean' is for encoders, which {config.model_type} is not"):
        configure_pooling(config, "mean")


def test_what_is_saved_is_loaded_with_the_code_of_this_library(tmp_path: Path) -> None:
    model, batch = mean_model("Albert"), zoo.batch_of("bert", labels=False)
    model.save_pretrained(tmp_path)
    (tmp_path / "modeling_mean_pooling.py").write_text("raise SystemExit('code of the folder was run')")
    assert type(attendrop.load(tmp_path)) is type(model)
    for loaded in (attendrop.load(tmp_path), hf.AutoModelForSequenceClassification.from_pretrained(tmp_path)):
        with torch.no_grad():
            assert torch.equal(loaded.eval()(**batch).logits, model(**batch).logits)


def test_a_configuration_without_an_encoder_is_refused(tmp_path: Path) -> None:
    mean_model("Bert").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"encoder": None}))
    for load in (attendrop.load, lambda folder: load_config(str(folder))):
        with pytest.raises(AttendropError, match="cannot be loaded"):
            load(tmp_path)
