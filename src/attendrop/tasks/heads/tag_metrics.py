"""Tags of entities (IOB1, IOB2, IOBES), and scores of tags, those of entities as of conlleval, by seqeval."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import accuracy_score, f1_score

from attendrop.tasks.heads.base import Array, Metric

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


# Position of words without a token, and tag id of words without a prediction.
NO_TOKEN = -1
# The scores of entities, in the order of `entity_scores`.
OF_ENTITIES = ("entity_precision", "entity_recall", "entity_f1")


def tag_metrics(names: Sequence[str], decode: Callable[[Array], Iterable[Any]], *, entities: bool) -> dict[str, Metric]:
    """Make the metrics of references and outputs, arrays with an entry for each row.

    Args:
        names: The tags, in the order of their ids.
        decode: Function that returns the predicted tag ids of outputs; -1 for no prediction, which is wrong.
        entities: Whether the tags mark entities, which are then scored.
    """

    def of_words(score: Callable[[Array, Array], Any]) -> Metric:
        return Metric(lambda gold, outputs: float(score(flat(gold), flat(decode(outputs)))))

    def f1_macro(tags: Array, found: Array) -> Any:
        occurring = np.setdiff1d(np.union1d(tags, found), [NO_TOKEN])
        return f1_score(tags, found, labels=occurring, average="macro", zero_division=0.0)

    def named(rows: Iterable[Any]) -> list[list[str]]:
        return [[OUTSIDE if tag == NO_TOKEN else names[tag] for tag in row] for row in rows]

    def of_entities(number: int) -> Metric:
        return Metric(lambda gold, outputs: entity_scores(named(gold), named(decode(outputs)))[number])

    of_types = {name: of_entities(number) for number, name in enumerate(OF_ENTITIES)} if entities else {}
    return {"accuracy": of_words(accuracy_score), "f1_macro": of_words(f1_macro)} | of_types


def flat(rows: Iterable[Any]) -> Array:
    """Concatenate the numbers of all rows."""
    return np.fromiter(chain(*rows), dtype=int)
