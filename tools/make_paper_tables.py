"""Write docs/paper_tables.md: what the papers report, the recipe of each table and figure, and what was measured here.

``make docs`` writes the page, ``--check`` only compares. What was measured is in ``results/RECIPE``, where
``benchmarks/keep_results.py`` puts it.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from attendrop.reports.tables import score_scale
from attendrop.studies.study import Study, read_study

DOCS = Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent
RECIPES, RESULTS = ROOT / "recipes", ROOT / "results"
PAGE, DATA = DOCS / "paper_tables.md", DOCS / "paper_tables.yaml"

_HEAD = """\
# The papers' tables and figures

Written by `make docs` from `docs/paper_tables.yaml`, the recipes and `results/`; `make lint` checks that it is up to
date.

For each table and figure of the papers: its recipe ([recipes/](../recipes/README.md)), what the paper reports, and what
was measured here. **A twin is not a reproduction**: it has another model, minilm, few training rows and few steps, so
that it runs on two cores. Its scores are in separate tables, and cannot be compared with the paper's. With few seeds,
and intervals that are not corrected for the number of methods and data sets, they do not rank methods.

The papers' figures are quoted, not measured here. "?" marks a cell that is illegible in the text from which they were
taken.

| paper | item | recipe | measured here | twin |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the current content of the page."""
    os.environ.setdefault("ATTENDROP_DATA", ".")  # named by recipes; nothing is read from it
    papers = yaml.load(DATA.read_text(encoding="utf-8"), yaml.BaseLoader)  # numbers as they are written
    text = _HEAD
    for paper in papers:
        for found in paper["items"]:
            full, twin = found["recipe"], f"small/{found['recipe']}"
            state = "yes" if _answer(full) else f"not run: needs {found['needs']}"
            text += f"| {paper['paper']} | {found['item']} | {_link(full)} | {state} | {_link(twin)}: "
            text += f"{'run' if _answer(twin) else 'not run'} |\n"
    for paper in papers:
        text += f"\n## {paper['paper']}\n\n{paper['source']}.\n"
        text += "".join(_item(found) for found in paper["items"])
    return text


def _item(found: dict[str, Any]) -> str:
    rows = [[name, *values] for name, values in found["rows"].items()]
    parts = [
        f"\n### {found['item']}\n\n{_sentence(found['about'])} In the paper:\n",
        _table(["", *found["columns"]], rows),
    ]
    if note := found.get("note"):
        parts.append(f"{_sentence(note)}\n")
    parts.append(_measured(found, found["recipe"], f"Not run: needs {found['needs']}.", kind="Recipe"))
    if missing := found.get("missing"):
        parts.append(f"Not in the recipe, not run: {missing}.\n")
    parts.append(_measured(found, f"small/{found['recipe']}", "Not run.", kind="Twin"))
    return "\n".join(parts)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _measured(found: dict[str, Any], recipe: str, otherwise: str, *, kind: str) -> str:
    """Describe a recipe, with the table of its results if there are any."""
    study = read_study(str(RECIPES / f"{recipe}.yaml"))
    text = f"{kind} {_link(recipe)}: {_size(study)}."
    answers = _answer(recipe)
    if answers is None:
        return f"{text} {otherwise}\n"
    table = _answers(answers["settings"], cost=found.get("cost", False))
    failed = f"\n{len(answers['failed'])} runs failed.\n" if answers["failed"] else ""
    return f"{text} {_machine(recipe)}\n\n{table}{failed}"


def _answers(settings: dict[str, Any], *, cost: bool) -> str:
    """Make a table of methods and settings: mean ± standard deviation, and the difference with its interval."""
    labels = dict.fromkeys(row["label"] for answer in settings.values() for row in answer["methods"])
    cells = {(row["label"], name): row for name, answer in settings.items() for row in answer["methods"]}
    header = ["", *(f"{name}, {answer['metric'].replace('_', ' ')}" for name, answer in settings.items())]
    rows = [
        [
            label,
            *(
                _cell(cells[label, name], scale=score_scale(answer["metric"]), cost=cost)
                if (label, name) in cells
                else ""
                for name, answer in settings.items()
            ),
        ]
        for label in labels
    ]
    return _table(header, rows)


def _cell(row: dict[str, Any], *, scale: float, cost: bool) -> str:
    text = f"{scale * row['mean']:.1f}" + ("" if row["std"] is None else f" ± {scale * row['std']:.1f}")
    text += "*" * row["selected_on_reported"]
    known = row["difference_low"] is not None
    ends = [row[f"{'difference' if known else 'these_rows'}_{end}"] for end in ("low", "high")]
    if None not in ends:
        value, low, high = (f"{scale * each:+.1f}" for each in (row["difference"], *ends))
        text += f" ({value} [{low}, {high}]{'' if known else '°'})"
    return f"{text}, ×{row['time_ratio']:.2f}" if cost and row["time_ratio"] is not None else text


def _size(study: Study) -> str:
    """Say in words how large a study is."""
    configs = [spec.config for spec in study.specs]
    rows = sorted({config.max_train_samples for config in configs if config.max_train_samples})
    shots = sorted({config.shots for config in configs if config.shots})
    steps = sorted({config.max_steps for config in configs if config.max_steps})
    seeds = len({config.seed for config in configs})
    parts = [
        f"{len(configs)} runs",
        ", ".join(sorted({config.model for config in configs})),
        f"{_numbers(rows)} training rows" if rows else "",
        f"{_numbers(shots)} rows of each class" if shots else "",
        f"{_numbers(steps)} steps" if steps else "",
        f"{seeds} seeds" if seeds > 1 else "one seed",
    ]
    return ", ".join(part for part in parts if part)


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def _machine(recipe: str) -> str:
    facts = json.loads((RESULTS / recipe / "machine.json").read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {facts[name]}" for name in ("attendrop", "torch", "transformers"))
    return (
        "Percent, mean ± standard deviation over seeds; in parentheses the difference from the reference, paired by "
        "seed, with its 95 % CI (seeds × examples), or (°) seeds only, if runs kept no scores by row; * a model was "
        "chosen on the rows on which it is scored. "
        f"{facts['processor']}; {versions}; {facts['date']}."
    )


def _answer(recipe: str) -> dict[str, Any] | None:
    path = RESULTS / recipe / "answer.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _link(recipe: str) -> str:
    return f"[{recipe}](../recipes/{recipe}.yaml)"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Write the page, or compare it."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/paper_tables.md is not up to date; run `make docs`.")


if __name__ == "__main__":
    main()
