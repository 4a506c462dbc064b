"""Write docs/options.md from the declaration of the options of a run: ``make docs``; ``--check`` only compares."""

import ast
import inspect
import re
from pathlib import Path

from generated import write_or_check

from attendrop.runs.config import RunConfig, declared

PAGE = Path(__file__).parents[1] / "docs/options.md"
HEAD = """\
# Options of a run

Written by `make docs` from the fields of `attendrop.runs.config.RunConfig`; CI checks that it is up to date.

The names are those of keywords of `RunConfig`, of `attendrop.compare`, of `run.yaml` and of study files. On the command
line they have dashes, or the flag given here. `attendrop train --help` lists all options of the command.

| option | default | allowed | what it does |
|---|---|---|---|
"""


def details() -> dict[str, str]:
    """Return the docstrings below the fields, on one line each, by the name of the field."""
    (declared,) = ast.parse(inspect.getsource(RunConfig)).body
    assert isinstance(declared, ast.ClassDef)
    found = {}
    for field, text in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = re.sub(r":\w+:`", "`", " ".join(str(text.value.value).split()).replace("``", "`"))
    return found


def page() -> str:
    """Return the current content of the page."""
    more, lines = details(), []
    for option, about in declared(RunConfig).items():
        name = ", ".join(f"`{each}`" for each in (option, *about["flags"]))
        text = " ".join(part for part in (about["help"], more.get(option, "")) if part)
        cells = (name, about["shown"], about["range"].text, text)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    write_or_check({PAGE: page()})
