"""The registry, the options and their messages, and kinds of targets."""

import json
import math
import re
from typing import Any

import pytest
import torch
from helpers.table import TABLE

from attendrop import ADDrop, AttendropError, FineTune, Method
from attendrop.methods.core.context import RunningStatistics
from attendrop.methods.core.options import described, searched_values
from attendrop.methods.core.registry import build_method, get_method, given_options, method_names

# --- Options


def test_options_survive_json_and_make_the_same_method() -> None:
    for method in (*TABLE.values(), ADDrop(layers=[0, 1])):
        options = json.loads(json.dumps(method.options()))
        assert build_method(method.name, options) == method


@pytest.mark.parametrize(
    ("name", "options", "given"),
    [
        ("ad-drop", {"q": 0.3}, {}),  # the default
        ("ad-drop", {"p": 0.1}, {"p": 0.1}),  # what the data would decide otherwise
        ("ad-drop", {"p": 0.5}, {"p": 0.5}),
        ("attendout", {"variant": "pruning", "merge": "attacker"}, {"variant": "pruning"}),
        ("attendout", {"variant": "pruning", "merge": "sample"}, {"variant": "pruning", "merge": "sample"}),
        ("ad-drop+attendout", {"attendout.variant": "pruning"}, {"attendout.variant": "pruning"}),
    ],
)
def test_options_that_were_given(name: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    """Some defaults of AttendOut depend on its other options."""
    assert given_options(name, options) == given
    assert given_options(name, build_method(name, options).options()) == given


def others(name: str, method: Method) -> list[Method]:
    """The method with another value of one option: those that a search tries, the choices, and the next number."""
    found = []
    for option, value in method.options().items():
        values = [*searched_values(type(method)).get(option, ()), *described(type(method))[option]["range"].split(", ")]
        if isinstance(value, bool | int | float):
            values += [not value] if isinstance(value, bool) else [value * 0.9, value + 1]
        for other in values:
            try:
                found.append(build_method(name, method.options() | {option: other}))
            except AttendropError:  # not one of its values
                continue
    return found


@pytest.mark.parametrize("name", method_names())
def test_what_was_measured_is_quoted_for_that_setting_alone(name: str) -> None:
    kind = get_method(name)
    measured = [(build_method(name, options), sentence) for options, sentence in kind.info.evidence]
    for method, sentence in measured:
        assert method.evidence == sentence and sentence in kind.info.measured()
    for method in (kind(), *(other for each, _ in measured for other in others(name, each)), *others(name, kind())):
        assert method.evidence == next((sentence for each, sentence in measured if each == method), "")


def test_what_was_measured_of_a_default_that_depends_on_the_data() -> None:
    assert "generated messages with new phrases" in ADDrop().for_data(20, 400).evidence
    assert "CoLA, MRPC, STS-B and RTE" in ADDrop().for_data(2, 400).evidence
    assert ADDrop().evidence == ""  # not decided yet


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


def test_a_method_took_effect_where_any_layer_lost_a_unit() -> None:
    counts = {"one/encoder.0": [0, 4], "one/encoder.1": [1, 4], "other/encoder.0": [0, 4]}
    found = RunningStatistics(2, {"one": 2, "other": 2, "without counts": 1}, counts)
    assert found.took_effect("one") and found.took_effect("without counts")
    assert not found.took_effect("other") and not found.took_effect("idle")


def test_processes_may_have_counted_what_others_have_not() -> None:
    """Rows of one may have a record, those of another none yet."""
    ranks = [
        RunningStatistics(1, {"one": 1}, {"one/encoder.0": [1, 4]}, {"one/loss": [2.0, 1]}),
        RunningStatistics(1, {"one": 1}, {"one/encoder.1": [3, 4]}),
    ]
    names = [(list(each.counts), list(each.notes)) for each in ranks]
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


# --- The registry


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"p": "0.4", "q": "1"}, ADDrop(p=0.4, q=1.0)),
        ({"cross-tuning": "off"}, ADDrop()),
        ({"layers": "[4]"}, ADDrop(layers="[4]")),
        ({"layers": [1, 2], "p": 0.5}, ADDrop(layers=(1, 2), p=0.5)),
    ],
)
def test_methods_are_built_from_text(options: dict[str, Any], expected: Method) -> None:
    assert build_method("ad-drop", options) == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ad-drop", {"p": "abc"}, r"p='abc' is not a number"),
        ("ad-drop", {"q": "1.5"}, r"q=1\.5 must be above 0 and at most 1"),
        ("ad-drop", {"atribution": "random"}, r"no option 'atribution'\. Did you mean 'attribution'\?"),
        ("finetune", {"p": "0.3"}, r"'finetune' has no options"),
        ("addrop", {}, r"no method 'addrop'\. Did you mean 'ad-drop'\?"),
        ("ad-drop+r-drop", {"p": "0.3"}, r"Option 'p' belongs to none of the methods .* such as ad-drop\.p"),
        ("ad-drop+r-drop", {"r-drop.alfa": "1"}, r"no option 'alfa'\. Did you mean 'alpha'"),
        ("ad-drop+rdrop", {}, r"no method 'rdrop'\. Did you mean 'r-drop'"),
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
def test_what_cannot_be_built_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        build_method(name, options)


def test_every_published_method_has_a_citation() -> None:
    assert {name for name in method_names() if not get_method(name).info.citation()} == {"finetune"}
    assert get_method("ad-drop").info.citation() == (
        "[Yang et al. (2022), AD-DROP: Attribution-Driven Dropout for Robust Language Model Fine-Tuning]"
        "(https://arxiv.org/abs/2210.05883)"
    )


# --- What is outside of the declared ranges, or does not go together


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


@pytest.mark.parametrize("name", method_names())
def test_values_outside_the_declared_ranges_are_refused(name: str) -> None:
    for option, found in described(get_method(name)).items():
        assert found["range"]
        for value in OUTSIDE.get(found["range"], ["no such value"] if option != "column" else [""]):
            with pytest.raises(AttendropError, match=re.escape(option)):
                build_method(name, {option: value})
