"""Whole runs that complete prompts: an adapter of PEFT with AD-DROP, scores, predictions, chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.command_line import Captured, assert_refused
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

from attendrop import cli, load

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ADDED = ("--lora", "r=2", "--lora", "targets=all-linear", "--method", "ad-drop", "--set", "cross_tuning=false")


def rows(first: int, count: int) -> list[dict[str, str]]:
    numbers = range(first, first + count)
    return [{"prompt": tiny.sentence(n), "completion": f" {tiny.WORDS[n % 4]}"} for n in numbers]


def write(path: Path, found: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completions")
    tiny.save_tiny_llama(folder / "model")
    write(folder / "train.jsonl", rows(0, 40))
    write(folder / "dev.jsonl", rows(100, 10))
    assert cli.main(train(folder, "run", *ADDED)) == 0
    return folder


def train(folder: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", "--train-file", f"{folder}/train.jsonl", "--eval-file", f"{folder}/dev.jsonl"),
        *("--text-columns", "prompt", "--label-column", "completion", "--label-type", "completion"),
        *("--model", f"{folder}/model", "--output-dir", f"{folder}/{name}", "--max-steps", "6", "--batch-size", "8"),
        *("--max-length", "24", "--task-set", "max_new_tokens=4", "--device", "cpu", "--quiet", *more),
    ]


def test_the_folder_is_an_adapter_of_peft(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    assert metrics["history"][0]["dropped"]["ad-drop"] > 0.02
    assert not (folder / "run" / "model.safetensors").exists()
    settings = json.loads((folder / "run" / "adapter_config.json").read_text())
    assert settings["task_type"] == "CAUSAL_LM" and not settings["modules_to_save"]
    tokenizer = AutoTokenizer.from_pretrained(folder / "run")
    batch = tokenizer(tiny.sentence(3), return_tensors="pt")
    adapted = AutoPeftModelForCausalLM.from_pretrained(folder / "run").eval()
    with torch.no_grad():
        assert torch.allclose(adapted(**batch).logits, load(str(folder / "run"))(**batch).logits, atol=1e-5)
        with adapted.disable_adapter():
            assert not torch.allclose(adapted(**batch).logits, load(str(folder / "run"))(**batch).logits, atol=1e-5)


def test_predictions_do_not_see_the_completions(folder: Path, tmp_path: Path) -> None:
    prompts = [row["prompt"] for row in rows(100, 10)]
    (tmp_path / "in.txt").write_text("\n".join(prompts) + "\n")
    for name, file in {"seen": folder / "dev.jsonl", "unseen": tmp_path / "in.txt"}.items():
        asked = ["predict", f"{folder}/run", "--predict-file", str(file), "--device", "cpu", "--quiet"]
        assert cli.main([*asked, "--output", f"{tmp_path}/{name}.jsonl"]) == 0
    written = [(tmp_path / f"{name}.jsonl").read_text() for name in ("seen", "unseen")]
    assert written[0] == written[1] and written[0].count("completion") == 10


def test_a_chat_needs_a_template(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    chats = [[{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": "a"}] for r in rows(0, 20)]
    file = write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in chats])
    asked = [
        *("train", "--train-file", str(file), "--text-columns", "messages", "--label-type", "completion"),
        *("--model", f"{folder}/model", "--output-dir", f"{tmp_path}/run", "--device", "cpu", "--quiet"),
    ]
    assert_refused(asked, tmp_path / "run", "the model's tokenizer has no chat template", capsys)
