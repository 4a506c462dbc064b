"""Does the screening of encoders choose the better one? For the entry of 2026-11-28 in docs/experiments.md.

Needs ``ATTENDROP_DATA``, and the folder of a second encoder, such as all-mpnet-base-v2. The first command runs it, an
hour on a core, resumable, the second prints the table:
    python benchmarks/encoder_screening.py run minilm FOLDER
    python benchmarks/encoder_screening.py

Each draw of training rows is screened as ``compare --models`` does. The truth is the score of the linear model of all
these rows on 200 rows of the test file, the same for all draws, except of messages, which are generated for each.
Data sets are in the order of their cost.
"""

import json
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from alike_rows import write
from kept import by_row, difference, kept_runs

from attendrop.cli.demo import generate_messages
from attendrop.runs.config import RunConfig
from attendrop.runs.data import divide, load_data
from attendrop.runs.inference import frozen_features
from attendrop.runs.model_loading import load_for
from attendrop.studies.screening import cross_validated
from attendrop.studies.statistics import ALPHA
from attendrop.tasks.base import encode
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.splits import groups_of, subset
from attendrop.tasks.tokenization import columns_of

FILE = Path(__file__).parents[1] / "results" / "does_it_help" / "8_encoders" / "screening.jsonl"
DRAWS, TEST_ROWS = range(3), 200
CSV: dict[str, Any] = {"train_file": "{data}/{name}/train.csv", "eval_file": "{data}/{name}/test.csv"}
# Options of the data, and of the training rows of each size.
SETS: dict[str, tuple[dict[str, Any], dict[str, dict[str, int]]]] = {
    "cola": ({"task": "cola"}, {"256 rows": {"max_train_samples": 256}}),
    "messages": (CSV | {"label_column": "label"}, {"5 a class": {"shots": 5}}),
    "hwu64": (CSV | {"label_column": "intent"}, {"5 a class": {"shots": 5}, "10 a class": {"shots": 10}}),
    "banking77": (CSV | {"label_column": "category"}, {"5 a class": {"shots": 5}, "10 a class": {"shots": 10}}),
    "mrpc": ({"task": "mrpc"}, {"256 rows": {"max_train_samples": 256}}),
    "imdb": ({name: place.replace("csv", "jsonl") for name, place in CSV.items()} | {"label_column": "label"},
             {"256 rows": {"max_train_samples": 256}}),
}  # fmt: skip


class Features:
    """Features of rows by a frozen encoder, as the screening computes them, of each text once."""

    def __init__(self, model: str, task: Any) -> None:
        self.task, self.known = task, dict[tuple[str, ...], np.ndarray]()
        self.model, self.tokenizer = load_for(model, task)[:2]

    def __call__(self, rows: Any) -> tuple[np.ndarray, Any]:
        """Return the features, ``(rows, hidden)``, and the encoded columns."""
        texts = self.task.type.texts(rows)
        encoded = encode(rows, self.task, self.tokenizer, 128)
        first = {text: row for row, text in enumerate(texts) if text not in self.known}
        if first:
            new = encoded.select(list(first.values()))[:]
            found = frozen_features(self.model, self.tokenizer, self.task.type, new, 64, "cpu")
            self.known.update(zip(first, found, strict=True))
        return np.stack([self.known[text] for text in texts]), columns_of(encoded)


def config_of(name: str, size: str = "", draw: int = 0) -> RunConfig:
    """Return the options of a data set, with all of its training rows or a draw of a size; messages are written."""
    place = Path(os.environ["ATTENDROP_DATA"])
    if name == "messages" and not (place := FILE.parents[3] / "build" / "screening" / str(draw)).exists():
        for part, rows in zip(("train", "test"), generate_messages(draw + 1, test_rows=105), strict=True):
            write(place / name / f"{part}.csv", [("text", "label"), *rows])
    data, sizes = SETS[name]
    given = {key: value.format(data=place, name=name) for key, value in data.items()} | sizes.get(size, {})
    given |= {} if "task" in given else {"text_columns": ("text",)}
    return RunConfig(model="minilm", output_dir="", method="finetune", seed=draw, **given)


def screened(name: str, size: str, draw: int, models: list[str], features: dict[Any, Features]) -> dict[str, Any]:
    """Screen the encoders on one draw, and score all of them on the test rows."""
    config = config_of(name, size, draw)
    loaded = load_data(config)
    task, parts, rows = loaded.task, divide(config, loaded), {}
    test = parts.report["dev"]
    test = subset(test, min(len(test), TEST_ROWS), 0)
    groups, found = np.array(groups_of(parts.real.train, task)), dict[str, Any]()
    for model in models:
        if (name, model) not in features:
            features[name, model] = Features(model, task)
        of = features[name, model]
        own, encoded = of(parts.train)
        rows[model] = cross_validated(model, task, parts.real.train, own, encoded, groups, balanced=False)
        fit = task.type.fit_linear(own, list(encoded["labels"]), balanced=False)
        there, columns_there = of(test)
        scores = compute_scores(task, fit.outputs(there), task.type.references(columns_there))
        size_of = sum(each.numel() for each in of.model.base_model.parameters())
        found[Path(model).name] = {"cv": rows[model].mean, "test": scores[task.metric], "parameters": size_of}
    best, other = sorted(models, key=lambda model: -rows[model].mean)
    lead = rows[best].versus(rows[other]).mean
    # As the screening chooses: the best, unless the other one is smaller and not shown to be behind it.
    smaller = found[Path(other).name]["parameters"] < found[Path(best).name]["parameters"]
    chosen = other if smaller and rows[best].versus(rows[other]).p_value > ALPHA else best
    run = {"data": name, "size": size, "draw": draw, "test_rows": len(test), "best": Path(best).name}
    run |= {"chosen": Path(chosen).name, "lead": lead.value, "low": lead.low, "high": lead.high}
    return run | {"encoders": found}


def table(runs: list[dict[str, Any]]) -> str:
    """Make the table: how often the choice is right, and what it loses."""
    rows = []
    for run in runs:
        small, large = sorted(run["encoders"], key=lambda model: run["encoders"][model]["parameters"])
        test = {model: run["encoders"][model]["test"] for model in (small, large)}
        lead = test[run["best"]] - test[small if run["best"] == large else large]
        loss, covered = max(test.values()) - test[run["chosen"]], run["low"] <= lead <= run["high"]
        cells = (test[large] - test[small], run["chosen"] == large, loss == 0, loss, covered)
        rows += [(name, 1, *cells) for name in (f"{run['data']}, {run['size']}", "all")]
    columns = ["data", "draws", "larger minus smaller", "larger chosen", "better chosen", "loss", "lead covered"]
    groups = pd.DataFrame(rows, columns=columns).groupby("data", sort=False)
    return groups.mean().assign(draws=groups["draws"].sum()).round(3).to_string()


def after_fine_tuning() -> Iterator[str]:
    """Yield a table of both encoders on the same draws of step 6: five rows a class, with names of classes."""
    kept = [kept_runs(FILE.parents[1] / name / "runs.jsonl") for name in ("6_label_names_mpnet", "6_label_names")]
    yield "| data | method | draws | all-mpnet-base-v2 | MiniLM | difference |"
    yield "|---|---|---:|---:|---:|---:|"
    for data, method in product(("banking77", "hwu64"), ("finetune", "ad-drop")):
        found = [
            {run["seed"]: run["row_scores"] for run in runs if run["method"] == method
             and run["run"]["train_file"].startswith(data) and run["run"].get("shots") == 5
             and run["run"].get("label_names") == "auto" and "label_map" not in run["run"]}
            for runs in kept
        ]  # fmt: skip
        draws = sorted(found[0].keys() & found[1].keys())
        large, small = (by_row(of[draw] for draw in draws) for of in found)
        shown = difference(large, small) if len(draws) > 1 else f"{large.mean() - small.mean():+.3f}"
        yield f"| {data} | {method} | {len(draws)} | {large.mean():.3f} | {small.mean():.3f} | {shown} |"


def main() -> None:
    """Run from the command line."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    runs = kept_runs(FILE)
    if sys.argv[1:2] == ["run"]:
        features, done = dict[Any, Features](), {(run["data"], run["size"], run["draw"]) for run in runs}
        every = [(name, size, draw) for draw in DRAWS for name, (_, sizes) in SETS.items() for size in sizes]
        with FILE.open("a", encoding="utf-8") as lines:
            for asked in (each for each in every if each not in done):
                runs.append(screened(*asked, models=sys.argv[2:], features=features))
                print(json.dumps(runs[-1]), file=lines, flush=True)
    print(table(runs), *after_fine_tuning(), sep="\n")


if __name__ == "__main__":
    main()
