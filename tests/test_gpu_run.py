"""``make gpu``: its parts, on the CPU; what needs a GPU are the tests and figures themselves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gpu


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(tmp_path: Path) -> None:
    output = tmp_path / "RESULTS_GPU.md"
    command = [sys.executable, gpu.__file__, "--device", "cpu", "--quick", "--output", str(output)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:]
    parts = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    assert sorted(parts) == ["inference bfloat16", "inference float32", "steps bfloat16", "steps float32"]
    assert all(part["rows"] for part in parts.values())
    assert "these figures mean nothing" in output.read_text(encoding="utf-8")
