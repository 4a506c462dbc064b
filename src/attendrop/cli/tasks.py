"""`attendrop tasks`."""

from __future__ import annotations

import dataclasses

from rich.table import Table

from attendrop.cli.app import Json, app, show


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the tasks with their labels and metrics."""
    from attendrop.tasks.registry import get_task, task_names

    found = [dataclasses.asdict(get_task(name)) for name in task_names()]
    table = Table("task", "what it asks", "labels", "metric")
    for row in found:
        metrics = "\n".join((row["metric"], *row["other_metrics"])).replace("_", " ")
        table.add_row(row["name"], row["description"], "\n".join(row["label_names"]) or "a number", metrics)
    show(found, table, as_json=as_json)
