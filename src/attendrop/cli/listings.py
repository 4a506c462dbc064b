"""`attendrop methods`, `attendrop tasks` and `attendrop doctor`: what there is, and what a model supports."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from attendrop.cli.app import Json, app, show
from attendrop.cli.console import lines_of, messages
from attendrop.cli.run_options import path_argument
from attendrop.wording import aligned, counted

if TYPE_CHECKING:
    from attendrop.methods.core.base import Method

_MOST_LISTED = 12  # of the classes of a task


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain it, or each of a+b: options and source.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, which may be combined (ad-drop+r-drop), or explain one."""
    from attendrop.methods.core.options import described
    from attendrop.methods.core.registry import build_method, get_method, method_names

    names = method_names() if name is None else [part.strip() for part in name.split("+")]
    classes = [get_method(each) for each in names]
    if name is not None and len(classes) > 1:
        build_method(name)  # raises if they cannot be combined
    found, table = [], Table(Column("method", no_wrap=True), "what it does", Column("source", no_wrap=True))
    for each in classes:
        m = each.info
        about = {"name": m.name, "summary": m.summary, "acts_on": list(m.acts_on), "paper": m.paper}
        found.append(about | {"evidence": m.measured(), "options": described(each)})
        authors, year, _ = m.paper.partition(")")  # without the title, which `methods NAME` has
        table.add_row(m.name, m.summary, authors + year)
    show(found, table if name is None else "\n\n".join(map(_explanation, classes)), as_json=as_json)


def _explanation(method: type[Method]) -> str:
    """Format a method's documentation, with its options in a table."""
    from attendrop.methods.core.options import described

    rows = [["option", "type", "default", "range"]]
    for name, found in described(method).items():
        kind = "list" if "Sequence" in found["type"] else found["type"]
        rows.append([name, kind, _default(found["default"]), found["range"]])
    options = "\n".join(aligned(rows)) if len(rows) > 1 else "No options."
    info = method.info
    measured = f"{info.measured()}\n\n" if info.evidence else ""
    return f"{info.name}: {info.summary}\n\n{measured}{options}\n\n{inspect.cleandoc(method.__doc__ or '')}"


def _default(default: object) -> str:
    """Format a default as it is written on the command line."""
    match default:
        case bool():
            return str(default).lower()
        case "":
            return "''"
        case tuple() if any(isinstance(item, tuple) for item in default):
            return ";".join(_default(item) for item in default)
        case tuple():
            return ",".join(map(str, default))
        case _:
            return str(default)


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the named tasks, and the kinds of tasks for files of your own, with their labels and metrics."""
    from attendrop.tasks.custom_files import files_task
    from attendrop.tasks.registry import get_task, task_names
    from attendrop.tasks.types.registry import TASK_TYPES

    found = [get_task(name) for name in task_names()]
    for each in TASK_TYPES:
        of_files = f"{each.kind}, of your own --train-file"
        found.append(dataclasses.replace(files_task((), each()), name=each.label_type, description=of_files))
    table = Table("task", "what it asks", "labels", "metric")
    for task in found:
        metrics = "\n".join((task.metric, *task.other_metrics)).replace("_", " ")
        names = task.type.label_names
        answers = names if 0 < len(names) <= _MOST_LISTED else [task.type.predicts]
        answers = answers if task.text_columns else ["as in your files"]
        table.add_row(task.name, task.description, "\n".join(answers), metrics)
    show([dataclasses.asdict(task) for task in found], table, as_json=as_json)


@app.command()
def doctor(
    model: Annotated[str, path_argument("minilm, a folder, or a hub id; weights are not loaded.")],
    as_json: Json = False,
) -> None:
    """Check whether a model is supported, and list its attention layers."""
    from attendrop.cli.model_report import examine

    with messages(quiet=True):
        found = examine(model)
    untrainable = "not by `attendrop train`: it has no classification head"
    lines = {
        "model": f"{model} ({found['architecture']})",
        "supported": "yes" if found["supported"] else f"no: {found['reason']}",
        "to train": "`attendrop train` can" if found["trainable"] else untrainable,
    }
    for kind in dict.fromkeys(layer["kind"] for layer in found["sites"]):
        names = [layer["name"] for layer in found["sites"] if layer["kind"] == kind]
        lines[f"{kind} attention"] = f"{counted(len(names), 'layer')}: {_ends(names)}"
    if names := found["not_run"]:
        lines["not tried"] = f"{counted(len(names), 'layer')}, which the example input does not reach: {_ends(names)}"
    show(found, lines_of(lines), as_json=as_json)
    raise typer.Exit(0 if found["supported"] else 2)


def _ends(names: list[str]) -> str:
    """Return the first and the last of some names, or the only one."""
    return " ... ".join(dict.fromkeys((names[0], names[-1])))
