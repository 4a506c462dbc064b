"""The sources: imports go down only, and in no circle; generic code names no method; faults can be planted."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import attendrop
import attendrop_methods
from attendrop.methods.core.registry import get_method, method_names

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from plant_faults import ROOT, faults

SOURCE = Path(attendrop.__file__).parent
# From the bottom up. A module belongs to the longest name here that it begins with; what stands in one row is
# independent of what stands beside it.
ORDER = [
    ["errors"],
    ["wording"],
    ["randomness", "support"],
    ["attention"],
    ["attribution"],
    ["methods.core.options"],
    ["methods.core.context"],
    ["methods.core.base"],
    ["methods.core"],
    ["extend"],
    ["methods"],
    ["methods.builtin"],
    ["methods.core.registry"],
    ["training", "tasks"],
    ["pruning"],
    ["runs"],
    ["studies"],
    ["reports"],
    ["cli"],
    ["__main__", ""],
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


FILES = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
# By its name below the package; the package itself is "".
MODULES = {
    re.sub(r"(^|\.)__init__$", "", file.removesuffix(".py").replace("/", ".")): ast.parse(text)
    for file, text in FILES.items()
}


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attendrop":
            base = str(node.module).partition(".")[2]
            for alias in node.names:
                name = f"{base}.{alias.name}".lstrip(".")
                yield name if name in MODULES else base


# What each imports, but for the package itself, which loads public names when they are asked for.
EDGES = {module: set(imported(tree)) - {module, ""} for module, tree in MODULES.items()}


def place(module: str) -> str:
    """The row entry that a module belongs to."""
    parts = module.split(".")
    return next(name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in LEVEL)


def test_imports_go_down_only() -> None:
    upward = [
        f"{module} imports {other}"
        for module, others in EDGES.items()
        for other in others
        if place(module) != place(other) and LEVEL[place(other)] >= LEVEL[place(module)]
    ]
    assert not upward, "\n".join(sorted(upward))


def test_no_modules_import_one_another_in_a_circle() -> None:
    try:
        TopologicalSorter(EDGES).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_second_package_needs_nothing_but_the_extension_point() -> None:
    for path in Path(attendrop_methods.__file__).parent.glob("**/*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        found = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        ours = {name for name in found if re.match(r"attendrop(?!_methods)", name)}
        assert ours <= {"attendrop.extend"}, path
        assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes), path


def test_an_entry_point_names_each_method_of_the_second_package() -> None:
    """By the name that it has on the command line, for which nothing has to be imported."""
    points = [point for point in entry_points(group="attendrop.methods") if point.module == "attendrop_methods"]
    assert sorted(point.attr for point in points) == sorted(attendrop_methods.__all__)
    for point in points:
        assert get_method(point.name) is point.load() is getattr(attendrop_methods, point.attr)


# What transformers calls things is known in one package.
DISPATCH = (
    "AttentionInterface", "AttentionMaskInterface", "ALL_ATTENTION_FUNCTIONS", "_attn_implementation",
    "_gradient_checkpointing_func", "Conv1D",
)  # fmt: skip


@pytest.mark.parametrize("word", DISPATCH)
def test_one_package_knows_how_transformers_dispatches_attention(word: str) -> None:
    assert {file.partition("/")[0] for file, text in FILES.items() if re.search(rf"\b{word}", text)} == {"attention"}


# One method's own commands; the demonstration, which compares two methods; the lists of public names.
OWN = {"cli/finished_runs.py", "reports/learned_patterns.py", "cli/demo.py", "__init__.py", "extend.py"}
# The baseline is no method among others, and what torch calls a scheduler is not ours.
ORDINARY = {"finetune", "FineTune", "scheduler", "Scheduler"}
NAMES = {word for name in method_names() for word in (name, get_method(name).__name__)} - ORDINARY
NAMED = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(NAMES)))})(?![\w-])")
# Where a name may stand: the default method, and how a combination is written.
ALLOWED = {("runs/config.py", "ad-drop"), ("cli/listings.py", "ad-drop"), ("cli/listings.py", "r-drop")}


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
        for file, text in FILES.items()
        if not file.startswith("methods/") and file not in OWN
        for said in words(ast.parse(text))
        for name in NAMED.findall(said)
    }
    assert found == ALLOWED


def test_faults_can_be_planted_and_have_tests() -> None:
    for fault in faults():
        planted = fault.planted((ROOT / "src" / fault.path).read_text(encoding="utf-8"))
        compile(planted, fault.name, "exec")
        missing = [test for test in fault.tests if not (ROOT / "tests" / test.partition("::")[0]).is_file()]
        assert not missing, fault.name
