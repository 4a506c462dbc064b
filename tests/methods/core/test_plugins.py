"""Methods of other packages: how their names and options are read, and what a broken package does not do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Optional

import pytest

from attendrop import ADDrop, AttendropError, Compose, Method, RDrop
from attendrop.methods.core import registry
from attendrop.methods.core.base import MethodInfo
from attendrop.methods.core.options import count, option, positive, read_option
from attendrop.methods.core.registry import build_method, get_method, is_of_this_program, method_names, register_method


@dataclass(frozen=True)
class Own(Method):
    """A method of another package."""

    info = MethodInfo("own_method", "does nothing", uses_attention=False)
    start: int | None = None  # type: ignore[assignment]
    rate: Optional[float] = None  # noqa: UP045
    switch: bool | None = None
    word: str | None = None
    strength: float = option(1, positive())
    rounds: int = option(2, count(2))


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    method_names()
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.setattr(registry, "_OF_PROGRAM", set())
    registry._load_plugins.cache_clear()
    yield
    registry._load_plugins.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Entry points by name, as packages would bring them."""
    points = [EntryPoint(name, value, "attendrop.methods") for name, value in values.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


Clash = type("Clash", (Own,), {"info": MethodInfo("ad-drop")})
Underscored = type("Underscored", (Own,), {"info": MethodInfo("ad_drop")})
Nameless = type("Nameless", (Own,), {"info": MethodInfo("a+b")})
Unexplained = type("Unexplained", (Method,), {"name": "unexplained"})


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:Method", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{__name__}:NoSuchClass", "AttributeError"),
        (f"{__name__}:Underscored", "named 'ad-drop' is registered already: ADDrop"),
        (f"{__name__}:Nameless", "cannot be named 'a+b'"),
        (__name__, "is not a method"),
        (f"{__name__}:Unexplained", "Unexplained has no info"),
        ("unlicensed:Method", "SystemExit: no license"),
    ],
)
def test_a_broken_package_is_left_out_with_a_warning(
    value: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "unlicensed.py").write_text("raise SystemExit('no license')")
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, broken=value, own=f"{__name__}:Own")
    with caplog.at_level(logging.WARNING):
        names = method_names()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Method 'broken' of a third-party package is skipped" in caplog.text
    assert reason in caplog.text
    assert (names[:2], names[-1]) == (["finetune", "ad-drop"], "own_method")
    assert get_method("ad-drop") is ADDrop


@pytest.mark.usefixtures("_own_registry")
def test_a_class_that_is_defined_again_takes_the_place_of_the_earlier_one() -> None:
    """As where a cell of a notebook runs again."""
    for _ in range(2):

        @dataclass(frozen=True)
        class Again(Own):
            info = MethodInfo("again")

        assert register_method(Again) is get_method("again") is Again


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize("spelling", ["own_method", "own-method"])
def test_names_with_an_underscore_compose(spelling: str) -> None:
    register_method(Own)
    assert is_of_this_program("r-drop+own_method") and not is_of_this_program("r-drop+ad-drop")
    built = build_method("own_method+r-drop", {f"{spelling}.rounds": "5", "r_drop.alpha": "2"})
    assert built == Compose(Own(rounds=5), RDrop(alpha=2.0))
    assert build_method(built.name, built.options()) == built


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("start", "3", 3),
        ("start", 3, 3),
        ("start", None, None),
        ("start", "none", None),
        ("rate", "0.5", 0.5),
        ("switch", "on", True),
        ("word", "7", "7"),
        ("strength", "2.5", 2.5),
    ],
)
def test_options_are_read_as_the_type_that_they_are_declared_with(name: str, value: Any, expected: object) -> None:
    found = read_option(Own, name, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("start", "x", "start='x' is not a whole number"),
        ("start", "2.5", "start='2.5' is not a whole number"),
        ("rate", "x", "rate='x' is not a number"),
        ("switch", "maybe", "switch='maybe' must be true or false"),
        ("rounds", "none", "rounds='none' is not a whole number"),
    ],
)
def test_options_of_another_type_are_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        read_option(Own, name, value)
