"""The examples run as they stand, on a tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import tiny

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
COMMANDS = {
    "trainer_script.py": [sys.executable],
    "own_loop.py": [sys.executable],
    "lora_llama.py": [sys.executable],
    "lora_completions.sh": ["bash"],
    "own_csv.sh": ["bash"],
}
SAYS = {
    "trainer_script.py": "active in epochs [0, 1], counted from 0",
    "own_loop.py": "'ad_drop/dropped'",
    "lora_llama.py": "predicts the same: True",
    "lora_completions.sh": "PEFT loads the adapter, of rank 8",
    "own_csv.sh": "run-labels.csv",  # beside the folder, which may then be replaced
}
# Examples on other models than a tiny BERT.
MODELS = dict.fromkeys(("lora_llama.py", "lora_completions.sh"), tiny.save_tiny_llama)


def test_all_examples_are_run() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")} == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    model = MODELS.get(name, tiny.save_tiny_bert)(tmp_path / "model")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        [*COMMANDS[name], str(EXAMPLES / name), str(model), str(tmp_path / "run")],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert SAYS[name] in result.stdout + result.stderr
