"""Run all that only a GPU shows, part after part: ``make gpu``.

A part that fails or runs out of time does not keep the others from running; the exit code shows it. Needs the standard
library alone, so that it can say what is missing.
"""

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/RESULTS_GPU.md"
# What the parts import, directly or through these.
PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "filelock",
    "scipy",
    "pytest",
    "pytest-xdist",
    "hypothesis",
)
# Seconds that an interrupted part has to end; a part with figures begins no further case within this time.
_SECONDS_TO_END = 20
_CHECK = """
import torch
found = torch.cuda.is_available()
print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}:", torch.cuda.get_device_name() if found else "no GPU")
raise SystemExit(0 if found else 1)
"""


@dataclass(frozen=True)
class Part:
    """One command.

    Attributes:
        name: Of the part, on the command line.
        command: Arguments of Python.
        seconds: It is stopped after this time. All together stay below 25 minutes; a quick run has no such limits.

    """

    name: str
    command: Sequence[str]
    seconds: int


def parts(device: str, output: Path, quick: bool) -> list[Part]:
    """List the parts, on a device, with their results at ``output``."""
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8")]
    tests = [str(path) for path in sorted(marked) if not quick or path.name == "test_keyed_random.py"]
    # Tiny models keep the host busy, not the GPU.
    spread = ["-n", "0" if quick else "4", "--dist", "worksteal"]
    given = ["--device", device, "--output", str(output), *(["--quick"] if quick else [])]

    def figures(part: str, dtype: str, seconds: int) -> Part:
        seconds = 3600 if quick else seconds
        until = ["--seconds", str(seconds - _SECONDS_TO_END)]
        command = ["benchmarks/gpu_figures.py", "--part", part, "--dtype", dtype, *until, *given]
        return Part(f"{part}-{dtype}", command, seconds)

    return [
        Part("tests", ["-m", "pytest", "-q", "-m", "gpu", "--device", device, *spread, *tests], 540),
        figures("steps", "bfloat16", 300),
        figures("steps", "float32", 420),
        figures("inference", "bfloat16", 90),
        figures("inference", "float32", 90),
    ]


def requirements() -> list[str]:
    """List the packages of the parts, as pyproject.toml bounds them; without a PyTorch that is there, which stays."""
    names = [name for name in PACKAGES if name != "torch" or importlib.util.find_spec(name) is None]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounded = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    return [each for name in names for each in bounded if each.startswith((f"{name}>", f"{name}="))]


def environment() -> dict[str, str]:
    """Return the variables of the parts: this checkout, and one GPU of those to be seen."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": first, "HF_HUB_OFFLINE": "1"}


def run(part: Part) -> str:
    """Run a part; returns how it ended.

    One that runs out of time is interrupted, so that it reports what it has found, and its processes leave the GPU.
    """
    with subprocess.Popen(
        [sys.executable, *part.command], cwd=ROOT, env=environment(), start_new_session=True
    ) as process:
        try:
            code = process.wait(part.seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"stopped after {part.seconds} s"
    return "passed" if code == 0 else f"failed, exit code {code}"


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requirements", action="store_true", help="print the packages needed, and do nothing else")
    parser.add_argument("--device", default="cuda", help="cpu, with --quick, shows that all of it runs")
    parser.add_argument("--quick", action="store_true", help="tiny models, few tests: the figures mean nothing")
    parser.add_argument("--only", action="append", help="one part; may be repeated")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.requirements:
        print("\n".join(requirements()))
        return 0
    every = parts(given.device, given.output.resolve(), given.quick)
    unknown = set(given.only or ()) - {part.name for part in every}
    if unknown:
        parser.error(f"--only {min(unknown)}: there is no such part; there are {', '.join(p.name for p in every)}.")
    if (
        given.device == "cuda"
        and subprocess.run([sys.executable, "-c", _CHECK], env=environment(), check=False).returncode
    ):
        print(
            f"make gpu: {sys.executable} sees no GPU, so nothing was run. It needs an NVIDIA GPU and a PyTorch with "
            "CUDA; name an interpreter that has one: make gpu PYTHON=/path/to/python3.",
            file=sys.stderr,
        )
        return 2
    ended = {}
    for part in every:
        if given.only and part.name not in given.only:
            continue
        print(f"\n=== {part.name}, at most {part.seconds} s", flush=True)
        began = time.perf_counter()
        ended[part.name] = run(part)
        ended[part.name] += f", {time.perf_counter() - began:.0f} s"
    print("\n" + "\n".join(f"{name:20} {how}" for name, how in ended.items()))
    return 0 if all(how.startswith("passed") for how in ended.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
