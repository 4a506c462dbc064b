"""Print the table of step 5 of docs/experiments.md, from ``results/``: ``python benchmarks/alike_table.py``.

Each cell is a method's mean difference from plain fine-tuning on the same training rows. Intervals are over draws and
evaluation rows where all draws have the same evaluation rows, and over draws otherwise.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from kept import kept_runs
from scipy import stats

from attendrop.studies.statistics import (
    ALPHA,
    CrossedMean,
    Estimate,
    crossed_test,
    holm,
    mean_interval,
    paired_difference,
)
from attendrop.tasks.metrics import RowScores

RESULTS = Path(__file__).parents[1] / "results" / "does_it_help"
STUDIES = ("5_messages", "5_alike", "5_other_tasks")
DATA = {"banking77": "Banking77", "hwu64": "HWU64"}
DEGREES = {"nearest": "nearest", "nearest-of-4k": "nearest of {pool}", "random": "random"}
DEFAULT = "recorded, all layers, p = 0.3"
_BOTH = "AD-DROP with R-Drop"
# Columns: what the methods are called there, and whether they are in Holm's correction.
METHODS = {
    f"AD-DROP, {DEFAULT}": True,
    "AD-DROP, separate pass, first layer, p = 0.1": True,
    "random candidates, all layers, p = 0.3": False,
    "R-Drop": True,
    _BOTH: True,
    "mixout, p = 0.9": True,
    "HiddenCut": True,
    "token cutoff": True,
    "frozen encoder": False,
    "SetFit": True,
}
_NAMES = {"frozen": "frozen encoder", "setfit": "SetFit", "r-drop": "R-Drop", "mixout": "mixout, p = 0.9",
          "hiddencut": "HiddenCut", "token-cutoff": "token cutoff", "finetune": "plain"}  # fmt: skip
_AD_DROP = {
    ("recorded", "all", 0.3): f"AD-DROP, {DEFAULT}",
    ("gradient", "first", 0.1): "AD-DROP, separate pass, first layer, p = 0.1",
    ("random", "all", 0.3): "random candidates, all layers, p = 0.3",
}
Runs = dict[str, dict[str, Any]]  # by method and draw


def place(study: str, run: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the row of the table and the draw; None for runs that are not in it."""
    file = str(run["run"].get("train_file"))
    if study == "5_messages":
        return "generated messages, 5 | new phrases", file
    if study == "5_other_tasks":
        task = "CoNLL-2003, 300 sentences" if run["run"].get("task") else "MRPC to PAWS-X, 256 pairs"
        return f"{task} | random", str(run["seed"])
    found = re.fullmatch(r"(\w+)/([\w-]+)/(\d+)/(\d+)\.csv", file)
    if found is None or run["run"].get("bf16"):
        return None
    data, degree, rows, draw = found.groups()
    return f"{DATA[data]}, {rows} | {DEGREES[degree].format(pool=4 * int(rows))}", draw


def method(run: Mapping[str, Any]) -> str | None:
    """Return the column of a run; None for settings that have none."""
    options = run["options"] or {}
    if run["method"] == "ad-drop":
        return _AD_DROP.get((options["attribution"], options["layers"], options["p"]))
    if run["method"] == "ad-drop+r-drop" and options["ad-drop"]["attribution"] == "recorded":
        return _BOTH
    return _NAMES.get(run["method"])


@cache
def table() -> dict[str, Runs]:
    """Read the kept runs, by row of the table; those of a study by data, choice and number of rows."""
    found: dict[str, Runs] = {}
    for study in STUDIES:
        own: dict[str, Runs] = defaultdict(lambda: defaultdict(dict))
        for run in kept_runs(RESULTS / study / "runs.jsonl"):
            at, name = place(study, run), method(run)
            if at is not None and name is not None:
                own[at[0]][name][at[1]] = run
        found |= {at: own[at] for at in sorted(own, key=_order)}
    return found


def _order(row: str) -> tuple[str, str, int]:
    data, count, chosen = re.fullmatch(r"(.+), (\d+)(.*)", row).groups()
    return data, chosen, int(count)


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Estimate, float, int]:
    """Compare two methods on their common draws: the difference, its p value, and the number of draws."""
    draws = sorted(first.keys() & second.keys())
    scores = [[each[draw]["score"] for draw in draws] for each in (first, second)]
    by_row = [[RowScores.from_dict(each[draw]["row_scores"]) for draw in draws] for each in (first, second)]
    if len({found.data for each in by_row for found in each}) == 1:
        mine, other = (np.stack([found.by_unit for found in each]) for each in by_row)
        found = paired_difference(*scores, mine - other, by_row[0][0].rows, groups=by_row[0][0].groups)
        return found.mean, found.p_value, len(draws)
    values = np.subtract(*scores)
    return mean_interval(values), float(stats.ttest_1samp(values, 0).pvalue), len(draws)


def together(
    rows: Mapping[str, Runs], name: str, other: str, chosen: str, of: Iterable[str] = DATA.values()
) -> tuple[Estimate, float]:
    """Compare two methods on rows of some data sets chosen alike, over draws and examples, each draw a mean."""
    parts = []
    for data in of:
        cells = [
            runs for at, runs in rows.items() if at.startswith(data) and chosen in at and runs[name] and runs[other]
        ]
        draws = [
            np.mean([_by_row(runs[name][draw]) - _by_row(runs[other][draw]) for runs in cells], axis=0)
            for draw in sorted(cells[0][name])
        ]
        parts.append(CrossedMean.of(np.stack(draws), float(np.mean(draws)), len(draws[0])))
    return crossed_test(parts, [1 / len(parts)] * len(parts))


def _by_row(run: Mapping[str, Any]) -> Any:
    return RowScores.from_dict(run["row_scores"]).by_unit


def number(value: float) -> str:
    """Write a difference; one that is rounded to 0 has no sign."""
    return f"{value:+.3f}" if abs(value) >= 0.0005 else "0.000"


def times(rows: Iterable[Runs], name: str) -> str:
    """Write the median over all draws of a method's training time, relative to plain fine-tuning on the same CPU."""
    pairs = [(run, runs["plain"].get(draw)) for runs in rows for draw, run in runs[name].items()]
    alike = [(run, plain) for run, plain in pairs if plain and run["processor"] == plain["processor"]]
    ratios = [a["train_seconds"] / b["train_seconds"] for a, b in alike if b["device"] == "cpu"]
    return f"{np.median(ratios):.2g}" if ratios else "–"


def lines() -> list[str]:
    """Return the lines of the table: bold is significant after Holm's correction over all cells that it is applied to.

    A number in parentheses after a cell is that of its draws, where plain fine-tuning has more.
    """
    rows = {at: runs for at, runs in table().items() if len(runs["plain"]) > 1}
    cells = {
        (at, name): difference(runs[name], runs["plain"])
        for at, runs in rows.items()
        for name in METHODS
        if len(runs[name].keys() & runs["plain"].keys()) > 1
    }
    p_values = holm({cell: found[1] for cell, found in cells.items() if METHODS[cell[1]]})
    used = [name for name in METHODS if any(cell[1] == name for cell in cells)]
    found = [["data, rows per class", "chosen", "plain", *used], ["---"] * (3 + len(used))]
    for at, runs in rows.items():
        plain = [run["score"] for run in runs["plain"].values()]
        line = [*at.split(" | "), f"{np.mean(plain):.3f}"]
        for name in used:
            if (at, name) not in cells:
                line.append("–")
                continue
            mean, _, draws = cells[at, name]
            text = f"{number(mean.value)} [{number(mean.low)}, {number(mean.high)}]"
            text = f"**{text}**" if p_values.get((at, name), 1) <= ALPHA else text
            line.append(text if draws == len(plain) else f"{text} ({draws})")
        found.append(line)
    found.append(["time of training", "", "1", *(times(rows.values(), name) for name in used)])
    return [f"| {' | '.join(line)} |" for line in found]


if __name__ == "__main__":
    print(*lines(), sep="\n")
    found, default, control = table(), f"AD-DROP, {DEFAULT}", "random candidates, all layers, p = 0.3"
    for title, chosen in (("Similar", "nearest"), ("Random", "random")):
        print(f"{title} rows, all together:")
        for pair in (
            *((name, "plain") for name in (default, "R-Drop", _BOTH, "SetFit", control)),
            *((default, name) for name in ("R-Drop", "SetFit", control)),
            *((_BOTH, name) for name in (default, "R-Drop")),
        ):
            print(*pair, *together(found, *pair, chosen), sep="; ")
