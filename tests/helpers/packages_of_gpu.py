"""Pytest plugin: as if only the packages that ``make gpu`` installs were there, and what these need."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gpu import PACKAGES

ALWAYS = {"attendrop", "pip", "setuptools", "pkg_resources", "_distutils_hack"}


def normalized(name: str) -> str:
    """Return the name of a package as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def with_requirements(names: Iterable[str]) -> set[str]:
    """Return packages with those that they need, extras left out."""
    found: set[str] = set()
    todo = [normalized(name) for name in names]
    while todo:
        if (name := todo.pop()) in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # of another platform
            continue
        todo += [normalized(re.split(r"[^\w.-]", each)[0]) for each in needed if "extra ==" not in each]
    return found


def missing_modules() -> set[str]:
    """Return the top-level modules that are installed here, and not by ``make gpu``."""
    there = with_requirements(PACKAGES)
    modules = packages_distributions().items()
    return {name for name, packages in modules if not there & set(map(normalized, packages))} - ALWAYS


MISSING = missing_modules()
_find_spec = importlib.util.find_spec


class _Finder:
    """First finder of imports, which finds none of the missing modules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _spec(name: str, package: str | None = None) -> ModuleSpec | None:
    return None if name.partition(".")[0] in MISSING else _find_spec(name, package)


sys.meta_path.insert(0, _Finder())
importlib.util.find_spec = _spec
