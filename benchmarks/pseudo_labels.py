"""What texts without labels are worth to fine-tuning, for step 7 of docs/experiments.md.

Needs ``ATTENDROP_DATA``. The first command runs it, about an hour on a core, resumable, the second prints the table:
    python benchmarks/pseudo_labels.py run
    python benchmarks/pseudo_labels.py

Plain fine-tuning of MiniLM with names of classes as rows, three draws. "Start": 4,000 texts of the same training file
as ``--unlabelled``, which the head's start reads. "Pseudo-labels": the more confident half of them, by predicted class,
are training rows, too, with the labels that this linear model predicts, for as many steps. Both minus the runs without
texts of step 6, which have the same rows.
"""

import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from alike_rows import write
from kept import by_row, difference, kept_runs
from label_names_linear import RESULTS, Encoder
from scipy.special import softmax
from unlabelled_rows import texts_of

from attendrop.runs.config import RunConfig
from attendrop.runs.train import train
from attendrop.tasks.class_names import in_words, same_text
from attendrop.tasks.types.linear_models import fit_logistic_regression, self_trained

FILE = RESULTS.parent / "7_unlabelled" / "fine_tuning.jsonl"
LABELS = {"hwu64": "intent", "banking77": "category"}
SHOTS, DRAWS, FORMS = (3, 5), range(3), ("start", "pseudo-labels")


def pseudo_labelled(rows: Sequence[tuple[str, str]], texts: Sequence[str], encoder: Encoder) -> list[tuple[str, str]]:
    """Label the texts by self-training on rows and names, and return the more confident half of each class."""
    classes = sorted({label for _, label in rows})
    every = [*rows, *((in_words(name), name) for name in classes)]
    labels, features = [classes.index(label) for _, label in every], encoder([text for text, _ in every])
    fit = fit_logistic_regression(features, labels, len(classes))
    assert fit is not None
    others, never = encoder(texts), [False] * len(rows) + [True] * len(classes)
    found, _ = self_trained(fit, features, labels, others, never_held_out=never)
    probabilities = softmax(found.outputs(others), axis=1)
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    kept: list[tuple[str, str]] = []
    for place, name in enumerate(classes):
        own = np.flatnonzero(predicted == place)
        kept += [(texts[row], name) for row in own[np.argsort(-confidence[own])][: -(-len(own) // 2)]]
    return kept


def runs(data: str, shots: int, draw: int, encoder: Encoder) -> Iterator[dict[str, Any]]:
    """Yield what both forms have of a data set's test rows."""
    source = Path(os.environ["ATTENDROP_DATA"]) / data
    with (source / "train.csv").open(encoding="utf-8", newline="") as file:
        table = [(row["text"], row[LABELS[data]]) for row in csv.DictReader(file)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        texts = texts_of(data)[:4000]
        options: dict[str, Any] = {"model": "minilm", "method": "finetune", "seed": draw, "label_type": "class"}
        options |= {"text_columns": ("text",), "label_column": LABELS[data], "eval_file": str(source / "test.csv")}
        write(place / "texts.csv", [("text",), *((text,) for text in texts)])
        start: dict[str, Any] = {"train_file": str(source / "train.csv"), "shots": shots, "label_names": "auto"}
        start["unlabelled"] = str(place / "texts.csv")
        found = train(RunConfig(output_dir=str(place / "start"), **options, **start), keep_model=False)
        yield {"form": "start", "used": found["data"]["unlabelled"]["used"], **found["row_scores"]}
        drawn = json.loads((place / "start" / "sampled_rows.json").read_text(encoding="utf-8"))["train"]
        rows = [table[row] for row in drawn]
        known = {same_text(text) for text, _ in rows}
        unknown = [text for text in dict.fromkeys(texts) if same_text(text) not in known]
        names = [(in_words(name), name) for name in sorted({label for _, label in rows})]
        labelled = pseudo_labelled(rows, unknown, encoder)
        write(place / "rows.csv", [("text", LABELS[data]), *rows, *names, *labelled])
        own: dict[str, Any] = {"train_file": str(place / "rows.csv"), "label_names": "none"}
        own["max_steps"] = found["steps"]
        again = train(RunConfig(output_dir=str(place / "own"), **options, **own), keep_model=False)
        yield {"form": "pseudo-labels", **again["row_scores"]}


def table(kept: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table."""
    without = {}
    for run in kept_runs(RESULTS / "runs.jsonl"):
        of = run["run"]
        if run["method"] == "finetune" and of.get("label_names") == "auto" and "label_map" not in of:
            without[of["train_file"].split("/")[0], of.get("shots"), run["seed"]] = run["row_scores"]
    yield "| fine-tuning, with names | rows a class | draws | without texts | " + " | ".join(FORMS) + " |"
    yield "|---|---:|---:|---:|" + "---:|" * len(FORMS)
    for data, shots in product(LABELS, SHOTS):
        shown, draws = [], sorted({run["draw"] for run in kept if (run["data"], run["shots"]) == (data, shots)})
        if not draws:
            continue
        plain = by_row(without[data, shots, draw] for draw in draws)
        for form in FORMS:
            cell = [run for run in kept if (run["data"], run["shots"], run["form"]) == (data, shots, form)]
            own = by_row(sorted(cell, key=lambda run: run["draw"]))
            shown.append(f"{own.mean():.3f}: {difference(own, plain[: len(own)])}")
        yield f"| {data} | {shots} | {len(draws)} | {plain.mean():.3f} | " + " | ".join(shown) + " |"


def main() -> None:
    """Run from the command line."""
    kept = kept_runs(FILE)
    if sys.argv[1:2] == ["run"]:
        encoder, done = Encoder("minilm"), {(run["data"], run["shots"], run["draw"]) for run in kept}
        for draw, data, shots in product(DRAWS, LABELS, SHOTS):
            if (data, shots, draw) not in done:
                key = {"data": data, "shots": shots, "draw": draw}
                found = [run | key for run in runs(data, shots, draw, encoder)]
                with FILE.open("a", encoding="utf-8") as lines:
                    lines.writelines(f"{json.dumps(run)}\n" for run in found)
                kept += found
    print(*table(kept), sep="\n")


if __name__ == "__main__":
    main()
