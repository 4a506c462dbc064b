"""Is what ``compare --curve`` says of more rows true? For the entry of 2026-11-28 in docs/experiments.md.

Needs ``ATTENDROP_DATA``. The first command runs draws, half an hour on a core, resumable, the second prints the table:
    python benchmarks/learning_curve_validation.py run DRAWS
    python benchmarks/learning_curve_validation.py

The model is the linear model on frozen MiniLM, without names of classes. A draw takes ``4n`` training rows, a half of
them, and a quarter, which are the ``n`` rows that someone has, with a third as many to score on, as ``compare`` sets
aside. The prediction is from a quarter, a half and all of the ``n`` rows, with three seeds; what came is the difference
on up to 1,000 rows of the test file. The naive prediction goes on with the last doubling's gain, with its own error.
Scores by row are kept, so that the table is of the fit as it is now; the fit was adjusted on the first three draws.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from encoder_screening import SETS, Features

from attendrop.runs.config import RunConfig
from attendrop.runs.data import load_data
from attendrop.studies.learning_curve import FACTORS, SEEDS, predict_gains
from attendrop.studies.statistics import CrossedMean
from attendrop.tasks.metrics import RowScores, compute_scores, row_scores
from attendrop.tasks.splits import subset
from attendrop.tasks.types.linear_models import stratified_parts

FILE = Path(__file__).parents[1] / "results" / "does_it_help" / "8_curve" / "runs.jsonl"
# Numbers of rows that someone has, of all rows that are drawn from, and of test rows.
DATA = {
    "banking77": ((200, 400), 4000, 1000),
    "hwu64": ((200, 400), 4000, 1000),
    "cola": ((200, 400), 4000, 1000),
    "imdb": ((100, 200), 1500, 500),
}
LOOKED_AT = range(3)
NORMAL = 1.6449  # quantile of a 90 % interval


def halved(rows: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Draw half of the rows, stratified by class."""
    return rows[stratified_parts(rows, labels[rows], 2, seed, strata=int(labels.max()) + 1) == 0]


def runs(name: str, draws: Sequence[int], done: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield what is predicted for each draw, and what came."""
    sizes, most, tested = DATA[name]
    wanted = [(rows, draw) for draw in draws for rows in sizes if (name, rows, draw) not in done]
    if not wanted:
        return
    given = {key: value.format(data=os.environ["ATTENDROP_DATA"], name=name) for key, value in SETS[name][0].items()}
    given |= {} if "task" in given else {"text_columns": ("text",)}
    loaded = load_data(RunConfig(model="minilm", output_dir="", method="finetune", **given))
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


def predicted(run: dict[str, Any]) -> Iterator[dict[str, float]]:
    """Yield the prediction of a draw for each factor, the naive one, and what came."""
    scores = np.reshape([each["score"] for each in run["scored"]], (SEEDS, 3))
    sizes = np.reshape([each["size"] for each in run["scored"]], (SEEDS, 3)).mean(axis=0)
    units = [RowScores.from_dict(each).by_unit for each in run["scored"]]
    by_unit, last = np.reshape(np.stack(units), (SEEDS, 3, -1)), scores[:, 2] - scores[:, 1]
    gains = predict_gains(sizes, scores, by_unit, run["held"])
    spread = CrossedMean.of(by_unit[:, 2] - by_unit[:, 1], float(last.mean()), run["held"]).variance
    for factor, score, doublings in zip(FACTORS, run["test"][1:], (1, 2), strict=True):
        gain, half_width, naive = gains[factor], NORMAL * doublings * math.sqrt(spread), doublings * last.mean()
        yield {
            **{"low": gain.low, "value": gain.value, "high": gain.high, "came": score - run["test"][0]},
            **{"naive_low": naive - half_width, "naive": naive, "naive_high": naive + half_width},
        }


def table(kept: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table: coverage, width and error of both predictions."""
    yield "| data | rows | times | draws | gain that came | covers | width | error | naive covers | width | error |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    cells = [(name, rows) for name, (sizes, *_) in DATA.items() for rows in sizes]
    for factor in FACTORS:
        for name, rows in [*cells, ("all", 0)]:
            some = [run for run in kept if name == "all" or (run["data"], run["rows"]) == (name, rows)]
            own = [each for run in some for at, each in zip(FACTORS, predicted(run), strict=True) if at == factor]
            if not own:
                continue
            of = {key: np.array([each[key] for each in own]) for key in own[0]}
            told = [f"{of['came'].mean():+.3f}"]
            for low, value, high in (("low", "value", "high"), ("naive_low", "naive", "naive_high")):
                covers = np.mean((of[low] <= of["came"]) & (of["came"] <= of[high]))
                width, error = np.mean(of[high] - of[low]), np.mean(np.abs(of[value] - of["came"]))
                told += [f"{covers:.2f}", f"{width:.3f}", f"{error:.3f}"]
            yield f"| {name} | {rows or ''} | {factor} | {len(own)} | {' | '.join(told)} |"


def main() -> None:
    """Run from the command line."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()] if FILE.exists() else []
    if sys.argv[1:2] == ["run"]:
        done = {(run["data"], run["rows"], run["draw"]) for run in kept}
        with FILE.open("a", encoding="utf-8") as lines:
            for run in (run for name in DATA for run in runs(name, range(int(sys.argv[2])), done)):
                kept.append(run)
                print(json.dumps(run), file=lines, flush=True)
    for title, looked_at in (("The draws that were looked at", True), ("Other draws", False)):
        print(f"{title}:\n", *table([run for run in kept if (run["draw"] in LOOKED_AT) is looked_at]), "", sep="\n")


if __name__ == "__main__":
    main()
