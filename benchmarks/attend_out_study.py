"""What AttendOut's learner of effects makes of real rewards, beside rewards of noise: ``make study-attendout``.

Each run trains MiniLM on few rows of a task, and keeps of each layer the probability of dropping, the estimated effect
and its standard error. The control replaces the scores by random numbers of the same size, which do not depend on what
was dropped. Can be stopped at any time: finished runs are kept, one line each, and not run again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attendrop.methods.attend_out.periods import AttendOutState
from attendrop.runs.config import RunConfig
from attendrop.runs.train import train

RESULTS = Path(__file__).with_name("attend_out_study.jsonl")
TASKS = ("cola", "stsb", "rte")
NOISE = 0.002
TRAINING = {
    "max_train_samples": 512,
    "max_steps": 240,
    "batch_size": 16,
    "learning_rate": 1e-4,
    "selection_fraction": 0.0,
    "max_length": 64,
}
OPTIONS = {"learner": "effects", "init_drop_prob": 0.1, "dropout_step": 5, "reward_batch_size": 8}


@contextmanager
def noise_as_rewards(seed: int) -> Iterator[None]:
    """Let scores be numbers that do not depend on the actions."""
    original, chance = AttendOutState._scores, random.Random(seed)

    def scores(self: AttendOutState, players: Any, seed: int) -> tuple[Tensor, Tensor]:
        gaps = [chance.gauss(0, NOISE) for _ in self.period]
        return torch.tensor(gaps, dtype=torch.float64), torch.zeros(len(gaps), dtype=torch.float64)

    AttendOutState._scores = scores  # type: ignore[method-assign]
    try:
        yield
    finally:
        AttendOutState._scores = original  # type: ignore[method-assign]


def run(task: str, seed: int, rewards: str) -> dict[str, Any]:
    """Train once; returns a line of the results."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            model="minilm",
            task=task,
            method="attendout",
            options=OPTIONS,
            seed=seed,
            output_dir=f"{folder}/run",
            **TRAINING,
        )
        if rewards == "noise":
            with noise_as_rewards(seed):
                metrics = train(config)
        else:
            metrics = train(config)
    found = {key: metrics[key] for key in ("score", "train_seconds", "layer_effects")}
    return {"task": task, "seed": seed, "rewards": rewards, **found}


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The change of each layer's probability, mean and standard deviation over seeds, real beside noise."""
    for task in dict.fromkeys(row["task"] for row in rows):
        for layer in rows[0]["layer_effects"]:
            parts = []
            for rewards in ("real", "noise"):
                moved = [
                    found["probability"] - found["start"]
                    for row in rows
                    if (row["task"], row["rewards"]) == (task, rewards)
                    for found in [row["layer_effects"][layer]]
                ]
                if len(moved) > 1:
                    spread = statistics.stdev(moved)
                    parts.append(f"{rewards} {statistics.fmean(moved):+.3f} ± {spread:.3f} ({len(moved)} seeds)")
            yield f"{task} {layer}: {'; '.join(parts)}"


def main() -> None:
    """Run what is missing, then print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--task", action="append", choices=TASKS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    done = {(row["task"], row["seed"], row["rewards"]) for row in rows}
    for seed in range(given.seeds):
        for task in given.task or TASKS:
            for rewards in ("real", "noise"):
                if (task, seed, rewards) not in done:
                    rows.append(run(task, seed, rewards))
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
