"""Runs with a LoRA adapter: what is trained and saved, and every command on the result."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers as hf
from helpers import tiny, zoo
from safetensors.torch import load_file

import attendrop
from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.config import Source
from attendrop.runs.data import resolve_run
from attendrop.runs.model_loading import load_for
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train

DEV = Source(device="cpu")
ADAPTER: dict[str, Any] = {"lora": {"r": 2, "targets": "all-linear", "dropout": 0.2}, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def folder(own: Path) -> Path:
    """A model, data, and in ``run`` a finished run with an adapter."""
    train(tiny.config(own, **ADAPTER))
    return own


def outputs(model: Any, folder: Path) -> torch.Tensor:
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return model.eval()(**tokenizer("the cat sees", "a dog", return_tensors="pt")).logits


def settings(run: Path) -> dict[str, Any]:
    return json.loads((run / "adapter_config.json").read_text())


def test_the_folder_is_an_adapter_of_peft(folder: Path) -> None:
    run = folder / "run"
    assert not (run / "model.safetensors").exists()
    assert settings(run)["base_model_name_or_path"] == str(folder / "model")
    kinds = {"lora_A", "lora_B", "classifier"}
    assert all(any(kind in name for kind in kinds) for name in load_file(run / "adapter_model.safetensors"))
    model = attendrop.load(run)
    assert type(model) is hf.BertForSequenceClassification
    assert model.config.id2label == {0: "no", 1: "yes"}
    expected = outputs(model, run)
    auto = peft.AutoPeftModelForSequenceClassification.from_pretrained(run)
    torch.testing.assert_close(outputs(auto, run), expected)
    torch.testing.assert_close(outputs(hf.AutoModelForSequenceClassification.from_pretrained(run), run), expected)
    card = (run / "README.md").read_text()
    assert "library_name: peft" in card
    assert "AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=2)" in card


def test_a_model_that_reads_other_tokens_than_before_is_saved_merged(own: Path) -> None:
    """PEFT would read the first token, as the configuration of the model that the adapter is on says."""
    encoder = hf.ModernBertModel(hf.ModernBertConfig(**zoo.ZOO["modernbert"].options))
    for part in (encoder, hf.AutoTokenizer.from_pretrained(own / "model")):
        part.save_pretrained(own / "modernbert")
    train(tiny.config(own, "mean", **ADAPTER, model=str(own / "modernbert"), pooling="mean", epochs=1))
    expected = outputs(attendrop.load(own / "mean"), own / "mean")
    found = hf.AutoModelForSequenceClassification.from_pretrained(own / "mean")
    torch.testing.assert_close(outputs(found, own / "mean"), expected)
    assert "peft" not in (own / "mean" / "README.md").read_text()


def test_only_adapter_and_head_are_trained(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    saved = load_file(folder / "run" / "adapter_model.safetensors")
    assert metrics["parameters"]["trained"] == sum(tensor.numel() for tensor in saved.values())
    assert metrics["parameters"]["trained"] < metrics["parameters"]["total"] / 2
    assert metrics["config"]["lora"] == {"r": 2, "alpha": None, "dropout": 0.2, "targets": "all-linear"}
    assert settings(folder / "run")["lora_alpha"] == 2  # that of the rank: a run of this file with another has its own
    adapter = {name: tensor for name, tensor in saved.items() if "lora_B" in name}
    assert len(adapter) == 13
    assert all(tensor.any() for tensor in adapter.values())


def _write_class(model: object, path: Path, **_: object) -> float:
    """Write the name of a class instead of a model, which takes seconds."""
    path.write_text(type(model).__name__)
    return 0.0


def test_prune_and_export_merge_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendrop.runs.prune.SECONDS", 0.01)
    monkeypatch.setattr("attendrop.pruning.selection.RESAMPLES", 20)
    prune_run(str(folder / "run"), str(tmp_path / "light"), layers="1,", device="cpu")
    expected = outputs(attendrop.prune(attendrop.load(folder / "run"), layers=[1]), folder / "run")
    torch.testing.assert_close(outputs(attendrop.load(tmp_path / "light"), folder / "run"), expected)
    with pytest.raises(AttendropError, match=r"trained an adapter.*omit recover-epochs"):
        prune_run(str(folder / "run"), str(tmp_path / "other"), layers=1, recover_epochs=1, device="cpu")
    with pytest.raises(AttendropError, match=r"is an adapter of PEFT; save attendrop\.load"):
        train(tiny.config(folder, str(tmp_path / "x"), model=str(folder / "run")))
    adapted = peft.AutoPeftModelForSequenceClassification.from_pretrained(folder / "run")
    with pytest.raises(AttendropError, match=r"cannot be pruned; merge it first: model\.merge_and_unload\(\)"):
        attendrop.prune(adapted, layers=[1])
    monkeypatch.setattr("attendrop.runs.export.export_onnx", _write_class)
    assert cli.main(["export", str(folder / "run"), "--output", str(tmp_path / "served")]) == 0
    assert (tmp_path / "served" / "model.onnx").read_text() == "BertForSequenceClassification"


def test_a_resumed_run_ends_with_the_same_adapter(folder: Path, files: Path, stop_at: Callable[[int], Any]) -> None:
    config = tiny.config(files, "stopped", **ADAPTER, save_steps=3)
    with pytest.raises(KeyboardInterrupt):
        train(config, callbacks=[stop_at(8)], checkpoint_seconds=0.0)
    train(config, resume=True, checkpoint_seconds=0.0)
    whole, resumed = ((run / "adapter_model.safetensors").read_bytes() for run in (folder / "run", files / "stopped"))
    assert whole == resumed


def test_an_adapter_learns_at_ten_times_the_rate(folder: Path) -> None:
    runs = [resolve_run(tiny.config(folder, lora=lora, learning_rate=None)) for lora in (None, {"r": 2})]
    assert [run.config.learning_rate for run in runs] == [1e-4, 1e-3]


def test_mistakes_are_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, message in (
        ({"rank": 8}, "lora has no option 'rank'"),
        ({"targets": "nothing"}, "takes no adapter with"),
    ):
        with pytest.raises(AttendropError, match=message):
            train(tiny.config(folder, str(tmp_path / "run"), lora=given))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(AttendropError, match=r"Adapters need peft.* `pip install 'attendrop\[peft\]'`"):
        train(tiny.config(folder, str(tmp_path / "run"), lora={"r": 2}))
    with pytest.raises(AttendropError, match="Adapters need peft"):
        load_for(str(folder / "run"), None)
    assert not (tmp_path / "run").exists()


def test_an_adapter_without_its_model_or_on_another_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder / "run", tmp_path / "run")
    content = settings(run) | {"base_model_name_or_path": str(tmp_path / "gone")}
    (run / "adapter_config.json").write_text(json.dumps(content))
    with pytest.raises(
        AttendropError, match=r"on the model '.*gone', which cannot be found .* base_model_name_or_path"
    ):
        attendrop.load(run)
    other = tiny.save_tiny_bert(tmp_path / "gone", initializer_range=0.1)
    with pytest.raises(AttendropError, match=r"gone' are not those that the adapter in .* was trained on"):
        attendrop.load(run)
    shutil.copy(folder / "model" / "model.safetensors", other)
    assert not hasattr(attendrop.load(run).config, "attendrop_base_sha256")  # which is that of the merged weights
    (run / "run.json").unlink()
    (run / "adapter_model.safetensors").write_bytes(b"half")
    with pytest.raises(AttendropError, match="cannot be loaded"):
        attendrop.load(run)
    (run / "model_config.json").unlink()
    with pytest.raises(AttendropError, match="was not saved by attendrop"):
        attendrop.load(run)
