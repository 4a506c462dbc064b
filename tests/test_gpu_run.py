"""``make gpu``: its parts, on the CPU; what needs a GPU are the tests and figures themselves."""

import json
import os
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


def test_the_packages_needed_are_bounded_and_leave_pytorch_as_it_is(gpu: ModuleType) -> None:
    names = [each.partition(">")[0] for each in gpu.requirements()]
    assert names == [name for name in gpu.PACKAGES if name != "torch"]


def test_one_gpu_of_several_is_used(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert gpu.environment()["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu.environment()["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["tests", "figures"])
def test_its_parts_import_what_it_installs_alone(gpu: ModuleType, tmp_path: Path, part: str) -> None:
    tests = gpu.parts("cpu", tmp_path / "R.md", False)[0].command
    only = ["-p", "helpers.packages_of_gpu", "-p", "_hypothesis_pytestplugin"]
    collect = ["-m", "pytest", "-q", *only, "--collect-only", "-m", "gpu"]
    command = {
        "tests": [*collect, *tests[tests.index("--dist") + 2 :]],
        "figures": ["-c", "import helpers.packages_of_gpu, gpu_figures"],
    }[part]
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", ROOT / "benchmarks")))
    # Other plugins of this environment are not there.
    variables = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    found = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, (found.stdout + found.stderr)[-3000:]


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_stops() -> None:
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run([sys.executable, str(SCRIPT)], env=hidden, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "sees no GPU, so nothing was run" in found.stderr


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
