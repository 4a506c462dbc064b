"""``make gpu``: its parts, on the CPU; what needs a GPU are the tests and figures themselves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gpu


def test_a_part_that_fails_does_not_keep_the_others_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "ran"
    programs = {"fails": "raise SystemExit(3)", "endless": "while True: pass", "runs": f"open({str(file)!r}, 'w')"}
    made = [gpu.Part(name, ["-c", program], 60 * (name != "endless")) for name, program in programs.items()]
    monkeypatch.setattr(gpu, "parts", lambda *_: made)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu"])
    assert gpu.main() == 1 and file.exists()
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("failed, exit code 3", "stopped after 0 s", "passed"))


def test_pytorch_is_left_as_it_is_and_one_gpu_of_several_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.partition(">")[0] for each in gpu.requirements()] == [name for name in gpu.PACKAGES if name != "torch"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert gpu.environment()["CUDA_VISIBLE_DEVICES"] == "3"


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
