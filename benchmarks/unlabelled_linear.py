"""What texts without labels are worth to a linear model on a frozen encoder, for step 7 of docs/experiments.md.

Needs ``ATTENDROP_DATA``. The first command runs it, hours on a core, resumable, the second prints the table:
    python benchmarks/unlabelled_linear.py run [MODEL]
    python benchmarks/unlabelled_linear.py

Ten draws of the training rows, with names of the classes among them or not; 500 or 4,000 texts of the same training
file, none of them a training row, or, as the control, 4,000 of another data set. Self-training with these is scored as
it is, and as ``--unlabelled`` uses it: only where held-out rows do not lose.
"""

import csv
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from kept import by_row, difference, kept_runs
from label_names_linear import RESULTS, Encoder

from attendrop.cli.demo import generate_messages
from attendrop.tasks.class_names import in_words
from attendrop.tasks.metrics import RowScores
from attendrop.tasks.types.linear_models import fit_logistic_regression, self_trained

FILE = RESULTS.parent / "7_unlabelled" / "linear.jsonl"
DRAWS = range(10)
# Rows of a class, and the data set whose texts are the control.
DATA = {
    "banking77": ((1, 3, 5, 10), "hwu64"),
    "hwu64": ((1, 3, 5, 10), "banking77"),
    "messages": ((5,), "hwu64"),
    "imdb": ((4, 16, 64), "banking77"),
}
# Sets of unlabelled texts, by their size, or "other".
SETS = ("500", "4000", "other")
WEIGHT = 0.3  # of an unlabelled text in self-training
Rows = list[tuple[str, str]]


def rows_of(data: str, draw: int) -> tuple[Rows, Rows]:
    """Read the texts and labels to draw training rows and unlabelled texts from, and those to score on."""
    if data == "messages":  # all training messages of a draw, and others of all phrases
        train, others = generate_messages(draw + 1, test_rows=105)
        return train + others[:4000], others[4000:]
    folder = Path(os.environ["ATTENDROP_DATA"]) / data
    if data == "imdb":
        splits = [(folder / f"{name}.jsonl").open(encoding="utf-8") for name in ("train", "test")]
        train, test = ([(row["text"], row["label"]) for row in map(json.loads, lines)] for lines in splits)
        return train, test
    train, test = (
        [*csv.reader((folder / f"{name}.csv").open(encoding="utf-8", newline=""))] for name in ("train", "test")
    )
    return [(text, label) for text, label in train[1:]], [(text, label) for text, label in test[1:]]


def drawn(rows: Rows, data: str, shots: int, draw: int) -> tuple[Rows, list[str]]:
    """Draw the training rows, and 4,000 other texts, or all that there are."""
    shuffled = rows[:]
    if data != "messages":
        random.Random(f"{data} {draw}").shuffle(shuffled)
    train: Rows = []
    for label in sorted({label for _, label in rows}):
        train += [row for row in shuffled if row[1] == label][:shots]
    known = {text for text, _ in train}
    return train, [text for text, _ in shuffled if text not in known][:4000]


def runs(encoder: Encoder, data: str, draw: int, done: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield what each form has of a data set's test rows, except for those that are done."""
    shots_of, other = DATA[data]
    rows, test = rows_of(data, draw)
    names = sorted({label for _, label in rows})
    right, scored = np.array([names.index(label) for _, label in test]), encoder([text for text, _ in test])
    for shots in shots_of:
        train, own = drawn(rows, data, shots, draw)
        sets = {"500": own[:500], "4000": own, "other": drawn(rows_of(other, draw)[0], other, 1, draw)[1]}
        for named in (False, True):
            if (data, shots, draw, named) in done:
                continue
            texts = [text for text, _ in train] + [in_words(name) for name in names] * named
            labels = [names.index(label) for _, label in train] + list(range(len(names))) * named
            features = encoder(texts)
            fit = fit_logistic_regression(features, labels, len(names))
            assert fit is not None
            found = {"rows": fit}
            used = {}
            for name, unlabelled in sets.items():
                others = encoder(unlabelled)
                predicted = fit.outputs(others).argmax(axis=1)
                weights = np.repeat([1.0, WEIGHT], [len(labels), len(predicted)])
                both = np.concatenate([features, others])
                again = fit_logistic_regression(
                    both, [*labels, *predicted], len(names), strength=fit.settings["C"], weights=weights
                )
                assert again is not None
                never = [False] * len(train) + [True] * (len(labels) - len(train))
                found[f"{name}, always"] = again
                found[name], decision = self_trained(fit, features, labels, others, never_held_out=never)
                used[name] = decision["used"]
            for form, each in found.items():
                hits = RowScores(each.outputs(scored).argmax(axis=1) == right, len(right), data)
                key = {"data": data, "shots": shots, "draw": draw, "names": named, "form": form}
                yield key | {"used": used.get(form)} | hits.as_dict()


def table(kept: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table."""
    forms = [form for name in SETS for form in (f"{name}, always", name)]
    yield "| | rows a class | names | without texts | " + " | ".join(forms) + " |"
    yield "|---|---:|---|" + "---:|" * (len(forms) + 1)
    for data, (shots_of, _) in DATA.items():
        for shots in shots_of:
            for named in (False, True):
                cell = [run for run in kept if (run["data"], run["shots"], run["names"]) == (data, shots, named)]
                if not cell:
                    continue
                of = {form: by_row(run for run in cell if run["form"] == form) for form in ("rows", *forms)}
                shown = []
                for form in forms:
                    share = [run["used"] for run in cell if run["form"] == form and run["used"] is not None]
                    times = f" ({sum(share)} of {len(share)})" if share else ""
                    shown.append(f"{difference(of[form], of['rows'])}{times}")
                with_names = "yes" if named else "no"
                yield f"| {data} | {shots} | {with_names} | {of['rows'].mean():.3f} | " + " | ".join(shown) + " |"


def main() -> None:
    """Run from the command line."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    kept = kept_runs(FILE)
    if sys.argv[1:2] == ["run"]:
        encoder = Encoder(*(sys.argv[2:] or ["minilm"]))
        done = {(run["data"], run["shots"], run["draw"], run["names"]) for run in kept}
        with FILE.open("a", encoding="utf-8") as lines:
            for part in (("hwu64", "banking77", "messages"), ("imdb",)):  # its texts are long, and come last
                for draw, data in product(DRAWS, part):
                    for run in runs(encoder, data, draw, done):
                        print(json.dumps(run), file=lines, flush=True)
                        kept.append(run)
    print("MiniLM; differences from the model without texts, with 95 % CI (draws × rows); how often they were used\n")
    print(*table(kept), sep="\n")


if __name__ == "__main__":
    main()
