"""Registry of heads, and choice of the head for a task, a saved model or a label column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attendrop.argument_checks import did_you_mean
from attendrop.errors import AttendropError
from attendrop.tasks.heads import builtin
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.classification import Classification
from attendrop.tasks.heads.regression import Regression
from attendrop.tasks.label_column import are_numbers
from attendrop.tasks.table_files import Table

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

HEADS: tuple[type[Head], ...] = tuple(head for head in vars(builtin).values() if isinstance(head, type))
LABEL_TYPES = ("auto", *sorted(head.label_type for head in HEADS))


def get_head(kind: str, label_names: Sequence[str] = ()) -> Head:
    """Return the head of a kind of task, with its classes; raise AttendropError for an unknown kind."""
    found = {head.kind: head for head in HEADS}
    if kind not in found:
        hint = did_you_mean(kind, found) or f"; the kinds are {', '.join(sorted(found))}."
        raise AttendropError(f"there is no kind of task {kind!r}{hint}")
    return found[kind](tuple(label_names))


def head_of_model(config: PreTrainedConfig) -> Head:
    """Return the head of a saved model, with its classes."""
    return next(head for head in HEADS if head.recognizes(config)).from_config(config)


def head_class(label_type: str) -> type[Head]:
    """Return the kind of head that reads labels of a type; the candidates of "auto" read alike.

    Raises:
        AttendropError: The label type is unknown.
    """
    if label_type not in LABEL_TYPES:
        hint = did_you_mean(label_type, LABEL_TYPES) or f"; it is one of {', '.join(LABEL_TYPES)}."
        raise AttendropError(f"there is no label type {label_type!r}{hint}")
    return next((head for head in HEADS if head.label_type == label_type), Classification)


def find_head(tables: Mapping[str, Table], column: str, label_type: str) -> Head:
    """Make the head for the labels in files.

    With "auto", labels are numbers to predict if one has a decimal fraction or an exponent, otherwise classes.

    Args:
        tables: By split: "train", "dev" or both.
        column: Column of the labels.
        label_type: One of ``LABEL_TYPES``.

    Raises:
        AttendropError: As :meth:`Head.from_labels` says; and, with "auto", numbers are mixed with text, or it is
            unclear whether labels are classes.
    """
    if label_type != "auto":
        return head_class(label_type).from_labels(tables, column)
    if are_numbers(tables, column):
        return Regression.from_labels(tables, column)
    return Classification.from_labels(tables, column, asked=False)
