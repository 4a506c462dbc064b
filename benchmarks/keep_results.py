"""Keep what a study or comparison found: ``python benchmarks/keep_results.py STUDY results/NAME``.

Copies its answer, and writes ``runs.jsonl``: of each finished run the method, options, scores, steps, times and
versions, without paths and predictions. ``machine.json`` says what machine this is: call it where the runs were.
"""

import argparse
import json
import shutil
from pathlib import Path

from report import machine

ANSWERS = ("answer.md", "answer.csv", "answer.json")
KEPT = (
    "model", "method", "options", "seed", "protocol", "metric", "score", "all_scores", "training", "head_start",
    "train_fit", "steps", "train_seconds", "total_seconds", "device", "versions",
)  # fmt: skip
_OF_RUN = ("task", "shots", "max_train_samples", "test_fraction", "learning_rate", "max_steps", "bf16", "fp16")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="folder of a finished study or comparison")
    parser.add_argument("to", type=Path, help="folder of the results")
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    for name in ANSWERS:
        shutil.copy(given.study / name, given.to / name)
    rows = [kept(file) for file in given.study.glob("runs/*/metrics.json")]
    rows.sort(key=lambda row: json.dumps([row["run"], row["seed"], row["method"], row["options"]], sort_keys=True))
    lines = (json.dumps(row) + "\n" for row in rows)
    (given.to / "runs.jsonl").write_text("".join(lines), encoding="utf-8")
    (given.to / "machine.json").write_text(json.dumps(machine(), indent=1) + "\n", encoding="utf-8")


def kept(file: Path) -> dict[str, object]:
    """Return what is kept of a run."""
    metrics = json.loads(file.read_text(encoding="utf-8"))
    options = json.loads(file.with_name("run.json").read_text(encoding="utf-8"))["config"]
    given = {name: options[name] for name in _OF_RUN if options.get(name)}
    if options.get("train_file"):
        given["train_file"] = Path(options["train_file"]).name
    return {"run": given} | {name: metrics.get(name) for name in KEPT}


if __name__ == "__main__":
    main()
