"""The comparison of docs/small_data.md: every method on little data, on the same rows, for the same number of steps.

Can be stopped at any time and started again: finished runs are kept, an unfinished one goes on from its checkpoint.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import machine
from scipy.stats import bootstrap
from transformers.utils import logging as hf_logging

from attendrop import ADDrop
from attendrop.reports import learned_patterns as patterns
from attendrop.runs.config import RunConfig
from attendrop.runs.train import train

TASKS = {"cola": "CoLA, Matthews correlation", "stsb": "STS-B, Pearson correlation"}
METHODS = ("finetune", "ad-drop", "attendout", "scheduler", "attention-layerdrop")
PIECES = 3
TRAINING = {
    "max_train_samples": 512,
    "max_steps": 160,
    "batch_size": 16,
    "learning_rate": 1e-4,
    "selection_fraction": 0.0,
    "max_length": 128,
}

_HEAD = f"""\
# Little data: the methods compared

Written by `make study` (`benchmarks/small_data.py`), exactly as measured; `small_data.json` beside this page has every
run with its options.

MiniLM (all-MiniLM-L6-v2: 6 layers, 384 wide), {TRAINING["max_train_samples"]} training rows drawn anew for each seed,
{TRAINING["max_steps"]} optimizer steps of {TRAINING["batch_size"]} rows for every method, learning rate
{TRAINING["learning_rate"]:g} with linear decay after a warm-up of a tenth. Nothing is selected: the model after the
last step is scored on the development set, once. For the same seed all methods train on the same rows in the same
order, but for AttendOut, which sets a tenth of them aside for its rewards. Learning rate and number of steps were fixed
beforehand, such that plain fine-tuning fits the training rows of CoLA; no method was tuned: they have their defaults,
and AD-DROP drops in the layers that its paper names for the task (STS-B: the first).
`scheduler` follows the curves of the AttendOut run of the same seed, fitted with {PIECES} pieces.

The last two columns: the mean of the differences from plain fine-tuning, seed by seed, and its bootstrap interval. Five
seeds of one small model are few; that an interval leaves out zero does not say what another model or task would show.

"""


def options(task: str, method: str, folder: Path, seed: int) -> dict[str, Any]:
    """The options of a method: defaults, but for AD-DROP's layers, as in its paper, and the fitted schedule."""
    if method == "ad-drop":
        return {"layers": ADDrop.paper_layers(task)}
    if method == "scheduler":
        found = patterns.read(run_folder(folder, task, "attendout", seed))
        return patterns.scheduler(found, patterns.fit(found, PIECES)).options()
    return {}


def run_folder(folder: Path, task: str, method: str, seed: int) -> Path:
    return folder / f"{task}-{method}-seed{seed}"


def run_all(folder: Path, tasks: list[str], methods: list[str], seeds: int) -> None:
    """Run what has not been run, seed by seed, so that whole comparisons come first."""
    for seed in range(seeds):
        for task in tasks:
            for method in methods:
                place = run_folder(folder, task, method, seed)
                config = RunConfig(
                    model="minilm",
                    output_dir=str(place),
                    task=task,
                    method=method,
                    options=options(task, method, folder, seed),
                    seed=seed,
                    **TRAINING,
                )
                metrics = train(config, resume=True)
                for checkpoint in place.glob("checkpoint-*"):
                    shutil.rmtree(checkpoint)
                print(f"{place.name}: {metrics['score']:.4f}, {metrics['train_seconds']:.0f} s", flush=True)


def collect(folder: Path, tasks: list[str], methods: list[str], seeds: int) -> list[dict[str, Any]]:
    """The figures of all finished runs."""
    names = ("task", "method", "options", "seed", "score", "all_scores", "steps", "train_seconds", "device", "versions")
    found = []
    for seed in range(seeds):
        for task in tasks:
            for method in methods:
                path = run_folder(folder, task, method, seed) / "metrics.json"
                if path.exists():
                    metrics = json.loads(path.read_text(encoding="utf-8"))
                    found.append({name: metrics[name] for name in names} | {"rows": metrics["data"]["rows"]})
    return found


def table(runs: list[dict[str, Any]], task: str) -> Iterator[str]:
    """One task: mean, standard deviation and every seed, and the difference from plain fine-tuning, seed by seed."""
    scores = {
        method: {run["seed"]: run["score"] for run in runs if run["task"] == task and run["method"] == method}
        for method in METHODS
    }
    yield f"## {TASKS[task]}\n"
    yield "| method | mean ± std | n | each seed | minus `finetune`, paired | 95 % interval |"
    yield "|---|---|---|---|---|---|"
    for method, by_seed in scores.items():
        if not by_seed:
            continue
        values = list(by_seed.values())
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        each = " ".join(f"{value:.3f}" for value in values)
        pairs = [by_seed[seed] - scores["finetune"][seed] for seed in by_seed if seed in scores["finetune"]]
        difference, interval = ("–", "–") if method == "finetune" else _difference(pairs)
        mean = statistics.fmean(values)
        yield f"| `{method}` | {mean:.3f}{spread} | {len(values)} | {each} | {difference} | {interval} |"
    yield ""


def _difference(pairs: list[float]) -> tuple[str, str]:
    mean = f"{statistics.fmean(pairs):+.3f}" if pairs else "–"
    if len(pairs) < 2:
        return mean, "–"
    low, high = bootstrap((np.array(pairs),), np.mean, method="percentile", rng=0).confidence_interval
    return mean, f"{low:+.3f} to {high:+.3f}"


def write(path: Path, runs: list[dict[str, Any]], tasks: list[str]) -> None:
    """Write the page and, beside it, its figures as data."""
    facts = machine()
    lines = [_HEAD]
    for task in tasks:
        lines += table(runs, task)
    lines.append("Machine: " + "; ".join(f"{name} {value}" for name, value in facts.items()) + ".")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    document = {"facts": facts, "training": TRAINING, "runs": runs}
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/small-data"), help="where the runs go")
    parser.add_argument("--output", type=Path, default=Path("docs/small_data.md"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--report-only", action="store_true", help="run nothing; write the page from finished runs")
    given = parser.parse_args()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    if given.threads:
        torch.set_num_threads(given.threads)
    if not given.report_only:
        run_all(given.folder, given.tasks, given.methods, given.seeds)
    write(given.output, collect(given.folder, given.tasks, list(METHODS), given.seeds), given.tasks)


if __name__ == "__main__":
    main()
