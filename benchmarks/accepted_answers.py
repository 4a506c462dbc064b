"""Which answers to trust: does the promise of ``--accept 0.95`` hold, and what finds texts of no class?

For an entry of docs/experiments.md. Needs ``ATTENDROP_DATA``. The first two commands run it, minutes of a core for
linear models, a minute or two for each fine-tuned one, resumable; the third prints the tables:
    python benchmarks/accepted_answers.py linear
    python benchmarks/accepted_answers.py fine-tuned
    python benchmarks/accepted_answers.py

A draw has some training rows of each class. Thresholds are chosen on 500 other rows of the training file, held out; or
for HWU64, on five folds of the training rows, with the strength ``C`` of the final linear model or one of each fold's.
Of no class are the test rows of a quarter of the classes, which are left out of training.
"""

import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from alike_rows import write
from kept import kept_runs
from label_names_linear import Encoder
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from unlabelled_linear import Rows, rows_of

from attendrop.runs.config import RunConfig
from attendrop.runs.inference import load_run
from attendrop.runs.train import train
from attendrop.tasks.error_analysis import choose_threshold, confidences
from attendrop.tasks.types.linear_models import fit_logistic_regression

FILE = Path(__file__).parents[1] / "results" / "accepted_answers" / "runs.jsonl"
WANTED = 0.95
# What is measured: the part, the kind of model, the data, training rows a class, and the number of draws.
CELLS = [
    *(("unknown", "linear", data, shots, 10) for data in ("hwu64", "banking77") for shots in (5, 10)),
    *(("promise", "linear", data, shots, 20) for data in ("hwu64", "banking77") for shots in (5, 10)),
    ("promise", "fine-tuned", "hwu64", 5, 20),
    *(("unknown", "fine-tuned", data, 5, 2) for data in ("hwu64", "banking77")),
]
KEY = ["part", "kind", "data", "shots"]
Logits = Callable[[Rows], np.ndarray]


def fitted(run: dict[str, Any], encoder: Encoder, rows: Rows, names: list[str]) -> tuple[Encoder, Logits, Any]:
    """Fit a linear model, or fine-tune: the encoder, what computes logits of rows, and the strength of the former."""
    texts, labels = zip(*rows, strict=True)
    if run["kind"] == "linear":
        fit = fit_logistic_regression(encoder(texts), [names.index(label) for label in labels], len(names))
        return encoder, lambda rows: fit.outputs(encoder([text for text, _ in rows])), fit.settings["C"]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "train.csv"
        write(file, [("text", "label"), *rows])
        config = RunConfig(
            model="minilm", train_file=str(file), text_columns=["text"], label_column="label", label_type="class",
            label_names="none", method="finetune", seed=run["draw"], selection_fraction=0.0, output_dir=f"{place}/run",
        )  # fmt: skip
        train(config)
        model, tuned = load_run(config.output_dir), Encoder("minilm")
    tuned.model = model.model.base_model.cpu().eval()

    def logits(rows: Rows) -> np.ndarray:
        found = model.predict_texts([text for text, _ in rows], probabilities=True)
        return np.log([[row[f"probability_{name}"] + 1e-7 for name in names] for row in found])

    return tuned, logits, None


def promise(run: dict[str, Any], encoder: Encoder, rows: Rows, names: list[str], others: Rows, test: Rows) -> Any:
    """Choose thresholds, and measure which share of the test rows they accept, and the accuracy of these answers."""
    labels, held, right = (np.array([names.index(label) for _, label in each]) for each in (rows, others[:500], test))
    _, logits, strength = fitted(run, encoder, rows, names)
    chosen_on, outputs, measured = {"held-out": (logits(others[:500]), held)}, logits(test), {}
    folds = {"folds, same C": strength, "folds, own C": None}
    for name, of_fold in folds.items() if (run["kind"], run["data"]) == ("linear", "hwu64") else ():
        features, found = encoder([text for text, _ in rows]), np.zeros((len(rows), len(names)))
        for own, left in StratifiedKFold(5, shuffle=True, random_state=run["draw"]).split(rows, labels):
            fold = fit_logistic_regression(features[own], labels[own].tolist(), len(names), strength=of_fold)
            found[left] = fold.outputs(features[left])
        chosen_on[name] = found, labels
    for name, chosen in chosen_on.items():
        threshold = choose_threshold(*chosen, WANTED)["threshold"]
        accepted = confidences(outputs) >= (np.inf if threshold is None else threshold)
        accuracy = float((outputs.argmax(1) == right)[accepted].mean()) if accepted.any() else None
        measured[name] = {"threshold": threshold, "accepted": float(accepted.mean()), "accuracy": accuracy}
    return {"of_all": float((outputs.argmax(1) == right).mean()), "found": measured}


def unknown(run: dict[str, Any], encoder: Encoder, rows: Rows, names: list[str], _: Rows, test: Rows) -> Any:
    """Measure how well scores tell test rows of ``names`` from others, and right answers from others: two AUROC."""
    labels = np.array([names.index(label) for _, label in rows])
    encoder, logits, _ = fitted(run, encoder, rows, names)
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


def tables(runs: pd.DataFrame) -> None:
    """Print both tables."""
    each = [
        {**run, "of": name, "found": found} for run in runs.to_dict("records") for name, found in run["found"].items()
    ]
    promises, aurocs = (pd.DataFrame([run for run in each if run["part"] == part]) for part in ("promise", "unknown"))
    promises = promises.join(pd.DataFrame(promises.pop("found").tolist()).astype(float))
    of_draws = promises.groupby([*KEY[1:], "of"], sort=False)
    kept = of_draws["accuracy"].agg(lambda each: f"{(~(each < WANTED)).sum()} of {len(each)}").rename("kept")
    none = of_draws["accuracy"].agg(lambda each: each.isna().sum()).rename("none accepted")
    print(pd.concat([kept, none, of_draws[["of_all", "accepted", "accuracy"]].mean().round(3)], axis=1).to_string())
    aurocs[["known", "right"]] = aurocs.pop("found").tolist()
    of_draws = aurocs.groupby([*KEY[1:], "of"], sort=False)[["known", "right"]]
    print(pd.concat([of_draws.mean(), of_draws.std().add_suffix(", std")], axis=1).round(3).to_string())


def main() -> None:
    """Run from the command line."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    kept = kept_runs(FILE)
    done, encoder = {tuple(run[name] for name in (*KEY, "draw")) for run in kept}, Encoder("minilm")
    wanted = [(*key, draw) for *key, draws in CELLS if key[1] in sys.argv[1:] for draw in range(draws)]
    for part, kind, data, shots, draw in (each for each in wanted if each not in done):
        train_rows, test = rows_of(data, draw)
        random.Random(f"{data} {draw}").shuffle(train_rows)
        names = sorted({label for _, label in train_rows})
        if part == "unknown":
            out = random.Random(f"out {data} {draw}").sample(names, len(names) // 4)
            names = [name for name in names if name not in out]
        rows = [row for name in names for row in [row for row in train_rows if row[1] == name][:shots]]
        others, measure = [row for row in train_rows if row not in rows], {"promise": promise, "unknown": unknown}[part]
        run = {"part": part, "kind": kind, "data": data, "shots": shots, "draw": draw}
        kept.append(run | measure(run, encoder, rows, names, others, test))
        with FILE.open("a", encoding="utf-8") as lines:
            print(json.dumps(kept[-1]), file=lines)
    tables(pd.DataFrame(kept))


if __name__ == "__main__":
    main()
