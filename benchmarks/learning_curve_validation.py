"""Is what ``compare --curve`` says of more rows true? For the entry of 2026-11-28 in docs/experiments.md.

Needs ``ATTENDROP_DATA``. The first command runs draws, half an hour on a core, resumable, the second prints the table:
    python benchmarks/learning_curve_validation.py run
    python benchmarks/learning_curve_validation.py

The model is the linear model on frozen MiniLM, without names of classes. A draw takes ``4n`` training rows, a half of
them, and a quarter, which are the ``n`` rows that someone has, with a third as many to score on, as ``compare`` sets
aside. The prediction is from a quarter, a half and all of the ``n`` rows, with three seeds; what came is the difference
on up to 1,000 rows of the test file. The naive prediction goes on with the last doubling's gain, with its own error.
Scores by row are kept, so that the table is of the fit as it is now; the fit was adjusted on the first three draws.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from encoder_screening import Features, config_of
from kept import kept_runs

from attendrop.runs.data import load_data
from attendrop.studies.learning_curve import FACTORS, SEEDS, curve_of
from attendrop.studies.statistics import CrossedMean
from attendrop.tasks.metrics import RowScores, compute_scores, row_scores
from attendrop.tasks.splits import subset
from attendrop.tasks.types.linear_models import stratified_parts

FILE = Path(__file__).parents[1] / "results" / "does_it_help" / "8_curve" / "runs.jsonl"
# Draws by the number of rows that someone has; numbers of rows that are drawn from, of test rows, and of classes.
DATA = {
    "hwu64": ({200: 6, 400: 14}, 4000, 1000, 64),
    "banking77": ({200: 6, 400: 14}, 4000, 1000, 77),
    "imdb": ({375: 14}, 1700, 500, 2),
    "cola": ({200: 4, 400: 4}, 4000, 1000, 2),
}
LOOKED_AT = range(3)
NORMAL = 1.6449  # quantile of a 90 % interval


def halved(rows: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Draw half of the rows, stratified by class."""
    return rows[stratified_parts(rows, labels[rows], 2, seed, strata=int(labels.max()) + 1) == 0]


def runs(name: str, done: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield the scores of each draw that is not done, by row those of fewer rows, and on the test file."""
    sizes, most, tested, _ = DATA[name]
    wanted = [(rows, draw) for rows, draws in sizes.items() for draw in range(draws) if (name, rows, draw) not in done]
    if not wanted:
        return
    loaded = load_data(config_of(name))
    task, encoder = loaded.task, Features("minilm", loaded.task)
    pool, test = subset(loaded.splits["train"], most, 0), loaded.splits["dev"]
    test = subset(test, min(len(test), tested), 0)
    (features, encoded), (there, encoded_test) = encoder(pool), encoder(test)
    labels, right = task.type.references(encoded), task.type.references(encoded_test)

    fits: dict[bytes, Any] = {}

    def outputs(rows: np.ndarray, scored: np.ndarray) -> np.ndarray:
        if rows.tobytes() not in fits:
            fits[rows.tobytes()] = task.type.fit_linear(features[rows], labels[rows].tolist(), balanced=False)
        fit = fits[rows.tobytes()]
        if fit is None:
            return np.asarray(task.type.constant_answer(labels[rows], right[: len(scored)])[1])
        return np.asarray(fit.outputs(scored))

    for rows, draw in wanted:
        order = np.random.default_rng(draw).permutation(len(pool))
        four, held = order[: 4 * rows], order[4 * rows : 4 * rows + rows // 3]
        two = halved(four, labels, draw)
        own = halved(two, labels, draw)
        scored = []
        for seed in range(SEEDS):
            half = halved(own, labels, 1000 + seed)
            for part in (halved(half, labels, 2000 + seed), half, own):
                found = outputs(part, features[held])
                divided = row_scores(task, found, labels[held], pool.select(held))
                assert divided is not None
                score = compute_scores(task, found, labels[held])[task.metric]
                scored.append({"size": len(part), "score": score, **divided.as_dict(), "data": ""})
        test_scores = [compute_scores(task, outputs(part, there), right)[task.metric] for part in (own, two, four)]
        yield {"data": name, "rows": rows, "draw": draw, "scored": scored, "held": len(held), "test": test_scores}


def predicted(run: dict[str, Any]) -> list[tuple[float, ...]]:
    """Return for each factor what came; and of both predictions whether they cover it, width and error; if known."""
    scored = [run["scored"][at : at + 3] for at in range(0, 3 * SEEDS, 3)]
    classes = range(DATA[run["data"]][-1])
    curve = curve_of("frozen", "score", [
        [{**each, "row_scores": each, "data": {"rows": {"train": each["size"]}, "classes": classes}} for each in own]
        for own in scored
    ])  # fmt: skip
    last = np.array([own[2]["score"] - own[1]["score"] for own in scored])
    half, whole = (np.stack([RowScores.from_dict(own[step]).by_unit for own in scored]) for step in (1, 2))
    spread, found = CrossedMean.of(whole - half, float(last.mean()), run["scored"][0]["rows"]).variance, []
    for doublings, gain in enumerate(curve.gains.values(), 1):
        half_width, naive = NORMAL * doublings * math.sqrt(spread), doublings * last.mean()
        came = run["test"][doublings] - run["test"][0]
        laws = (gain.low <= came <= gain.high, gain.high - gain.low, abs(gain.value - came))
        found.append((came, *laws, abs(naive - came) <= half_width, 2 * half_width, abs(naive - came)))
    return found


def table(kept: Sequence[dict[str, Any]]) -> str:
    """Make the table: coverage, width and error of both predictions, where one is made."""
    columns = ["data", "rows", "times", "draws", "known", "gain", "covers", "width", "error"]
    columns += [f"naive {name}" for name in columns[-3:]]
    rows = []
    for run in kept:
        found = predicted(run)
        for place, factor in enumerate(FACTORS):
            numbers = found[place] if found else [math.nan] * 7
            rows += [(*cell, factor, 1, bool(found), *numbers) for cell in ((run["data"], run["rows"]), ("all", 0))]
    groups = pd.DataFrame(rows, columns=columns).astype({"covers": float, "naive covers": float})
    groups = groups.groupby(columns[:3], sort=False)
    sums = {name: groups[name].sum() for name in ("draws", "known")}
    frame = groups.mean().assign(**sums).reset_index().sort_values("times", kind="stable")
    return str(frame.round(3).to_string(index=False))


def main() -> None:
    """Run from the command line."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    kept = kept_runs(FILE)
    if sys.argv[1:2] == ["run"]:
        done = {(run["data"], run["rows"], run["draw"]) for run in kept}
        with FILE.open("a", encoding="utf-8") as lines:
            for run in (run for name in DATA for run in runs(name, done)):
                kept.append(run)
                print(json.dumps(run), file=lines, flush=True)
    for title, looked_at in (("The draws that were looked at", True), ("Other draws", False)):
        print(f"{title}:\n", table([run for run in kept if (run["draw"] in LOOKED_AT) is looked_at]), "", sep="\n")


if __name__ == "__main__":
    main()
