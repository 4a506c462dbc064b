"""Which methods cannot be combined, and why: general rules, to which each method adds its own.

A rule speaks of traits. A method declares those that it has (:attr:`Method.traits`), under which of its options it has
them (:meth:`Method.has`), and rules of its own (:attr:`Method.rules`). Its name is one of its traits.
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
    """Two methods cannot be combined if one has a trait and the other has another, or the same.

    Attributes:
        one: A trait, or the name of a method.
        other: That of the other method.
        reason: Why, as a sentence.
    """

    one: str
    other: str
    reason: str

    def forbids(self, one: Combinable, other: Combinable) -> bool:
        """Whether the rule speaks of these two, in any order."""
        return (one.has(self.one) and other.has(self.other)) or (one.has(self.other) and other.has(self.one))


class Combinable(Protocol):
    """A method, as rules see it."""

    name: ClassVar[str]
    rules: ClassVar[tuple[Rule, ...]]

    def has(self, trait: str) -> bool:
        """Whether it has a trait."""
        ...


RULES = (
    Rule(DECIDES_PASSES, DECIDES_PASSES, "Both decide which passes a step takes."),
    Rule(EXCHANGES_WEIGHTS, EXCHANGES_WEIGHTS, "Both put other weights into the model while it trains."),
    Rule(
        REPLACES_PARAMETERS,
        REPLACES_PARAMETERS,
        "Both replace the parameters of a pass, and only one of them would be seen.",
    ),
    Rule(REPLACES_DROPOUT, REPLACES_DROPOUT, "Both decide on the attention weights in place of the model's dropout."),
    Rule(SCORES_ROWS, SCORES_ROWS, "Both need labelled rows set aside."),
)


def rules_among(own: Iterable[Sequence[Rule]]) -> list[Rule]:
    """The rules that hold among methods: the general ones, and each method's ``own``."""
    return list(dict.fromkeys((*chain.from_iterable(own), *RULES)))


def refuse_conflicts(methods: Sequence[Combinable]) -> None:
    """Raise AttendropError, with the reason, if two of the methods cannot be combined."""
    rules = rules_among(method.rules for method in methods)
    for number, one in enumerate(methods):
        for other in methods[:number]:
            if one.name == other.name:
                raise AttendropError(f"Method '{one.name}' is named twice; give it once.")
            for rule in rules:
                if rule.forbids(one, other):
                    raise AttendropError(f"'{other.name}' and '{one.name}' cannot be combined. {rule.reason}")
