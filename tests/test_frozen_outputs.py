"""What the commands print and write on fixed inputs; `make frozen` updates `tests/frozen`, or a part: `ONLY=help`.

Times, sizes, versions, folders and what depends on the machine are replaced by placeholders, numbers are rounded.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop import cli
from attendrop.cli import app

pytestmark = pytest.mark.slow
FROZEN = Path(__file__).with_name("frozen")

FILES = "--train-file train.csv --text-columns sentence1,sentence2 --label-column label"
DATA = f"{FILES} --eval-file dev.csv"
RECIPE = "--model model --device cpu --epochs 3 --batch-size 8 --learning-rate 1e-2 --max-length 24"
TRAIN = f"train {DATA} {RECIPE}"
COMPARE = f"compare {DATA} {RECIPE} --workers 0"

# In this order: the later read what the earlier wrote.
COMMANDS = {
    **{f"help-{command or 'attendrop'}": f"{command} --help" for command in ("", *app.command().commands)},
    "methods": "methods",
    "methods-ad-drop": "methods ad-drop",
    "tasks": "tasks",
    "doctor": "doctor model",
    "inspect": "inspect train.csv --eval-file dev.csv",
    "train-finetune": f"{TRAIN} --method finetune --seed 1 --output-dir runs/plain",
    "train-ad-drop": f"{TRAIN} --method ad-drop --set p=0.3 --seed 1,2 --output-dir runs/dropped",
    "train-again": f"{TRAIN} --method finetune --seed 1 --output-dir runs/plain --resume",
    "train-error": f"{TRAIN} --method ad-drop --set r=0.3",
    "train-test-fraction": f"train {FILES} --test-fraction 0.25 {RECIPE} --method r-drop --output-dir runs/parted",
    "evaluate": "evaluate runs/plain --eval-file dev.csv",
    "predict": "predict runs/plain --predict-file dev.csv --output predictions.csv --probabilities",
    "attend": "attend runs/plain the_cat --text-pair a_dog --output attention.html",
    "prune": "prune runs/plain --layers 1 --output-dir pruned",
    "export": "export runs/plain --output plain.onnx",
    "compare": f"{COMPARE} --methods ad-drop,mixout --set mixout.p=0.5 --seeds 3 --output-dir answer",
    "study": "study study.yaml --output-dir studied --workers 0",
    "report": "report answer --output-dir reported",
}
STUDY = """data:
  name: sentences
  train_file: train.csv
  eval_file: dev.csv
  text_columns: [sentence1, sentence2]
  label_column: label
  max_train_samples: [24, 48]
methods: [finetune, {name: mixout, options: {p: 0.5}}]
models: model
seeds: 2
run: {device: cpu, max_steps: 9, batch_size: 8, learning_rate: 1e-2, max_length: 24}
"""


def frozen_outputs(only: str = "") -> Iterator[tuple[str, str]]:
    """Run the commands in a folder of their own; yield a name and what it printed, then the files that they wrote.

    With ``only``, run only commands whose names begin so, which must read nothing that earlier ones wrote.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        tiny.save_tiny_bert(folder / "model", initializer_range=0.3)
        _write_rows(folder / "train.csv", range(80))
        _write_rows(folder / "dev.csv", range(80, 120))
        (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
        given = {path for path in folder.rglob("*") if path.is_file()}
        for command, arguments in COMMANDS.items():
            if not command.startswith(only):
                continue
            yield command, _of_any_processor(command, _run([word.replace("_", " ") for word in arguments.split()]))
        if only:
            return
        written = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path not in given)
        names = sorted({re.sub(r"-[0-9a-f]{8}(?=/|$)", "-HASH", str(path)) for path in written})
        yield "files", "\n".join(names) + "\n"
        for path in written:
            if path.name in KEPT and "answer/runs" not in str(path) and "studied/runs" not in str(path):
                yield f"file-{str(path).replace('/', '-')}", _of_any_processor(path.parts[0], _content(path))


def _write_rows(path: Path, numbers: range) -> None:
    """Write rows whose label hangs on one word of either text, but for every tenth."""
    rows = [(tiny.sentence(number), tiny.sentence(number * 3 + 1), number % 10 == 0) for number in numbers]
    labels = ["yes" if ("cat" in f"{first} {second}") != odd else "no" for first, second, odd in rows]
    lines = [f"{first},{second},{label}" for (first, second, _), label in zip(rows, labels, strict=True)]
    path.write_text("\n".join(["sentence1,sentence2,label", *lines]) + "\n", encoding="utf-8")


KEPT = {"metrics.json", "run.yaml", "README.md", "answer.json", "answer.md", "answer.csv", "predictions.csv"}


def _run(arguments: Sequence[str]) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(arguments))
    told = "".join(f"{line.rstrip()}\n" for line in err.getvalue().splitlines() if not PROGRESS.search(line))
    return normalised(f"exit code {code}\n{out.getvalue()}--- standard error\n{told}")


PROGRESS = re.compile(r"\r|\dit/s|s/it|examples/s|Writing model shards|^\s*$")


def _content(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        text = json.dumps(_rounded(json.loads(text)), indent=1, sort_keys=True) + "\n"
    elif path.suffix == ".csv":
        text = "".join(f"{json.dumps(_rounded(row))}\n" for row in csv.DictReader(io.StringIO(text, newline="")))
    return normalised(text)


TIMES = re.compile(r"second|time|memory|version|per_step|speed|environment|machine|commit")


def _rounded(value: Any, key: str = "") -> Any:
    if TIMES.search(key):
        return "…"
    if isinstance(value, dict):
        return {name: _rounded(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part, key) for part in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.3g}")
    return value


# The study's few steps leave rows whose prediction hangs on the last bits, which differ between processors.
HANGING_ON_BITS = ("export", "study", "studied")


def _of_any_processor(source: str, text: str) -> str:
    return re.sub(r"\d+\.\d+(e[-+]?\d+)?", "#", text) if source in HANGING_ON_BITS else text


REPLACED = [
    (re.compile(r"\d+\.\d+(?= times that of)"), "#"),
    (re.compile(r"\d+(\.\d+)? (s|seconds|ms|min|GB|MB|GiB|MiB|kB)\b"), r"# \2"),
    (re.compile(r"about (# min|\d+(\.\d+)? h) left"), "about # s left"),  # as long as the machine is busy
    (re.compile(r"take # min in all"), "take # s in all"),
    (re.compile(r"\b\d+(\.\d+)?x\b"), "#x"),
    (re.compile(r"\d+(\.\d+)?( times as fast|(?= to \d.* rounds)|(?= in \d+ rounds))"), r"#\2"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]?[\d:.+]*"), "DATE"),
    (re.compile(r"-[0-9a-f]{8}\b"), "-HASH"),
    (re.compile(r"\b[0-9a-f]{16,64}\b"), "HASH"),
    (re.compile(r"-?\d+\.\d{4,}(e-?\d+)?"), lambda found: f"{float(found[0]):.3g}"),
]


def normalised(text: str) -> str:
    """Replace what differs between machines and times."""
    for place in {os.getcwd(), os.path.realpath(os.getcwd())}:
        text = text.replace(place, "FOLDER")
    for pattern, replacement in REPLACED:
        text = pattern.sub(replacement, text)
    return text


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    return dict(frozen_outputs())


def test_nothing_appeared_or_went(outputs: dict[str, str]) -> None:
    assert set(outputs) == {path.stem for path in FROZEN.iterdir()}


@pytest.mark.parametrize("name", sorted(path.stem for path in FROZEN.iterdir()))
def test_output_is_unchanged(name: str, outputs: dict[str, str]) -> None:
    assert outputs[name] == (FROZEN / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    FROZEN.mkdir(exist_ok=True)
    only = os.environ.get("ONLY", "")
    for path in FROZEN.iterdir() if not only else ():
        path.unlink()
    for name, text in frozen_outputs(only):
        (FROZEN / f"{name}.txt").write_text(text, encoding="utf-8")
        print(name, len(text), file=sys.stderr)
