"""Tags of entities (IOB1, IOB2, IOBES) and their scores as of conlleval, by seqeval."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from seqeval.metrics.sequence_labeling import get_entities

OUTSIDE = "O"
_ENTITY = re.compile(r"[BIES]-.+")


def are_entity_tags(names: Iterable[str]) -> bool:
    """Tell whether tags mark entities: "O", and others such as "B-PER"."""
    others = set(names) - {OUTSIDE}
    return bool(others) and all(_ENTITY.fullmatch(name) for name in others)


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert the tags of a sentence from IOB1, in which most entities begin with "I-", to IOB2; those of IOB2 stay.

    Tags with other prefixes are returned as they are.
    """
    converted = []
    before = OUTSIDE
    for tag in tags:
        begins = tag.startswith("I-") and before[2:] != tag[2:]
        converted.append(f"B-{tag[2:]}" if begins else tag)
        before = tag
    return converted


def entity_type(tag: str) -> str:
    """Return the type of the entity of a tag, such as "PER"."""
    return tag[2:]


@lru_cache(maxsize=100_000)
def entities(tags: tuple[str, ...]) -> frozenset[tuple[str, int, int]]:
    """Return the entities of a sentence: type, first and last word; remembered, for the resamples of a bootstrap."""
    return frozenset(get_entities(list(tags)))


def entity_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> tuple[float, float, float]:
    """Compute precision, recall and F1 of entities, over all types; each is 0 where it is undefined.

    An entity counts as found if its type, its first and its last word are right (Tjong Kim Sang and De Meulder, 2003).

    Args:
        gold: Tags of each sentence.
        predicted: Tags of the same sentences.
    """
    pairs = [(entities(tuple(one)), entities(tuple(other))) for one, other in zip(gold, predicted, strict=True)]
    right, of_gold, of_predicted = (
        sum(len(one & other) for one, other in pairs),
        sum(len(one) for one, _ in pairs),
        sum(len(other) for _, other in pairs),
    )
    precision, recall = (right / count if count else 0.0 for count in (of_predicted, of_gold))
    return precision, recall, 2 * right / (of_gold + of_predicted) if right else 0.0
