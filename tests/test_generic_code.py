"""Generic code names no method: what a method knows stands in its file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attendrop
from attendrop.methods.core.registry import get_method, method_names

SOURCE = Path(attendrop.__file__).parent
# One method's own commands; the demonstration, which compares two methods; the lists of public names.
OWN = {
    "cli/patterns.py",
    "reports/learned_patterns.py",
    "cli/demo.py",
}
OWN |= {"__init__.py", "extend.py"}
# The baseline is no method among others, and what torch calls a scheduler is not ours.
ORDINARY = {"finetune", "FineTune", "scheduler", "Scheduler"}
NAMES = {word for name in method_names() for word in (name, get_method(name).__name__)} - ORDINARY
NAMED = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(NAMES)))})(?![\w-])")
# Where a name may stand: the default method, and how a combination is written.
ALLOWED = {("runs/config.py", "ad-drop"), ("cli/listings.py", "ad-drop"), ("cli/listings.py", "r-drop")}


def generic() -> list[str]:
    """The files of the package that are of no single method."""
    files = (path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
    return sorted(file for file in files if not file.startswith("methods/") and file not in OWN)


def words(tree: ast.AST) -> Iterator[str]:
    """All that a file names or says, but for the examples in docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield re.sub(r"(?m)^ *(>>>|\.\.\.).*$|``[^`]*\(.*?``", "", text)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name


def test_generic_code_names_no_method() -> None:
    found = {
        (file, name)
        for file in generic()
        for text in words(ast.parse((SOURCE / file).read_text(encoding="utf-8")))
        for name in NAMED.findall(text)
    }
    assert found == ALLOWED
