"""Write docs/paper_tables.md and docs/paper_twins.md: what the papers report, and what was measured here.

``make docs`` writes the pages, ``--check`` only compares. The twins' results are in ``results/small/RECIPE``, where
``benchmarks/keep_results.py`` puts them; the runs at full size in ``results/full/ENCODER``, from whose scores by row
the tables are computed.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

import yaml
from generated import write_or_check

from attendrop.reports.tables import score_scale
from attendrop.studies.answer import MethodRow, method_rows
from attendrop.studies.statistics import PairedDifference
from attendrop.studies.study import read_study
from attendrop.wording import counted

DOCS = Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent
RECIPES, RESULTS = ROOT / "recipes", ROOT / "results"
DATA, PAGE, TWINS = DOCS / "paper_tables.yaml", DOCS / "paper_tables.md", DOCS / "paper_twins.md"
# The encoders of the runs at full size, with their names in tables.
ENCODERS = {"minilm": "MiniLM", "mpnet": "mpnet-base"}
TASKS = ("cola", "stsb", "mrpc", "rte")
# What claims and tables call their methods, and the options that tell these from one another.
PLAIN = "plain fine-tuning"
_AD_DROP: dict[str, Any] = {"method": "ad-drop", "cross_tuning": True}
METHODS: dict[str, dict[str, Any]] = {
    PLAIN: {"method": "finetune"},
    "AD-DROP": {**_AD_DROP, "attribution": "gradient", "target": "pseudo_label"},
    "AD-DROP, recorded": {**_AD_DROP, "attribution": "recorded"},
    "random positions (RD)": {**_AD_DROP, "attribution": "random"},
    "AD-DROP, integrated gradients (IGA)": {**_AD_DROP, "attribution": "integrated_gradient"},
    "AD-DROP, attention weights (AA)": {**_AD_DROP, "attribution": "attention"},
    "AD-DROP, gold labels": {**_AD_DROP, "target": "gold_label"},
    "AD-DROP without cross-tuning": {"method": "ad-drop", "cross_tuning": False},
    "R-Drop": {"method": "r-drop"},
    "HiddenCut": {"method": "hiddencut"},
    "SuperT": {"method": "supert"},
    "Vanilla": {"method": "vanilla"},
    "LayerDrop": {"method": "layerdrop"},
    "Attn.LayerDrop": {"method": "attention-layerdrop"},
    "Scheduler": {"method": "scheduler"},
    "AttendOut": {"method": "attendout", "generator_learning_rate": 5e-5},
    "shuffled rewards": {"method": "attendout-shuffled"},
    "no learning": {"method": "attendout", "generator_learning_rate": 1e-9},
}

_HEAD = """\
# The papers' tables and figures

Written by `make docs` from `docs/paper_tables.yaml`, the recipes and `results/`; `make lint` checks that it is up to
date.

## The claims at full size

The papers' small tasks with their whole training sets, on encoders that two cores manage: MiniLM (23 M parameters) and
all-mpnet-base-v2 (110 M, the size of the papers'), by [recipes/full](../recipes/README.md). Neither is an encoder of
the papers, so what is tested is the claim, and not its figures. Unlike in the papers, nothing is chosen on the
development set: `p` and `q` are chosen among four pairs on a tenth of the training rows, with one seed, for MiniLM;
mpnet has MiniLM's. Of five epochs, the last counts. MiniLM's runs are complete, mpnet's have begun. All figures are
percent; ours of MRPC are accuracy. A claim *holds* if the 95 % interval of the difference, for other seeds and other
rows, is above zero, and is *contradicted* if it is below zero; otherwise it is *not shown*. Fewer than three seeds, as
of mpnet so far, are no finding. Intervals are not corrected for the number of claims.

"""
# AttendOut with the papers' learner, and with rewards or a generator that cannot teach anything.
LEARNING, CONTROLS = "AttendOut", ("shuffled rewards", "no learning")
_HEAD_OF_CONTROLS = """
#### What AttendOut's generator learns

AttendOut beside two controls ([study](../benchmarks/attendout_control.yaml)): its rewards shuffled, that is, drawn from
all rewards so far; and a generator whose weights hardly change, so that it drops at random at the rate at which the
others start. Percent, judged as in the first table. Movement: how far a layer's drop probability moved from the first
period to the last, in points, mean over layers, for each seed. The controls ran in float32, AttendOut in bfloat16.
"""
_OF_CHOSEN = (
    "task",
    f"{PLAIN}: gain by choosing the epoch",
    f"AD-DROP minus {PLAIN}: last epoch",
    "epoch chosen on the development set",
)
_FIGURES = """
## What the papers report

The papers' figures are quoted, not measured here. "?" marks a cell that is illegible in the text from which they were
taken. Each table and figure has a recipe ([recipes/](../recipes/README.md)) with the paper's models and settings, which
needs a GPU, and a small [twin](paper_twins.md), which ran.
"""
_HEAD_OF_TWINS = """\
# Twins of the papers' tables

Written by `make docs` from the recipes and `results/`; `make lint` checks that it is up to date.

**A twin is not a reproduction** of a [table or figure](paper_tables.md): it has another model, minilm, few training
rows and few steps, so that it runs on two cores. Its scores cannot be compared with the paper's. With few seeds, and
intervals that are not corrected for the number of methods and data sets, twins do not rank methods. Percent, mean ±
standard deviation over seeds; in parentheses the difference from the reference, paired by seed, with its 95 % CI
(seeds × examples), or (°) seeds only, if runs kept no scores by row; * a model was chosen on the rows on which it is
scored.
"""


def pages() -> dict[Path, str]:
    """Return the current content of both pages."""
    os.environ.setdefault("ATTENDROP_DATA", ".")  # named by recipes; nothing is read from it
    text, twins = _HEAD + at_full_size() + _FIGURES, _HEAD_OF_TWINS
    for paper in read_papers():
        text += f"\n### {paper['paper']}\n\n{paper['source']}.\n" + "".join(map(_item, paper["items"]))
        twins += f"\n## {paper['paper']}\n\n" + "\n".join(map(_twin, paper["items"]))
    return {PAGE: text, TWINS: twins}


def read_papers() -> list[dict[str, Any]]:
    """Read the papers' figures and claims, numbers as they are written."""
    found: list[dict[str, Any]] = yaml.load(DATA.read_text(encoding="utf-8"), yaml.BaseLoader)
    return found


# The runs at full size ------------------------------------------------------------------------------------------------


def at_full_size() -> str:
    """Make the tables of the claims, and of the runs on each encoder, from the scores that are kept."""
    measured = {name: _full_size(name) for name in ENCODERS}
    of_encoders = (_table_of_runs(name, runs) + _table_of_controls(runs) for name, runs in measured.items())
    return _claims(read_papers(), measured) + "".join(of_encoders)


def _full_size(encoder: str) -> dict[str, list[dict[str, Any]]]:
    """Read the kept runs of an encoder, by task."""
    file = RESULTS / "full" / encoder / "runs.jsonl"
    runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return {task: found for task in TASKS if (found := [run for run in runs if run["run"]["task"] == task])}


def named(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Label the runs whose method is in :data:`METHODS`."""
    return [
        {**run, "label": name}
        for run in runs
        for name, method in METHODS.items()
        if method.items() <= {"method": run["method"], **run["options"]}.items()
    ]


def compared(runs: Iterable[dict[str, Any]], reference: str) -> dict[str, MethodRow]:
    """Compare the methods that have runs of a task, by their names in :data:`METHODS`."""
    of_task = [{**run, "task": "", "data": {"rows": {}}} for run in named(runs)]
    return {row.label: row for row in method_rows(of_task, reference)}


def _claims(papers: Sequence[dict[str, Any]], measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Make the table of the papers' claims, each with the verdict on every encoder."""
    rows = []
    for paper in papers:
        for item in paper["items"]:
            for claim in item.get("claims", ()):
                before, after = (item["rows"][name] for name in claim["rows"])
                reference, method = claim["methods"]
                for column, task in claim["columns"].items():
                    place = item["columns"].index(column)
                    cells = [verdict(measured[name].get(task, []), reference, method) for name in ENCODERS]
                    says = f"{column}: {method} is ahead of {reference}"
                    rows.append([says, f"{before[place]} → {after[place]} ({paper['paper']}, {item['item']})", *cells])
    return _table(["claim", "in the paper", *ENCODERS.values()], rows)


def verdict(runs: Sequence[dict[str, Any]], reference: str, method: str) -> str:
    """Judge a claim: how far a method is ahead of another, with its interval, and from three seeds on a word."""
    rows = compared(runs, reference)
    if not rows.keys() >= {reference, method} or (found := rows[method].difference) is None:
        return "not run"
    if found.n < 3:
        return f"{_points(found)}, {counted(found.n, 'seed')} of 3"
    word = "holds" if found.mean.low > 0 else "contradicted" if found.mean.high < 0 else "not shown"
    return f"{_points(found)}, {counted(found.n, 'seed')}: *{word}*"


def _table_of_runs(encoder: str, tasks: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """Make the table of all methods on an encoder; nothing if there are no runs."""
    if not tasks:
        return ""
    found = {task: compared(runs, PLAIN) for task, runs in tasks.items()}
    rows = []
    for name in METHODS:
        if name not in CONTROLS and any(name in of_task for of_task in found.values()):
            rows.append([name, *(_cell_of_run(of_task[name]) if name in of_task else "" for of_task in found.values())])
    metrics = [f"{task}, {runs[0]['metric'].replace('_', ' ')}" for task, runs in tasks.items()]
    facts = json.loads((RESULTS / "full" / encoder / "machine.json").read_text(encoding="utf-8"))
    machines = "; ".join(f"{each['processor']}, torch {each['torch']}, {each['date']}" for each in facts)
    mixed = ", ".join(filter(None, starmap(_in_bfloat16, tasks.items())))
    chosen = {task: compared(map(with_best_epoch, runs), PLAIN) for task, runs in tasks.items()}
    of_chosen = [
        [task, f"{100 * (chosen[task][PLAIN].mean - found[task][PLAIN].mean):+.1f}", _points(last), _points(best)]
        for task in tasks
        if "AD-DROP" in found[task]
        and (last := found[task]["AD-DROP"].difference)
        and (best := chosen[task]["AD-DROP"].difference)
    ]
    return (
        f"\n### {ENCODERS[encoder]}\n\nPercent, mean ± standard deviation over seeds; in parentheses the difference "
        f"from {PLAIN} with its 95 % CI (seeds × examples). In bfloat16: {mixed or 'none'}. "
        f"{machines}.\n\n{_table(['', *metrics], rows)}\n"
        "The papers choose the epoch by its score on the development set, which is what they report. The same runs, "
        f"scored so:\n\n{_table(_OF_CHOSEN, of_chosen)}"
    )


def _table_of_controls(tasks: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """Compare AttendOut with its controls where these ran: how far it is ahead, and how far each generator moved."""
    ran = {task: runs for task, runs in tasks.items() if {run["label"] for run in named(runs)} & set(CONTROLS)}
    ahead = [[f"ahead of {name}", *(verdict(runs, name, LEARNING) for runs in ran.values())] for name in CONTROLS]
    moved = [
        [f"movement of {name}", *(_movement(runs, name) for runs in ran.values())] for name in (LEARNING, *CONTROLS)
    ]
    return f"{_HEAD_OF_CONTROLS}\n{_table(['', *ran], [*ahead, *moved])}" if ran else ""


def _movement(runs: Iterable[dict[str, Any]], method: str) -> str:
    """Say how far the drop probabilities of a method's layers moved from the first period to the last, by seed."""
    learnt = [run["learnt"]["drop_probability"] for run in named(runs) if run["label"] == method]
    moved = ([abs(last[layer] - first[layer]) for layer in first] for first, last in learnt)
    return ", ".join(f"{100 * sum(each) / len(each):.1f}" for each in moved)


def _in_bfloat16(task: str, runs: Sequence[dict[str, Any]]) -> str:
    """Name a task, with the seeds if not all of its runs were in bfloat16; empty if none was."""
    every, mixed = {run["seed"] for run in runs}, {run["seed"] for run in runs if run["run"].get("bf16")}
    return task if mixed == every else f"{task} (seed {', '.join(map(str, sorted(mixed)))})" if mixed else ""


def with_best_epoch(run: dict[str, Any]) -> dict[str, Any]:
    """Give a run the score of its best epoch on the development set, of the first of those that are equal."""
    best = max(run.get("by_epoch", ()), key=lambda epoch: epoch["scores"][run["metric"]], default=None)
    return run if best is None else run | {"score": best["scores"][run["metric"]], "row_scores": best["by_row"]}


def _cell_of_run(row: MethodRow) -> str:
    text = f"{100 * row.mean:.1f}" + ("" if row.std is None else f" ± {100 * row.std:.1f}")
    return text if row.difference is None else f"{text} ({_points(row.difference)})"


def _points(found: PairedDifference) -> str:
    """Format a difference in percentage points, with its interval unless there is one seed only."""
    low, high = found.mean.low, found.mean.high
    return f"{100 * found.mean.value:+.1f}" + (f" [{100 * low:+.1f}, {100 * high:+.1f}]" if math.isfinite(low) else "")


# The papers' figures, and the twins -----------------------------------------------------------------------------------


def _item(found: dict[str, Any]) -> str:
    recipe = found["recipe"]
    parts = [
        f"\n#### {found['item']}\n\n{_sentence(found['about'])}\n",
        _table(["", *found["columns"]], [[name, *values] for name, values in found["rows"].items()]),
    ]
    if note := found.get("note"):
        parts.append(f"{_sentence(note)}\n")
    missing = f" Not in it: {found['missing']}." if "missing" in found else ""
    needs = f"; needs {found['needs']}" if "needs" in found else ""
    parts.append(f"Recipe {_link(recipe)}: {_size(recipe)}{needs}.{missing}\n")
    return "\n".join(parts)


def _twin(found: dict[str, Any]) -> str:
    """Describe the twin of a table or figure, with the table of its results."""
    recipe = f"small/{found['recipe']}"
    answers = json.loads((RESULTS / recipe / "answer.json").read_text(encoding="utf-8"))
    facts = json.loads((RESULTS / recipe / "machine.json").read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {facts[name]}" for name in ("torch", "transformers"))
    table = _answers(answers["settings"], cost=found.get("cost", False))
    failed = f"\n{len(answers['failed'])} runs failed.\n" if answers["failed"] else ""
    title = (
        f"### {found['item']}\n\n{_link(recipe)}: {_size(recipe)}. {facts['processor']}; {versions}; {facts['date']}."
    )
    return f"{title}\n\n{table}{failed}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


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


def _size(recipe: str) -> str:
    """Say in words how large the study of a recipe is."""
    configs = [spec.config for spec in read_study(str(RECIPES / f"{recipe}.yaml")).specs]
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


def _link(recipe: str) -> str:
    return f"[{recipe}](../recipes/{recipe}.yaml)"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    write_or_check(pages())
