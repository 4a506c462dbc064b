"""Metrics of tags: of all words, and of the entities that tags mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, f1_score

from attendrop.tasks.entity_tags import OUTSIDE, are_entity_tags, entity_scores
from attendrop.tasks.heads.output_scorer import Array, Metric
from attendrop.tasks.word_lists import NO_TOKEN, flat

# Tag ids of each row.
Tags = Sequence[Sequence[int]]
# The scores of entities, in the order of `entity_scores`.
OF_ENTITIES = ("entity_precision", "entity_recall", "entity_f1")


def tag_metrics(
    label_names: Sequence[str], unknown_names: Sequence[str], decode: Callable[[Array], Tags]
) -> Mapping[str, Metric]:
    """Make the metrics of references and outputs, arrays with an entry for each row.

    A word without a prediction counts as "O" where tags mark entities, otherwise as wrong.

    Args:
        label_names: The tags that are predicted.
        unknown_names: Further tags of references.
        decode: Function that returns the predicted tag ids of outputs; -1 for no prediction.
    """
    names = (*label_names, *unknown_names)
    marks_entities = are_entity_tags(label_names)
    default = label_names.index(OUTSIDE) if marks_entities and OUTSIDE in label_names else NO_TOKEN

    def predicted(outputs: Array) -> Tags:
        return [[default if tag == NO_TOKEN else tag for tag in row] for row in decode(outputs)]

    def accuracy(gold: Array, outputs: Array) -> float:
        return float(accuracy_score(flat(gold), flat(predicted(outputs))))

    def f1_macro(gold: Array, outputs: Array) -> float:
        tags, found = flat(gold), flat(predicted(outputs))
        occurring = np.setdiff1d(np.union1d(tags, found), [NO_TOKEN])
        return float(f1_score(tags, found, labels=occurring, average="macro", zero_division=0.0))

    def named(rows: Any) -> list[list[str]]:
        return [[OUTSIDE if tag == NO_TOKEN else names[tag] for tag in row] for row in rows]

    def of_entities(number: int) -> Metric:
        return Metric(lambda gold, outputs: entity_scores(named(gold), named(predicted(outputs)))[number])

    entities = {name: of_entities(number) for number, name in enumerate(OF_ENTITIES)} if marks_entities else {}
    return {"accuracy": Metric(accuracy), "f1_macro": Metric(f1_macro)} | entities
