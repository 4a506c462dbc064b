"""Which answers to trust: does the promise of ``--accept 0.95`` hold, and what finds texts of no class?

For an entry of docs/experiments.md. Needs ``ATTENDROP_DATA``. The first two commands run it, minutes of a core for
linear models, a minute or two for each fine-tuned one, resumable; the third prints the tables:
    python benchmarks/accepted_answers.py linear
    python benchmarks/accepted_answers.py fine-tuned
    python benchmarks/accepted_answers.py

A draw has some training rows of each class. Thresholds are chosen on 500 other rows of the training file, held out, or
on five folds of the training rows, with the strength ``C`` of the final linear model or one of each fold's own.
Of no class are the test rows of a quarter of the classes, which are left out of training.
"""

import csv
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from label_names_linear import Encoder
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from attendrop.runs.config import RunConfig
from attendrop.runs.inference import load_run
from attendrop.runs.train import train
from attendrop.tasks.acceptance import choose_threshold, confidences
from attendrop.tasks.types.linear_models import fit_logistic_regression

FILE = Path(__file__).parents[1] / "results" / "accepted_answers" / "runs.jsonl"
WANTED = 0.95
# What is measured: the part, the kind of model, the data, training rows a class, and the number of draws.
CELLS = [
    *(("unknown", "linear", data, shots, 10) for data in ("hwu64", "banking77") for shots in (5, 10)),
    *(("promise", "linear", data, shots, 20) for data in ("hwu64", "banking77") for shots in (5, 10)),
    *(("unknown", "fine-tuned", data, 5, 2) for data in ("hwu64", "banking77")),
    ("promise", "fine-tuned", "hwu64", 5, 20),
]
KEY = ["part", "kind", "data", "shots"]
Rows = list[tuple[str, str]]
Logits = Callable[[Rows], np.ndarray]


def read(data: str, draw: int) -> tuple[Rows, Rows]:
    """Read the training rows, shuffled, and the test rows."""
    parts: list[Rows] = []
    for name in ("train.csv", "test.csv"):
        file = Path(os.environ["ATTENDROP_DATA"]) / data / name
        parts.append([(text, label) for text, label in list(csv.reader(file.open(encoding="utf-8", newline="")))[1:]])
    random.Random(f"{data} {draw}").shuffle(parts[0])
    return parts[0], parts[1]


def tuned(rows: Rows, names: list[str], draw: int) -> tuple[Encoder, Logits]:
    """Fine-tune MiniLM on rows; return it as an encoder, and what computes its logits."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "train.csv"
        with file.open("w", encoding="utf-8", newline="") as lines:
            csv.writer(lines).writerows([("text", "label"), *rows])
        config = RunConfig(
            model="minilm", train_file=str(file), text_columns=["text"], label_column="label", label_type="class",
            label_names="none", method="finetune", seed=draw, selection_fraction=0.0, output_dir=f"{place}/run",
        )  # fmt: skip
        train(config)
        run = load_run(config.output_dir)
    encoder = Encoder("minilm")
    encoder.model = run.model.base_model.cpu().eval()

    def logits(rows: Rows) -> np.ndarray:
        found = run.predict_texts([text for text, _ in rows], probabilities=True)
        return np.log([[row[f"probability_{name}"] + 1e-7 for name in names] for row in found])

    return encoder, logits


def promise(kind: str, encoder: Encoder, rows: Rows, names: list[str], others: Rows, test: Rows, draw: int) -> Any:
    """Choose thresholds, and measure which share of the test rows they accept, and the accuracy of these answers."""
    labels, held, right = (np.array([names.index(label) for _, label in each]) for each in (rows, others[:500], test))
    chosen_on = {}
    if kind == "linear":
        features = encoder([text for text, _ in rows])
        fit = fit_logistic_regression(features, labels.tolist(), len(names))
        strengths = {"folds, same C": fit.settings["C"], "folds, own C": None}
        for name, strength in strengths.items() if fit.settings["C"] != 10 else [("folds, same C", 10.0)]:
            found = np.zeros((len(rows), len(names)))
            for own, left in StratifiedKFold(5, shuffle=True, random_state=draw).split(rows, labels):
                fold = fit_logistic_regression(features[own], labels[own].tolist(), len(names), strength=strength)
                found[left] = fold.outputs(features[left])
            chosen_on[name] = found, labels
    logits = linear_logits(encoder, fit) if kind == "linear" else tuned(rows, names, draw)[1]
    outputs, measured = logits(test), {}
    for name, chosen in {"held-out": (logits(others[:500]), held), **chosen_on}.items():
        threshold = choose_threshold(*chosen, WANTED)["threshold"]
        accepted = confidences(outputs) >= (np.inf if threshold is None else threshold)
        accuracy = float((outputs.argmax(1) == right)[accepted].mean()) if accepted.any() else None
        measured[name] = {"threshold": threshold, "accepted": float(accepted.mean()), "accuracy": accuracy}
    return {"of_all": float((outputs.argmax(1) == right).mean()), "found": measured}


def unknown(kind: str, encoder: Encoder, rows: Rows, names: list[str], _: Rows, test: Rows, draw: int) -> Any:
    """Measure how well scores tell test rows of ``names`` from others, and right answers from others: two AUROC."""
    labels = np.array([names.index(label) for _, label in rows])
    if kind == "linear":
        fit = fit_logistic_regression(encoder([text for text, _ in rows]), labels.tolist(), len(names))
        logits = linear_logits(encoder, fit)
    else:
        encoder, logits = tuned(rows, names, draw)
    outputs, features, vectors = logits(test), *(encoder([text for text, _ in each]) for each in (rows, test))
    predicted = outputs.argmax(axis=1)
    known = np.array([label in names for _, label in test])
    right = np.array([names[number] == label for number, (_, label) in zip(predicted, test, strict=True)])
    means = np.stack([features[labels == number].mean(axis=0) for number in range(len(names))])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    nearest = np.where(labels == predicted[:, None], vectors @ features.T, -1).max(axis=1)
    scores = {"probability": confidences(outputs), "nearest row of the class": nearest}
    scores["mean of the class"] = (vectors * means[predicted]).sum(axis=1)
    return {"found": {name: [roc_auc_score(truth, s) for truth in (known, right)] for name, s in scores.items()}}


def linear_logits(encoder: Encoder, fit: Any) -> Logits:
    """Make what computes the logits of a linear model."""
    return lambda rows: fit.outputs(encoder([text for text, _ in rows]))


def main() -> None:
    """Run from the command line."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.touch()
    kept = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    done, encoder = {tuple(run[name] for name in (*KEY, "draw")) for run in kept}, Encoder("minilm")
    for *key, draws in CELLS:
        for draw in range(draws) if key[1] in sys.argv[1:] else ():
            if (*key, draw) in done:
                continue
            (part, kind, data, shots), (train_rows, test) = key, read(key[2], draw)
            names = sorted({label for _, label in train_rows})
            if part == "unknown":
                out = random.Random(f"out {data} {draw}").sample(names, len(names) // 4)
                names = [name for name in names if name not in out]
            rows = [row for name in names for row in [row for row in train_rows if row[1] == name][:shots]]
            drawn = set(rows)
            others = [row for row in train_rows if row not in drawn]
            measure = {"promise": promise, "unknown": unknown}[part]
            run = dict(zip(KEY, key, strict=True)) | {"draw": draw}
            run |= measure(kind, encoder, rows, names, others, test, draw)
            kept.append(run)
            with FILE.open("a", encoding="utf-8") as lines:
                print(json.dumps(run), file=lines)
    tables(pd.DataFrame(kept))


def tables(runs: pd.DataFrame) -> None:
    """Print both tables."""
    promises = [
        {**run, "chosen on": name, **found} for run in runs[runs["part"] == "promise"].to_dict("records")
        for name, found in ({"folds, own C": run["found"].get("folds, same C")} | run["found"]).items() if found
    ]  # fmt: skip
    of_draws = pd.DataFrame(promises).astype({"accuracy": float}).groupby([*KEY[1:], "chosen on"], sort=False)
    kept = of_draws["accuracy"].agg(lambda each: f"{(~(each < WANTED)).sum()} of {len(each)}").rename("promise kept")
    none = of_draws["accuracy"].agg(lambda each: each.isna().sum()).rename("none accepted")
    print(pd.concat([kept, none, of_draws[["of_all", "accepted", "accuracy"]].mean().round(3)], axis=1).to_string())
    aurocs = [
        {**run, "score": name, "known": found[0], "right": found[1]}
        for run in runs[runs["part"] == "unknown"].to_dict("records") for name, found in run["found"].items()
    ]  # fmt: skip
    of_draws = pd.DataFrame(aurocs).groupby([*KEY[1:], "score"], sort=False)[["known", "right"]]
    print(pd.concat([of_draws.mean(), of_draws.std().add_suffix(", std")], axis=1).round(3).to_string())


if __name__ == "__main__":
    main()
