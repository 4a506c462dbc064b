"""Names and options of the library's methods as their source declares them, checked without importing PyTorch.

Methods import PyTorch, which takes seconds, and the error for a mistyped option should come sooner. What cannot be read
here, such as a method of another package or a rule between two options, is checked when the method is created.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import attendrop
from attendrop.errors import AttendropError, suggestion
from attendrop.methods.core import options as declarations
from attendrop.methods.core.options import Range, build_from_options, check_options, option, split_options

_SOURCE = Path(attendrop.__file__).parent


def check_declared(name: str, options: Mapping[str, Any]) -> None:
    """Check the name of a method, or several joined by ``+``, and its options, as far as they are declared.

    Raises:
        AttendropError: As for :func:`attendrop.methods.core.registry.build_method`.
    """
    own = {name for name, module in _entry_points() if module.startswith("attendrop_methods")}
    known, parts = (*_declared(), *own), [part.strip() for part in name.split("+")]
    unknown = next((part for part in parts if part not in known), None)
    if unknown is not None:
        # A program that has loaded the methods may have added its own, and another package may have some.
        if "attendrop.methods.core.registry" in sys.modules or {name for name, _ in _entry_points()} - own:
            return
        raise AttendropError(f"There is no method '{unknown}'.{suggestion(unknown, known)}")
    for part, given in split_options(name, parts, options).items():
        if part not in _declared():  # of the second package
            continue
        try:
            build_from_options(_stand_in(part), part, given)
        except NameError:  # a check that uses what its module imports
            continue


@cache
def _entry_points() -> list[tuple[str, str]]:
    """Return the names and modules of the methods of installed packages, the second package of this one among them."""
    return [(point.name, point.module) for point in entry_points(group="attendrop.methods")]


@cache
def _declared() -> dict[str, tuple[str, str]]:
    """Return the module and the class of each method of the library, by name."""
    return {
        _name(_class(node.module, alias.name)): (node.module, alias.name)
        for node in _tree("attendrop.methods.core.builtin").body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8"))


def _class(module: str, name: str) -> ast.ClassDef:
    return next(node for node in _tree(module).body if isinstance(node, ast.ClassDef) and node.name == name)


def _name(method: ast.ClassDef) -> str:
    """Return the name in a class's ``info = MethodInfo("NAME", ...)``."""
    info = next(
        node.value
        for node in method.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "info"
    )
    assert isinstance(info, ast.Call)
    return str(ast.literal_eval(info.args[0]))


@cache
def _stand_in(method: str) -> type[Any]:
    """Make a dataclass with the options of a method, in its order, their types and ranges."""
    fields = [(name, *declared) for name, declared in _fields(*_declared()[method]).items()]
    return dataclasses.make_dataclass(method.replace("-", "_"), fields, namespace={"__post_init__": check_options})


def _fields(module: str, name: str) -> dict[str, tuple[Any, Any]]:
    """Return the type and the declaration of each option of a class, those that it inherits first."""
    found: dict[str, tuple[Any, Any]] = {}
    for base in _class(module, name).bases:
        if isinstance(base, ast.Name) and (source := _source_of(module, base.id)) is not None:
            found |= _fields(source, base.id)
    for node in _class(module, name).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _declares(node.value):
            assert node.value is not None
            try:
                found[node.target.id] = _value(node.annotation), _value(node.value)
            except NameError:  # what its module imports: checked when the method is made
                found[node.target.id] = Any, option(None, Range("", lambda name, value: value))
    return found


def _value(expression: ast.expr) -> Any:
    """Evaluate a type or a declaration."""
    return eval(ast.unparse(expression), dict(vars(declarations)))


def _declares(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "option"


def _source_of(module: str, name: str) -> str | None:
    """Return the module of ``attendrop.methods`` that defines a name of ``module``; None for another package's."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return node.module if (node.module or "").startswith("attendrop.methods.") else None
    return None
