"""The registry, options and their messages, methods of other packages, and the statistics of the log."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from helpers.table import TABLE

from attendrop import ADDrop, AttendropError, Compose, FineTune, Method, RDrop
from attendrop.methods.core import registry
from attendrop.methods.core.base import MethodInfo
from attendrop.methods.core.context import RunningStatistics
from attendrop.methods.core.options import count, described, option, positive, read_option, searched_values
from attendrop.methods.core.registry import (
    build_method,
    get_method,
    given_options,
    is_of_this_program,
    method_names,
    register_method,
)


def test_options_survive_json_and_make_the_same_method() -> None:
    for method in (*TABLE.values(), ADDrop(layers=[0, 1])):
        options = json.loads(json.dumps(method.options()))
        assert build_method(method.name, options) == method


@pytest.mark.parametrize(
    ("name", "options", "given"),
    [
        ("ad-drop", {"q": 0.3}, {}),  # the default
        ("ad-drop", {"p": 0.1}, {"p": 0.1}),  # what the data would decide otherwise
        ("attendout", {"variant": "pruning", "merge": "sample"}, {"variant": "pruning", "merge": "sample"}),
        ("ad-drop+attendout", {"attendout.variant": "pruning"}, {"attendout.variant": "pruning"}),
    ],
)
def test_options_that_were_given(name: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    """Some defaults of AttendOut depend on its other options."""
    assert given_options(name, options) == given
    assert given_options(name, build_method(name, options).options()) == given


@pytest.mark.parametrize("kind", [kind for kind in map(get_method, method_names()) if kind.info.evidence])
def test_what_was_measured_is_quoted_for_that_setting_alone(kind: type[Method]) -> None:
    name = kind.info.name
    measured = [(build_method(name, options), sentence) for options, sentence in kind.info.evidence]
    assert all(method.evidence == sentence and sentence in kind.info.measured() for method, sentence in measured)
    for base in (kind(), *(method for method, _ in measured)):
        for option_of, values in searched_values(kind).items():
            for value in values:
                method = build_method(name, base.options() | {option_of: value})
                assert method.evidence == next((sentence for each, sentence in measured if each == method), "")


@pytest.mark.parametrize(
    ("method", "epochs", "expected"),
    [
        (ADDrop(), 3, [0, 1, 2]),
        (ADDrop(cross_tuning=True, start_epoch=2), 6, [3, 5]),
        (ADDrop(attribution="recorded"), 3, [1, 2]),
        (ADDrop(attribution="recorded", start_epoch=2), 4, [2, 3]),
        (FineTune(), 4, None),
    ],
)
def test_regularized_epochs(method: Method, epochs: int, expected: list[int] | None) -> None:
    assert method.regularized_epochs(epochs) == expected


def test_processes_may_have_counted_what_others_have_not() -> None:
    """Rows of one may have a record, those of another none yet."""
    ranks = [
        RunningStatistics(1, {"one": 1}, {"one/dropped/encoder.0": [1, 4], "one/loss": [2.0, 1]}),
        RunningStatistics(1, {"one": 1}, {"one/dropped/encoder.1": [3, 4]}),
    ]
    names = [list(each.sums) for each in ranks]
    parts: list[torch.Tensor] = []

    def total(part: torch.Tensor) -> torch.Tensor:
        parts.append(part)
        return sum(parts[-2:], torch.zeros_like(part))

    for each in ranks:
        found = each.summary(["one"], total, lambda own: names)
    assert found == {
        "one/active": 1.0, "one/dropped": 0.5, "one/dropped/encoder.0": 0.25, "one/dropped/encoder.1": 0.75,
        "one/loss": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ad-drop", {"p": "abc"}, r"p='abc' is not a number"),
        ("ad-drop", {"q": "1.5"}, r"q=1\.5 must be above 0 and at most 1"),
        ("ad-drop", {"atribution": "random"}, r"no option 'atribution'\. Did you mean 'attribution'\?"),
        ("finetune", {"p": "0.3"}, r"'finetune' has no options"),
        ("addrop", {}, r"no method 'addrop'\. Did you mean 'ad-drop'\?"),
        ("ad-drop+r-drop", {"p": "0.3"}, r"Option 'p' belongs to none of the methods .* such as ad-drop\.p"),
        ("ad-drop", {"units": "hidden", "attribution": "attention"}, "attribution='attention' is not defined"),
        ("ad-drop", {"attribution": "recorded", "target": "gold_label"}, "does not apply to recorded attributions"),
        ("attendout", {"defender_device": "meta"}, "defender_device='meta' is not a device"),
        ("hiddencut", {"gamma": 0, "eta": 0}, "one of them above 0"),
        ("supert", {"heads": "off", "feed_forward": "off"}, "leave nothing to prune"),
        ("unidrop", {"features": "", "structure": 0, "data": 1}, "All parts are disabled"),
        ("unidrop", {"features": "1,5"}, "must name some of the places 1, 2, 3 and 4"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        build_method(name, options)


# Of each kind of range, values outside of it; of the others, any word is.
OUTSIDE = {
    "above 0 and below 1": [0, 1, math.nan, True],
    "above 0 and at most 1": [0, 1.1],
    "at least 0 and below 1": [-0.1, 1],
    "at least 0 and at most 1": [-0.1, 1.5],
    "above 0": [0, -1, math.inf, math.nan],
    "0 or more": [-1],
    "1 or more": [0],
    "2 or more": [1],
    "4 or more": [3],
}


def test_values_outside_the_declared_ranges_are_refused() -> None:
    for name in method_names():
        for own, found in described(get_method(name)).items():
            assert found["range"]
            for value in OUTSIDE.get(found["range"], ["no such value"]):
                with pytest.raises(AttendropError, match=re.escape(own)):
                    build_method(name, {own: value})


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


Underscored = type("Underscored", (Own,), {"info": MethodInfo("ad_drop")})
Unexplained = type("Unexplained", (Method,), {"name": "unexplained"})


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:Method", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{__name__}:Underscored", "named 'ad-drop' is registered already: ADDrop"),
        (f"{__name__}:Unexplained", "Unexplained has no info"),
        ("unlicensed:Method", "SystemExit: no license"),
    ],
)
def test_a_broken_package_is_left_out_with_a_warning(
    value: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "unlicensed.py").write_text("raise SystemExit('no license')")
    monkeypatch.syspath_prepend(tmp_path)
    values = {"broken": value, "own": f"{__name__}:Own"}
    points = [EntryPoint(name, each, "attendrop.methods") for name, each in values.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with caplog.at_level(logging.WARNING):
        names = method_names()
    assert caplog.text.count("Method 'broken' of a third-party package is skipped") == len(caplog.records) == 1
    assert reason in caplog.text
    assert (names[:2], names[-1]) == (["finetune", "ad-drop"], "own_method")
    assert get_method("ad-drop") is ADDrop


@pytest.mark.usefixtures("_own_registry")
def test_names_with_an_underscore_compose() -> None:
    register_method(Own)
    assert is_of_this_program("r-drop+own_method") and not is_of_this_program("r-drop+ad-drop")
    built = build_method("own_method+r-drop", {"own-method.rounds": "5", "r_drop.alpha": "2"})
    assert built == Compose(Own(rounds=5), RDrop(alpha=2.0))
    assert build_method(built.name, built.options()) == built


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("start", "3", 3),
        ("start", "none", None),
        ("rate", "0.5", 0.5),
        ("switch", "on", True),
        ("word", "7", "7"),
        ("start", "x", "is not a whole number"),
        ("rate", "x", "is not a number"),
        ("switch", "maybe", "must be true or false"),
        ("rounds", "none", "is not a whole number"),
    ],
)
def test_options_are_read_as_the_type_that_they_are_declared_with(name: str, value: Any, expected: Any) -> None:
    if isinstance(expected, str) and expected != value:
        with pytest.raises(AttendropError, match=f"{name}='{value}' {expected}"):
            read_option(Own, name, value)
    else:
        found = read_option(Own, name, value)
        assert (found, type(found)) == (expected, type(expected))
