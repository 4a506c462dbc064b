"""Keep what a study or comparison found: ``python benchmarks/keep_results.py STUDY results/NAME``.

Copies its answer, and writes ``runs.jsonl``: for each finished run behind the answer, the method, options, scores,
scores by row, steps, times and versions, without paths and predictions. ``machine.json`` describes this machine, so
call it where the runs were. With ``--add`` the runs of several studies, of several machines, are kept as one, without
an answer.
"""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

from report import machine

ANSWERS = ("answer.md", "answer.csv", "answer.json")
KEPT = (
    "model", "method", "options", "seed", "protocol", "metric", "score", "all_scores", "row_scores", "training",
    "head_init", "train_fit", "steps", "train_seconds", "total_seconds", "device", "versions",
)  # fmt: skip
_OF_RUN = ("task", "shots", "max_train_samples", "test_fraction", "learning_rate", "max_steps", "bf16", "fp16")
_FILES = ("train_file", "label_names", "label_map", "unlabelled")
_SAME = ("run", "model", "method", "options", "seed", "protocol", "training", "processor")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, nargs="+", help="folders of studies or comparisons; without --add one")
    parser.add_argument("to", type=Path, help="folder of the results")
    parser.add_argument("--add", action="store_true", help="add the finished runs to those that are kept already")
    given = parser.parse_args()
    if len(given.study) > 1 and not given.add:
        parser.error("several studies need --add")
    given.to.mkdir(parents=True, exist_ok=True)
    rows = [kept(file) for study in given.study for file in finished(study, all_runs=given.add)]
    here: Any = machine()
    if given.add:
        rows = merged(given.to / "runs.jsonl", [row | {"processor": here["processor"]} for row in rows])
        here = machines(given.to / "machine.json", here)
    else:
        for name in ANSWERS:
            shutil.copy(given.study[0] / name, given.to / name)
    rows.sort(key=lambda row: json.dumps([row["run"], row["seed"], row["method"], row["options"]], sort_keys=True))
    lines = (json.dumps(row) + "\n" for row in rows)
    (given.to / "runs.jsonl").write_text("".join(lines), encoding="utf-8")
    (given.to / "machine.json").write_text(json.dumps(here, indent=1) + "\n", encoding="utf-8")


def finished(study: Path, *, all_runs: bool) -> list[Path]:
    """Return ``metrics.json`` of the finished runs that the study's answer is of, or of all in its folder.

    Studies may share a folder, and with it runs.
    """
    if all_runs:
        return list(study.glob("runs/*/metrics.json"))
    settings = json.loads((study / "compared.json").read_text(encoding="utf-8"))["settings"]
    files = {study / "runs" / name / "metrics.json" for names in settings.values() for name in names}
    return [file for file in files if file.exists()]  # others failed


def kept(file: Path) -> dict[str, Any]:
    """Return what is kept of a run."""
    metrics = json.loads(file.read_text(encoding="utf-8"))
    options = json.loads(file.with_name("run.json").read_text(encoding="utf-8"))["config"]
    given = {name: options[name] for name in _OF_RUN if options.get(name)}
    given |= {name: below_data(Path(options[name])) for name in _FILES if options.get(name)}
    found = {name: metrics.get(name) for name in KEPT}
    if Path(found["model"]).is_absolute():
        found["model"] = Path(found["model"]).name
    if (by_epoch := file.with_name("by_epoch.json")).exists():  # of benchmarks/full_size.py
        found["by_epoch"] = json.loads(by_epoch.read_text(encoding="utf-8"))
    if steps := metrics.get("dropout_steps"):
        found["learnt"] = {name: [step[name] for step in steps] for name in ("reward", "attacker_survived")}
        found["learnt"]["drop_probability"] = [steps[place]["drop_probability"] for place in (0, -1)]
    return {"run": given} | found


def below_data(file: Path) -> str:
    """Return a file's path below a folder that an ``ATTENDROP_`` variable names, as recipes do, or its name."""
    folders = [Path(value) for name, value in os.environ.items() if name.startswith("ATTENDROP_")]
    found = [file.relative_to(folder) for folder in folders if file.is_relative_to(folder)]
    return str(min(found, default=Path(file.name), key=lambda path: len(path.parts)))


def merged(file: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows and those of a file that are no earlier forms of them."""
    before = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    by_run = {json.dumps([row.get(name) for name in _SAME], sort_keys=True): row for row in before + rows}
    return list(by_run.values())


def machines(file: Path, here: dict[str, str]) -> list[dict[str, str]]:
    """Return the machines of a file and this one, each once."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    before = before if isinstance(before, list) else [before]
    return [each for each in before if each != here] + [here]


if __name__ == "__main__":
    main()
