"""Print what names of classes are worth to fine-tuning, from ``results/``: ``python benchmarks/label_names_table.py``.

For step 6 of docs/experiments.md. Differences are of the same draws of training rows; 95 % CI over draws and test rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kept import difference, kept_runs

from attendrop.tasks.metrics import RowScores

RESULTS = Path(__file__).parents[1] / "results" / "does_it_help"
DATA, SHOTS = ("banking77", "hwu64"), (1, 3, 5, 10)
# Columns: a difference of two kinds of runs, each a method and the option label_names.
PLAIN, NAMED, OURS, BOTH = ("finetune", None), ("finetune", "auto"), ("ad-drop", None), ("ad-drop", "auto")
DIFFERENCES = {
    "names": (NAMED, PLAIN),
    "AD-DROP": (OURS, PLAIN),
    "AD-DROP and names": (BOTH, PLAIN),
    "AD-DROP, where names are rows": (BOTH, NAMED),
}


R_DROP = {
    "R-Drop": (("r-drop", None), PLAIN),
    "R-Drop, where names are rows": (("r-drop", "auto"), NAMED),
    "AD-DROP minus R-Drop, where names are rows": (BOTH, ("r-drop", "auto")),
}
# What the last table has beside: the folder of the runs, the data, and the methods.
OTHERS = (
    ("6_label_names", ("messages",), ("frozen", "finetune", "ad-drop")),
    ("6_label_names", DATA, ("setfit",)),
    ("6_label_names", ("imdb",), ("frozen", "finetune")),
    ("6_label_names_mpnet", DATA, ("frozen", "finetune", "ad-drop")),
)
Runs = dict[tuple[Any, ...], dict[int, Any]]


def read_runs(folder: str = "6_label_names") -> Runs:
    """Read the scores by row of all runs, by data, rows per class, method and option, and by draw."""
    runs: Runs = {}
    for run in kept_runs(RESULTS / folder / "runs.jsonl"):
        given, draw = run["run"], run["seed"]
        names, data = given.get("label_names"), Path(given["train_file"]).parent.name
        if data.isdigit():  # each draw of the messages is a file of its own
            data, draw = "messages", int(data)
        if given.get("label_map"):
            names = "codes"
        elif names not in (None, "auto"):
            names = "auto" if data == "imdb" else "of other classes"
        key = (data, given.get("shots"), run["method"], names)
        runs.setdefault(key, {})[draw] = RowScores.from_dict(run["row_scores"]).values.astype(float)
    return runs


def cell(runs: Runs, data: str, shots: int, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[int, str]:
    """Return the number of draws in common, and the difference of two kinds of runs with its interval."""
    found = runs.get((data, shots, *one), {}), runs.get((data, shots, *other), {})
    draws = sorted(set(found[0]) & set(found[1]))
    if len(draws) < 2:
        return len(draws), "-"
    first, second = (np.stack([each[draw] for draw in draws]) for each in found)
    return len(draws), difference(first, second)


def lines() -> Iterator[str]:
    """Yield the lines of the tables: names with AD-DROP; and R-Drop, with five rows."""
    runs = read_runs()
    yield "| data, rows per class | draws | plain | with names | " + " | ".join(DIFFERENCES) + " |"
    yield "|---|---:|---:|---:|" + "---:|" * len(DIFFERENCES)
    for data in DATA:
        for shots in SHOTS:
            cells = [cell(runs, data, shots, *pair) for pair in DIFFERENCES.values()]
            if all(text != "-" for _, text in cells):
                means = [f"{np.mean([*runs[data, shots, *kind].values()]):.3f}" for kind in (PLAIN, NAMED)]
                draws = min(number for number, _ in cells)
                yield f"| {data}, {shots} | {draws} | " + " | ".join([*means, *(text for _, text in cells)]) + " |"
    yield ""
    yield "| data, five rows per class | draws | " + " | ".join(R_DROP) + " |"
    yield "|---|---:|" + "---:|" * len(R_DROP)
    for data in DATA:
        cells = [cell(runs, data, 5, *pair) for pair in R_DROP.values()]
        yield f"| {data} | {cells[0][0]} | " + " | ".join(text for _, text in cells) + " |"
    yield ""
    yield "| controls: rows per class | draws | names | names of other classes | one more row instead |"
    yield "|---|---:|---:|---:|---:|"
    for data in DATA:
        for shots in (1, 3, 5):
            named, other = (cell(runs, data, shots, ("finetune", kind), PLAIN) for kind in ("auto", "of other classes"))
            runs[data, shots, "one more"] = runs.get((data, shots + 1, *PLAIN), {})
            more = cell(runs, data, shots, ("one more",), PLAIN)
            yield f"| {data}, {shots} | {more[0]} | {named[1]} | {other[1]} | {more[1]} |"
    yield ""
    yield "| data, rows per class | method | draws | rows alone | with names | names |"
    yield "|---|---|---:|---:|---:|---:|"
    for folder, of_data, methods in OTHERS:
        runs = read_runs(folder)
        model = "all-mpnet-base-v2, " * folder.endswith("mpnet")
        for data, shots in sorted(
            {key[:2] for key in runs if key[0] in of_data}, key=lambda key: (key[0], key[1] or 0)
        ):
            for method in methods:
                number, of_names = cell(runs, data, shots, (method, "auto"), (method, None))
                if number and (shots == 5 or data not in DATA):
                    alone, named = (runs[data, shots, method, names] for names in (None, "auto"))
                    means = [np.mean([each[draw] for draw in alone if draw in named]) for each in (alone, named)]
                    scores = " | ".join(f"{mean:.3f}" for mean in means)
                    yield f"| {model}{data}, {shots or 5} | {method} | {number} | {scores} | {of_names} |"


if __name__ == "__main__":
    print(*lines(), sep="\n")
