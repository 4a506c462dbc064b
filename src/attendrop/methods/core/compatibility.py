"""Compatibility rules of methods: general rules, extended by each method's own.

A rule refers to traits. A method declares its traits (:attr:`Method.traits`), the options under which it has them
(:meth:`Method.has`), and its own rules (:attr:`Method.rules`). Its name is also a trait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Protocol

from attendrop.errors import AttendropError

ANY = "any method"
DECIDES_PASSES = "decides which passes a step takes"
EXCHANGES_WEIGHTS = "puts other weights into the model between steps"
REPLACES_PARAMETERS = "replaces the parameters of a pass"
REPLACES_DROPOUT = "replaces the model's own dropout of attention weights"
SCORES_ROWS = "needs labelled rows set aside"
SKIPS_BLOCKS = "leaves out blocks"
SECOND_MODEL = "trains a second model"


@dataclass(frozen=True)
class Rule:
    """Compatibility rule: a method with trait ``one`` cannot be combined with a method with trait ``other``.

    Attributes:
        one: A trait, or the name of a method.
        other: A trait or name of the other method; may equal ``one``.
        reason: Reason, as a sentence.
    """

    one: str
    other: str
    reason: str

    def forbids(self, one: Combinable, other: Combinable) -> bool:
        """Return whether the rule forbids combining these two, in any order."""
        return (one.has(self.one) and other.has(self.other)) or (one.has(self.other) and other.has(self.one))


class Combinable(Protocol):
    """Interface of a method for compatibility rules."""

    name: ClassVar[str]
    rules: ClassVar[tuple[Rule, ...]]

    def has(self, trait: str) -> bool:
        """Return whether it has a trait."""
        ...


RULES = (
    Rule(DECIDES_PASSES, DECIDES_PASSES, "Both control the passes of a training step."),
    Rule(EXCHANGES_WEIGHTS, EXCHANGES_WEIGHTS, "Both replace the model's weights during training."),
    Rule(
        REPLACES_PARAMETERS,
        REPLACES_PARAMETERS,
        "Both replace the parameters of a pass, and only one replacement would take effect.",
    ),
    Rule(REPLACES_DROPOUT, REPLACES_DROPOUT, "Both replace the model's dropout of attention weights."),
    Rule(SCORES_ROWS, SCORES_ROWS, "Both need held-out labelled rows."),
)


def rules_among(own: Iterable[Sequence[Rule]]) -> list[Rule]:
    """Return the general rules, followed by each method's ``own`` rules."""
    return list(dict.fromkeys((*chain.from_iterable(own), *RULES)))


def refuse_conflicts(methods: Sequence[Combinable]) -> None:
    """Raise AttendropError, with the reason, if two of the methods cannot be combined."""
    rules = rules_among(method.rules for method in methods)
    for number, one in enumerate(methods):
        for other in methods[:number]:
            if one.name == other.name:
                raise AttendropError(f"Method '{one.name}' is given twice; give it once.")
            for rule in rules:
                if rule.forbids(one, other):
                    raise AttendropError(f"'{other.name}' and '{one.name}' cannot be combined. {rule.reason}")
