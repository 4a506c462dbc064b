"""What names of classes are worth to a linear model on a frozen encoder, for step 6 of docs/experiments.md.

Needs ``ATTENDROP_DATA``. The first command runs it, minutes on a core, the second prints the tables:
    python benchmarks/label_names_linear.py run [MODEL ...]
    python benchmarks/label_names_linear.py

Ten draws of ``k`` rows a class, those of ``--shots k --seed DRAW``, scored on the whole test file. The features are
those of the baseline ``frozen``. Codes as names are not here: ``auto`` adds no row for them, so that nothing differs.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kept import by_row, difference, kept_runs
from label_name_rows import DATA, deranged
from transformers import AutoModel, AutoTokenizer

from attendrop.runs.inference import unit_vectors
from attendrop.support.files import resolve_model
from attendrop.tasks.class_names import in_words
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.metrics import RowScores
from attendrop.tasks.splits import few_shot
from attendrop.tasks.types.linear_models import fit_logistic_regression

RESULTS = Path(__file__).parents[1] / "results" / "does_it_help" / "6_label_names"
ROWS, DRAWS = (1, 2, 3, 5, 7, 10, 20), range(10)
# What is fitted, by its name in the results. The last four were tried as other forms of names.
FORMS = {
    "rows": "rows alone",
    "names": "with names",
    "wrong": "with names of other classes",
    "more": "with one more row a class",
    "twice": "with names, each twice",
    "template": 'with "a message about NAME"',
    "both": "with names, and with the template",
    "question": 'with names, and with "NAME?"',
}


class Encoder:
    """A frozen encoder, which reads each text once."""

    def __init__(self, name: str) -> None:
        place = resolve_model(name)
        self.model, self.tokenizer = AutoModel.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(place)
        self.known: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Compute the unit vectors of texts, ``(texts, hidden)``."""
        new = sorted({text for text in texts if text not in self.known}, key=len)
        for start in range(0, len(new), 64):
            batch = self.tokenizer(
                new[start : start + 64], padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
            with torch.no_grad():
                hidden = self.model(**batch).last_hidden_state
            self.known.update(
                zip(new[start : start + 64], unit_vectors(hidden, batch["attention_mask"]).numpy(), strict=True)
            )
        return np.stack([self.known[text] for text in texts])


def runs(encoder: Encoder, data: str, kept: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what each form has of a data set's test rows, except for draws that are kept."""
    done = {(run["shots"], run["draw"]) for run in kept if run["data"] == data}
    folder = Path(os.environ["ATTENDROP_DATA"]) / data
    loaded = load_files(
        train_file=folder / "train.csv", eval_file=folder / "test.csv", text_columns=["text"], label_column=DATA[data],
        label_type="class",
    )  # fmt: skip
    task, train, test = loaded.task, loaded.splits["train"], loaded.splits["dev"]
    names, numbers = task.type.label_names, list(range(len(task.type.label_names)))
    words, right = [in_words(name) for name in names], np.array(test["label"])
    scored = encoder(test["text"])
    for rows in ROWS:
        for draw in DRAWS:
            if (rows, draw) in done:
                continue
            own, more = (few_shot(train, task, count, draw) for count in (rows, rows + 1))
            texts, labels = own["text"][:], own["label"][:]
            about = [f"a message about {name}" for name in words]
            question = [f"{name}?" for name in words]
            sets = {
                "rows": (texts, labels),
                "names": (texts + words, labels + numbers),
                "wrong": (texts + deranged(words, f"{data} {draw}"), labels + numbers),
                "more": (more["text"][:], more["label"][:]),
                "twice": (texts + words + words, labels + numbers + numbers),
                "template": (texts + about, labels + numbers),
                "both": (texts + words + about, labels + numbers + numbers),
                "question": (texts + words + question, labels + numbers + numbers),
            }
            for form, (read, labelled) in sets.items():
                fit = fit_logistic_regression(encoder(read), labelled, len(names))
                found = RowScores(fit.outputs(scored).argmax(axis=1) == right, len(right), data)
                yield {"data": data, "shots": rows, "draw": draw, "form": form, **found.as_dict()}


def table(kept: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of a model's results."""
    yield "| | rows a class | rows alone | " + " | ".join(list(FORMS.values())[1:]) + " |"
    yield "|---|" + "---:|" * (len(FORMS) + 1)
    for data in DATA:
        for rows in ROWS:
            cell = [each for each in kept if (each["data"], each["shots"]) == (data, rows)]
            of = {form: by_row(each for each in cell if each["form"] == form) for form in FORMS}
            cells = [f"{of['rows'].mean():.3f}", *(difference(of[form], of["rows"]) for form in list(FORMS)[1:])]
            yield f"| {data} | {rows} | " + " | ".join(cells) + " |"


def main() -> None:
    """Run from the command line."""
    models = sys.argv[2:] or ["minilm"]
    if sys.argv[1:2] == ["run"]:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for name in models:
            encoder, file = Encoder(name), RESULTS / f"linear-{Path(name).name}.jsonl"
            kept = kept_runs(file)
            with file.open("a", encoding="utf-8") as lines:
                for run in (run for data in DATA for run in runs(encoder, data, kept)):
                    print(json.dumps(run), file=lines, flush=True)
    for file in sorted(RESULTS.glob("linear-*.jsonl")):
        name = file.stem.removeprefix("linear-")
        print(f"{name}, ten draws; differences from rows alone with 95 % CI (draws × rows)\n")
        print(*table(kept_runs(file)), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
