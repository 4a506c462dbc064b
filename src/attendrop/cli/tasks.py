"""`attendrop tasks`."""

from __future__ import annotations

import dataclasses

from rich.table import Table

from attendrop.cli.app import Json, app, show


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the named tasks, and the kinds of tasks for files of your own, with their labels and metrics."""
    from attendrop.tasks.custom_files import files_task
    from attendrop.tasks.heads.registry import HEADS
    from attendrop.tasks.registry import get_task, task_names

    found = [get_task(name) for name in task_names()]
    for head in HEADS:
        of_files = f"{head.kind}, of your own --train-file"
        found.append(dataclasses.replace(files_task((), head()), name=head.label_type, description=of_files))
    table = Table("task", "what it asks", "labels", "metric")
    for task in found:
        metrics = "\n".join((task.metric, *task.other_metrics)).replace("_", " ")
        answers = task.head.answers if task.text_columns else ["as in your files"]
        table.add_row(task.name, task.description, "\n".join(answers), metrics)
    show([dataclasses.asdict(task) for task in found], table, as_json=as_json)
