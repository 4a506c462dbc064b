"""`attendrop methods`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from attendrop.cli.app import Json, app, show
from attendrop.wording import aligned

if TYPE_CHECKING:
    from attendrop.methods.core.base import Method


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
