"""Print what names of classes are worth to fine-tuning, from ``results/``: ``python benchmarks/label_names_table.py``.

For step 6 of docs/experiments.md. Differences are of the same draws of training rows; 95 % CI over draws and test rows.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.studies.statistics import paired_difference
from attendrop.tasks.metrics import RowScores

RESULTS = Path(__file__).parents[1] / "results" / "does_it_help" / "6_label_names"
DATA, SHOTS = ("banking77", "hwu64"), (1, 3, 5, 10)
# Columns: a difference of two kinds of runs, each a method and the option label_names.
PLAIN, NAMED, OURS, BOTH = ("finetune", None), ("finetune", "auto"), ("ad-drop", None), ("ad-drop", "auto")
DIFFERENCES = {
    "names": (NAMED, PLAIN),
    "AD-DROP": (OURS, PLAIN),
    "AD-DROP and names": (BOTH, PLAIN),
    "AD-DROP, where names are rows": (BOTH, NAMED),
}


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    runs: dict[tuple[Any, ...], dict[int, Any]] = {}
    for line in (RESULTS / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        given = run["run"]
        key = (Path(given["train_file"]).parent.name, given["shots"], run["method"], given.get("label_names"))
        runs.setdefault(key, {})[run["seed"]] = RowScores.from_dict(run["row_scores"]).values.astype(float)
    yield "| data, rows per class | draws | plain | with names | " + " | ".join(DIFFERENCES) + " |"
    yield "|---|---:|---:|---:|" + "---:|" * len(DIFFERENCES)
    for data in DATA:
        for shots in SHOTS:
            of = {kind: runs.get((data, shots, *kind), {}) for kind in (PLAIN, NAMED, OURS, BOTH)}
            draws = sorted(set.intersection(*(set(found) for found in of.values())))
            if len(draws) < 2:
                continue
            scores = {kind: np.stack([found[draw] for draw in draws]) for kind, found in of.items()}
            cells = []
            for one, other in DIFFERENCES.values():
                found = paired_difference(
                    scores[one].mean(axis=1),
                    scores[other].mean(axis=1),
                    scores[one] - scores[other],
                    scores[one].shape[1],
                ).mean
                cells.append(f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]")
            means = (f"{scores[kind].mean():.3f}" for kind in (PLAIN, NAMED))
            yield f"| {data}, {shots} | {len(draws)} | " + " | ".join([*means, *cells]) + " |"


if __name__ == "__main__":
    print(*lines(), sep="\n")
