"""``make gpu``: its parts, on the CPU; what needs a GPU are the tests and figures themselves."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks/gpu.py"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu

    return gpu


def test_a_part_that_fails_does_not_keep_the_others_from_running(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "ran"
    made = [
        gpu.Part("fails", ["-c", "raise SystemExit(3)"], 60),
        gpu.Part("endless", ["-c", "while True: pass"], 0),
        gpu.Part("runs", ["-c", f"open({str(file)!r}, 'w')"], 60),
    ]
    monkeypatch.setattr(gpu, "parts", lambda *_: made)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu"])
    assert gpu.main() == 1
    assert file.exists()
    printed = capsys.readouterr().out
    for words in ("failed, exit code 3", "stopped after 0 s", "passed"):
        assert words in printed
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--only", "runs"])
    assert gpu.main() == 0


def test_pytorch_is_left_as_it_is_and_one_gpu_of_several_is_used(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [each.partition(">")[0] for each in gpu.requirements()] == [name for name in gpu.PACKAGES if name != "torch"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert gpu.environment()["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu.environment()["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(tmp_path: Path) -> None:
    output = tmp_path / "RESULTS_GPU.md"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--output", str(output)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:]
    parts = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    assert sorted(parts) == ["inference bfloat16", "inference float32", "steps bfloat16", "steps float32"]
    assert all(part["rows"] for part in parts.values())
    assert "these figures mean nothing" in output.read_text(encoding="utf-8")
