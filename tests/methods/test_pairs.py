"""Every pair of methods: it trains, or is refused when it is composed, by the table of rules."""

from __future__ import annotations

from itertools import combinations

import pytest
from helpers import zoo
from helpers.table import TABLE, given

from attendrop import (
    SCAL,
    AttendOut,
    AttendropError,
    Compose,
    ConcreteDropout,
    LayerDrop,
    Method,
    Mixout,
    SuperT,
    UniDrop,
    Vanilla,
    regularize,
)
from attendrop.methods.core.info import SKIPS_BLOCKS, rules_among
from attendrop.methods.core.registry import get_method, method_names

_SINGLE = [(name, method) for name, method in TABLE.items() if len(method.parts) == 1]
PAIRS = {
    f"{one}+{other}": (first, second)
    for (one, first), (other, second) in combinations(_SINGLE, 2)
    if first.name != second.name
}
# Enough to notice when composition as such breaks; the others are slow.
_SAMPLE = list(PAIRS)[:: len(PAIRS) // 12]


@pytest.mark.parametrize(
    ("one", "other"),
    [pytest.param(*pair, id=name, marks=[] if name in _SAMPLE else pytest.mark.slow) for name, pair in PAIRS.items()],
)
def test_a_pair_trains_or_is_refused_when_composed(one: Method, other: Method) -> None:
    try:
        method = Compose(one, other)
    except AttendropError as refused:
        assert "cannot be combined" in str(refused)
        return
    model, batch = zoo.build("bert", dropout=0.1), zoo.batch_of("bert")
    needed = given(model, batch)
    with regularize(model, method, **needed) as reg:
        for _ in range(2):
            loss = reg.loss(batch)
            loss.backward()
            needed["optimizer"].step()
            needed["optimizer"].zero_grad()
            reg.step()
            assert loss.isfinite()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (AttendOut(), SCAL(), "Both control the passes"),
        (AttendOut(), SuperT(), "Both replace the model's weights"),
        (SuperT(), Mixout(), "restores pre-trained values"),
        (ConcreteDropout(), AttendOut(), "two are trained"),
        (ConcreteDropout(), SuperT(), "learnt probabilities are not"),
        (ConcreteDropout(), LayerDrop(), "including skipped ones"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_what_cannot_be_combined_is_refused_in_any_order_with_the_reason(
    one: Method, other: Method, reason: str
) -> None:
    for pair in ((one, other), (other, one)):
        with pytest.raises(AttendropError, match=f"'{pair[0].name}' and '{pair[1].name}' cannot be combined.*{reason}"):
            Compose(*pair)


@pytest.mark.parametrize("other", [UniDrop(structure=0), Vanilla(where="weights")], ids=lambda method: method.name)
def test_options_may_take_the_reason_away(other: Method) -> None:
    assert not other.has(SKIPS_BLOCKS)
    assert Compose(ConcreteDropout(), other).parts[1] is other


def test_a_rule_names_methods_that_there_are() -> None:
    classes = [get_method(name) for name in method_names()]
    known = {trait for method in classes for trait in (method.info.name, *method.info.traits)}
    for method in classes:
        for rule in method.info.rules:
            assert rule in rules_among(cls.info.rules for cls in classes)
            assert {rule.one, rule.other} <= known | {"any method"}, rule
            assert rule.one == method.info.name
