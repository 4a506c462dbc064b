"""`attendrop methods`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Column, Table

from attendrop.cli.app import Json, app, show


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain it, or each of a+b: options and source.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, which may be combined (ad-drop+r-drop), or explain one."""
    from attendrop.cli.method_help import explanation
    from attendrop.methods.core.options import described
    from attendrop.methods.core.registry import build_method, get_method, method_names

    names = method_names() if name is None else [part.strip() for part in name.split("+")]
    classes = [get_method(each) for each in names]
    if name is not None and len(classes) > 1:
        build_method(name)  # raises if they cannot be combined
    facts = [(each, each.info) for each in classes]
    found = [
        {"name": m.name, "summary": m.summary, "acts_on": list(m.acts_on), "paper": m.paper}
        | {"evidence": m.evidence, "options": described(each)}
        for each, m in facts
    ]
    table = Table(Column("method", no_wrap=True), "what it does", Column("source", no_wrap=True))
    for _, m in facts:
        authors, year, _ = m.paper.partition(")")  # without the title, which `methods NAME` has
        table.add_row(m.name, m.summary, authors + year)
    show(found, table if name is None else "\n\n".join(map(explanation, classes)), as_json=as_json)
