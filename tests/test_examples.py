"""The examples run as they stand, on a tiny model."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from transformers import AutoModelForSequenceClassification, ViTConfig, ViTModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def save_tiny_vit(folder: Path) -> Path:
    """Save a random model of images, with four patches, and its processor."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


# By script: what saves a model of its family, how the model and the folder are given, and what it then says.
Script = tuple[Callable[[Path], Path], tuple[str, ...], str]
POSITIONAL, NAMED = ("{model}", "{run}"), ("--model", "{model}", "--output-dir", "{run}")
SCRIPTS: dict[str, Script] = {
    "trainer_script.py": (tiny.save_tiny_bert, POSITIONAL, "active in epochs [0, 1], counted from 0"),
    "own_loop.py": (tiny.save_tiny_bert, POSITIONAL, "'ad_drop/dropped'"),
    "lora_llama.py": (tiny.save_tiny_llama, POSITIONAL, "predicts the same: True"),
    "own_csv.sh": (tiny.save_tiny_bert, POSITIONAL, "run-labels.csv"),  # beside the folder, which may be replaced
    "pretrain_mlm.py": (tiny.save_tiny_bert, NAMED, "Perplexity of masked tokens in other texts: "),
    "question_answering.py": (tiny.save_tiny_bert, NAMED, "Exact match on other questions: "),
    "images.py": (save_tiny_vit, NAMED, "Accuracy on other images: "),
    "sft.py": (tiny.save_tiny_llama, NAMED, "It completes the first prompt by "),
}
MOST_LINES = 120


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> dict[str, Any]:
    """Run a Python script in this process, which has imported what it needs; returns its variables."""
    save_model, words, _ = SCRIPTS[name]
    model = save_model(folder / "model") if not (folder / "model").exists() else folder / "model"
    given = [word.format(model=model, run=folder / "run") for word in words]
    monkeypatch.setattr(sys, "argv", [name, *given, *more])
    monkeypatch.chdir(folder)
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_all_examples_are_run_and_short() -> None:
    found = {path.name: path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert found.keys() == SCRIPTS.keys()
    assert [name for name, path in found.items() if len(path.read_text("utf-8").splitlines()) > MOST_LINES] == []


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name.endswith(".py")])
def test_a_script_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, tmp_path, monkeypatch)
    assert SCRIPTS[name][2] in capsys.readouterr().out


@pytest.mark.slow
def test_commands_run(tmp_path: Path) -> None:
    save_model, _, said = SCRIPTS["own_csv.sh"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", str(EXAMPLES / "own_csv.sh"), str(save_model(tmp_path / "model")), str(tmp_path / "run")]
    given = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert said in result.stdout + result.stderr


def test_what_was_pretrained_is_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(map(tiny.sentence, range(40))) + "\n\n", encoding="utf-8")
    more = ("--train-file", str(tmp_path / "corpus.txt"), "--method", "ad-drop", "--epochs", "1")
    run("pretrain_mlm.py", tmp_path, monkeypatch, *more)
    _, loading = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert all(name.startswith(("classifier", "bert.pooler")) for name in loading["missing_keys"])


def test_answers_become_spans_of_tokens_in_the_windows_that_hold_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for number in range(12):
        words = " ".join(tiny.sentence(number + more) for more in range(6)).split()
        answers = {"text": [words[7 + number]], "answer_start": [len(" ".join(words[: 7 + number])) + 1]}
        rows.append({"question": "good", "context": " ".join(words), "answers": answers})
    rows.append({"question": "bad", "context": "a cat", "answers": {"text": [], "answer_start": []}})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = run("question_answering.py", tmp_path, monkeypatch, "--train-file", str(tmp_path / "rows.jsonl"))
    for row in rows:
        windows = found["encode"]({name: [value] for name, value in row.items()})
        spans = zip(windows["input_ids"], windows["start_positions"], windows["end_positions"], strict=True)
        decoded = {found["tokenizer"].decode(ids[start : end + 1]) for ids, start, end in spans if end}
        assert decoded == set(row["answers"]["text"])
        for ids, mask in zip(windows["input_ids"], windows["answer_mask"], strict=True):
            text = found["tokenizer"].decode([token for token, of in zip(ids, mask, strict=True) if of][1:])
            assert mask[0] == 1 and text and text in row["context"]


def test_an_adapter_completes_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    tiny.save_tiny_llama(tmp_path / "model")
    template = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(template, encoding="utf-8")
    chat = '{"messages": [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "a dog"}]}'
    (tmp_path / "chats.jsonl").write_text(f"{chat}\n" * 16, encoding="utf-8")
    more = ("--train-file", str(tmp_path / "chats.jsonl"), "--lora", "--epochs", "1")
    run("sft.py", tmp_path, monkeypatch, *more)
    assert peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run").peft_config["default"].r == 8
