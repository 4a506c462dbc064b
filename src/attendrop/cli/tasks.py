"""`attendrop tasks`."""

from __future__ import annotations

import dataclasses

from rich.table import Table

from attendrop.cli.app import Json, app, show


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the tasks with their labels and metrics."""
    from attendrop.tasks.registry import get_task, task_names

    found = [get_task(name) for name in task_names()]
    table = Table("task", "what it asks", "labels", "metric")
    for task in found:
        metrics = "\n".join((task.metric, *task.other_metrics)).replace("_", " ")
        table.add_row(task.name, task.description, "\n".join(task.head.answers), metrics)
    show([dataclasses.asdict(task) for task in found], table, as_json=as_json)
