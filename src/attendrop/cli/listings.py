"""`attendrop methods`, `attendrop tasks` and `attendrop doctor`: what there is, and what a model supports."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated

import typer
from rich.table import Column, Table

from attendrop.cli import app as ui
from attendrop.wording import aligned, counted


@ui.register
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain it, or each of a+b: options and source.")] = None,
    as_json: ui.Json = False,
) -> None:
    """List the methods, which may be combined (ad-drop+r-drop), or explain one."""
    from attendrop.methods.core.options import described
    from attendrop.methods.core.registry import build_method, get_method, method_names

    names = method_names() if name is None else [part.strip() for part in name.split("+")]
    classes = [get_method(each) for each in names]
    if name is not None and len(classes) > 1:
        build_method(name)  # raises if they cannot be combined
    table = Table(Column("method", no_wrap=True), "what it does", Column("source", no_wrap=True))
    found, explained = [], []
    for each in classes:
        m, options = each.info, described(each)
        about = {"name": m.name, "summary": m.summary, "acts_on": list(m.acts_on), "paper": m.paper}
        found.append(about | {"evidence": m.measured(), "options": options})
        authors, year, _ = m.paper.partition(")")  # without the title, which `methods NAME` has
        table.add_row(m.name, m.summary, authors + year)
        rows = [["option", "type", "default", "range"]]
        for option, about_it in options.items():
            kind = "list" if "Sequence" in about_it["type"] else about_it["type"]
            rows.append([option, kind, _default(about_it["default"]), about_it["range"]])
        listed = "\n".join(aligned(rows)) if options else "No options."
        measured = f"{m.measured()}\n\n" if m.evidence else ""
        explained.append(f"{m.name}: {m.summary}\n\n{measured}{listed}\n\n{inspect.cleandoc(each.__doc__ or '')}")
    ui.show(found, table if name is None else "\n\n".join(explained), as_json=as_json)


def _default(default: object) -> str:
    """Format a default as it is written on the command line."""
    if isinstance(default, tuple):
        separator = ";" if any(isinstance(item, tuple) for item in default) else ","
        return separator.join(map(_default, default))
    if isinstance(default, bool):
        return str(default).lower()
    return "''" if default == "" else str(default)


@ui.register
def tasks(as_json: ui.Json = False) -> None:
    """List the named tasks, and the kinds of tasks for files of your own, with their labels and metrics."""
    from attendrop.tasks.base import TASK_TYPES
    from attendrop.tasks.custom_files import files_task
    from attendrop.tasks.registry import get_task, task_names

    found = [get_task(name) for name in task_names()]
    for each in TASK_TYPES:
        of_files = f"{each.kind}, of your own --train-file"
        found.append(dataclasses.replace(files_task((), each()), name=each.label_type, description=of_files))
    table = Table("task", "what it asks", "labels", "metric")
    for task in found:
        metrics = "\n".join((task.metric, *task.other_metrics)).replace("_", " ")
        names = task.type.label_names
        few = task.type.label_type in ("class", "labels") and 0 < len(names) <= 12
        answers = names if few else [task.type.predicts]
        answers = answers if task.text_columns else ["as in your files"]
        table.add_row(task.name, task.description, "\n".join(answers), metrics)
    ui.show([dataclasses.asdict(task) for task in found], table, as_json=as_json)


@ui.register
def doctor(
    model: Annotated[str, ui.path_argument("minilm, a folder, or a hub id; weights are not loaded.")],
    as_json: ui.Json = False,
) -> None:
    """Check whether a model is supported, and list its attention layers."""
    from attendrop.runs.model_loading import examine

    with ui.messages(quiet=True):
        found = examine(model)
    untrainable = "not by `attendrop train`: transformers has no head of this family for any of its tasks"
    lines = {
        "model": f"{model} ({found['architecture']})",
        "supported": "yes" if found["supported"] else f"no: {found['reason']}",
        "to train": "`attendrop train` can" if found["trainable"] else untrainable,
    }
    listed: dict[str, list[str]] = {}
    for layer in found["sites"]:
        listed.setdefault(f"{layer['kind']} attention", []).append(layer["name"])
    for caption, names in (listed | ({"not tried": found["not_run"]} if found["not_run"] else {})).items():
        why = ", which the example input does not reach" if caption == "not tried" else ""
        ends = " ... ".join(dict.fromkeys((names[0], names[-1])))
        lines[caption] = f"{counted(len(names), 'layer')}{why}: {ends}"
    ui.show(found, ui.lines_of(lines), as_json=as_json)
    raise typer.Exit(0 if found["supported"] else 2)
