"""Whole runs that complete prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import tiny
from helpers.command_line import Captured, assert_refused

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_predictions_do_not_see_the_completions(tmp_path: Path) -> None:
    tiny.save_tiny_llama(tmp_path / "model")
    prompts = [tiny.sentence(number) for number in range(10)]
    rows = [{"prompt": prompt, "completion": f" {tiny.WORDS[n % 4]}"} for n, prompt in enumerate(prompts)]
    seen = write(tmp_path / "seen.jsonl", rows)
    (tmp_path / "unseen.txt").write_text("\n".join(prompts) + "\n")
    asked = f"train --train-file {seen} --text-columns prompt --label-column completion --label-type completion"
    asked += f" --model {tmp_path}/model --output-dir {tmp_path}/run --max-steps 1 --selection-fraction 0 --quiet"
    asked += " --method finetune --task-set max_new_tokens=4 --max-length 24 --device cpu"
    assert cli.main(asked.split()) == 0
    for name in ("seen.jsonl", "unseen.txt"):
        asked = f"predict {tmp_path}/run --predict-file {tmp_path}/{name} --device cpu --quiet"
        assert cli.main([*asked.split(), "--output", f"{tmp_path}/of-{name}.jsonl"]) == 0
    written = [(tmp_path / f"of-{name}.jsonl").read_text() for name in ("seen.jsonl", "unseen.txt")]
    assert written[0] == written[1] and written[0].count("completion") == 10


def test_a_chat_needs_a_template(tmp_path: Path, capsys: Captured) -> None:
    tiny.save_tiny_llama(tmp_path / "model")
    roles = {"user": "the cat", "assistant": "a dog"}
    rows = [
        [{"role": role, "content": f"{text} {tiny.sentence(n)}"} for role, text in roles.items()] for n in range(20)
    ]
    file = write(tmp_path / "chats.jsonl", [{"messages": row} for row in rows])
    asked = f"train --train-file {file} --text-columns messages --label-type completion --model {tmp_path}/model"
    asked += f" --output-dir {tmp_path}/run --device cpu --quiet"
    assert_refused(asked.split(), tmp_path / "run", "the model's tokenizer has no chat template", capsys)
