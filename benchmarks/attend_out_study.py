"""What AttendOut learns from real rewards, beside what it would learn from noise, and what that is worth.

Three runs of MiniLM per task and seed: plain fine-tuning, AttendOut at its defaults, and the same dropout without
learning, with AttendOut's final probabilities from the start. It can be stopped at any time and started again: finished
runs are lines of ``attend_out_study.jsonl``. With ``--report`` it writes the tables of docs/attendout.md from them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import bootstrap, t
from transformers.utils import logging as hf_logging

from attendrop import AttendOut, register_method
from attendrop.attention.plan import ConstantAttention, Plan
from attendrop.extend import Method, MethodInfo, Range, StepContext, option
from attendrop.runs.config import RunConfig
from attendrop.runs.train import train

RESULTS = Path(__file__).with_name("attend_out_study.jsonl")
PAGE = Path(__file__).parents[1] / "docs/attendout.md"
MARKS = ("<!-- study: written by `make study-attendout` -->", "<!-- end of study -->")
TASKS = {"cola": "CoLA, Matthews", "stsb": "STS-B, Pearson", "banking77": "Banking77, accuracy"}
RUNS = ("finetune", "attendout", "fixed-layers")
TRAINING = {
    "max_steps": 160,
    "batch_size": 16,
    "learning_rate": 1e-4,
    "selection_fraction": 0.0,
    "max_length": 64,
}
ROWS, SHOTS = 512, 5


@register_method
@dataclass(frozen=True)
class FixedLayers(Method):
    """AttendOut's dropout without learning: layers of constant attention for ``period`` steps, without a defender."""

    info = MethodInfo(
        "fixed-layers",
        "makes the attention of layers constant for whole periods, with fixed probabilities",
        acts_on=("layers",),
        units="layers",
        skips_parameters=True,
    )

    probabilities: tuple[float, ...] = option((0.1,) * 6, Range("one number per layer", lambda _, value: tuple(value)))
    period: int = AttendOut().dropout_step

    def plan(self, context: StepContext) -> Plan:
        key = replace(context.key, step=context.key.step // self.period)
        layers = self.selected_layers(context.adapter.attention_layers)
        drawn = {layer.key: key.uniform(layer.key) < p for layer, p in zip(layers, self.probabilities, strict=True)}
        for name, dropped in drawn.items():
            context.report(name, torch.tensor(int(dropped)), torch.tensor(1))
        return ConstantAttention(name for name, dropped in drawn.items() if dropped)


def data_of(task: str) -> dict[str, Any]:
    """Return the options of a run that name its rows."""
    if task != "banking77":
        return {"task": task, "max_train_samples": ROWS}
    folder = Path(os.environ["ATTENDROP_DATA"]) / "banking77"
    return {
        "train_file": str(folder / "train.csv"),
        "eval_file": str(folder / "test.csv"),
        "text_columns": ("text",),
        "label_column": "category",
        "shots": SHOTS,
    }


def run(task: str, seed: int, method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train once; returns a line of the results."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/run"
        given = data_of(task) | TRAINING
        metrics = train(RunConfig(model="minilm", method=method, options=options, seed=seed, output_dir=place, **given))
    names = ("score", "options", "train_seconds", "steps", "layer_effects", "dropout_steps")
    found = {name: metrics[name] for name in names if name in metrics}
    return {"task": task, "seed": seed, "run": method, **found, "rows": metrics["data"]["rows"]}


def run_missing(rows: list[dict[str, Any]], seeds: int) -> None:
    """Run what is missing, AttendOut first, seed by seed, and append each finished run to the file."""
    done = {(row["task"], row["seed"], row["run"]): row for row in rows}
    for method in sorted(RUNS):
        for seed in range(seeds):
            for task in TASKS:
                if (task, seed, method) in done:
                    continue
                options = {}
                if method == FixedLayers.name:
                    learnt = done[task, seed, "attendout"]["layer_effects"].values()
                    options = {"probabilities": [layer["probability"] for layer in learnt]}
                row = done[task, seed, method] = run(task, seed, method, options)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{task} seed {seed} {method}: {row['score']:.4f}, {row['train_seconds']:.0f} s", flush=True)


# The report -----------------------------------------------------------------------------------------------------------


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Write the tables, as text in Markdown."""
    seeds = min(len({row["seed"] for row in rows if row["task"] == task}) for task in TASKS)
    lines = [
        f"Generated by `make study-attendout` (`benchmarks/attend_out_study.py`), exactly as measured: MiniLM, "
        f"{ROWS} training rows of CoLA and STS-B and {SHOTS} per class of Banking77, sampled for each seed; "
        f"{TRAINING['max_steps']} optimizer steps of {TRAINING['batch_size']} rows, {TRAINING['max_length']} tokens, "
        f"learning rate {TRAINING['learning_rate']:g}; AttendOut at its defaults. Seeds of all tasks so far: {seeds}.",
        "",
        "Change of each layer's drop probability from 0.1, mean over seeds with its 95 % interval (Student); beside it "
        "the interval that holds a layer's change in 95 % of learners whose rewards are noise (mean over seeds), and "
        "the number of runs that tell the change from noise. The effect is that of dropping the layer for a period of "
        "5 steps on the mean score, the negative loss.",
        "",
        "| task | layer | change | from noise | told from noise | effect |",
        "|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        learnt = [row["layer_effects"] for row in rows if (row["task"], row["run"]) == (task, "attendout")]
        for layer in learnt[0] if learnt else ():
            found = [each[layer] for each in learnt]
            band = [statistics.fmean(each["noise_interval"][i] - each["start"] for each in found) for i in (0, 1)]
            told = sum(each["told_from_noise"] for each in found)
            lines.append(
                f"| {TASKS[task].split(',')[0]} | {layer} | {_mean([each['change'] for each in found], 3)} | "
                f"{band[0]:+.3f} to {band[1]:+.3f} | {told} of {len(found)} | "
                f"{_mean([each['effect'] or 0.0 for each in found], 5)} |"
            )
    lines += [
        "",
        "Scores of the final models, mean over seeds, and paired differences with bootstrap intervals of 95 %. "
        "`fixed-layers` is the same dropout without learning: one network, layers dropped for periods of 5 steps with "
        "the probabilities that AttendOut of the same seed ended with. It and fine-tuning also train on the rows that "
        "AttendOut sets aside.",
        "",
        "| task | seeds | fine-tuning | fixed layers | AttendOut | minus fine-tuning | minus fixed layers |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, name in TASKS.items():
        scores = {
            method: {row["seed"]: row["score"] for row in rows if (row["task"], row["run"]) == (task, method)}
            for method in RUNS
        }
        shared = sorted(set.intersection(*(set(found) for found in scores.values())))
        if shared:
            plain, ours, fixed = (np.array([scores[method][seed] for seed in shared]) for method in RUNS)
            cells = [f"{found.mean():.4f}" for found in (plain, fixed, ours)]
            cells += [_difference(ours - plain), _difference(ours - fixed)]
            lines.append(f"| {name} | {len(shared)} | {' | '.join(cells)} |")
    return "\n".join(line if line.startswith("|") else fill(line, 120) for line in lines)


def _mean(values: Sequence[float], digits: int) -> str:
    mean = f"{statistics.fmean(values):+.{digits}f}"
    if len(values) < 2:
        return mean
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean} ± {half:.{digits}f}"


def _difference(pairs: NDArray[np.float64]) -> str:
    if len(pairs) < 2:
        return f"{pairs.mean():+.4f}"
    low, high = bootstrap((pairs,), np.mean, method="percentile", rng=0).confidence_interval
    return f"{pairs.mean():+.4f} ({low:+.4f} to {high:+.4f})"


def write(path: Path, text: str) -> None:
    """Replace the generated part of a page."""
    head, _, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
    path.write_text(f"{head}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}", encoding="utf-8")


def finished() -> list[dict[str, Any]]:
    """Read the finished runs; the end of a line that was cut short is removed."""
    if not RESULTS.exists():
        return []
    whole = RESULTS.read_text().rpartition("\n")[0]
    RESULTS.write_text(whole + "\n" if whole else "")
    return [json.loads(line) for line in whole.splitlines()]


def main() -> None:
    """Run what is missing, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--report", action="store_true", help="only write the tables from finished runs")
    given = parser.parse_args()
    if not given.report:
        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()
        torch.set_num_threads(1)
        run_missing(finished(), given.seeds)
    text = report(finished())
    write(PAGE, text)
    print(text)


if __name__ == "__main__":
    main()
