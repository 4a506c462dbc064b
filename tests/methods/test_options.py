"""What each method refuses: one case for each declared range, and for each rule among several options."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from attendrop import AttendropError
from attendrop.methods.core.options import described
from attendrop.methods.core.registry import build_method, get_method, method_names

# Of each kind of range, values outside of it.
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
    "true or false": ["maybe"],
}
RANGES = [
    pytest.param(name, option, found["range"], id=f"{name}.{option}")
    for name in method_names()
    for option, found in described(get_method(name)).items()
]


@pytest.mark.parametrize(("name", "option", "allowed"), RANGES)
def test_values_outside_the_declared_range_are_refused(name: str, option: str, allowed: str) -> None:
    assert allowed
    outside = OUTSIDE.get(allowed, ["no such value"] if option != "column" else [""])
    for value in outside:
        with pytest.raises(AttendropError, match=re.escape(option)):
            build_method(name, {option: value})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ad-drop", {"units": "hidden", "attribution": "attention"}, "attribution='attention' is not defined"),
        ("attendout", {"defender_device": "meta"}, "defender_device='meta' is not a device"),
        ("hiddencut", {"gamma": 0, "eta": 0}, "one of them above 0"),
        ("scal", {"adversarial": 0, "contrast": 0}, "one of them above 0"),
        ("token-cutoff", {"alpha": 0, "beta": 0}, "one of them above 0"),
        ("supert", {"heads": "off", "feed_forward": "off"}, "leave nothing to prune"),
        ("unidrop", {"feature": 0, "structure": 0, "token": 0}, "All parts are disabled"),
        ("unidrop", {"features": "", "structure": 0, "data": 1}, "All parts are disabled"),
        ("unidrop", {"features": "1,5"}, "must name some of the places 1, 2, 3 and 4"),
    ],
)
def test_options_that_exclude_one_another_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        build_method(name, options)
