"""Registry of heads, and choice of the head for a task, a saved model or a label column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from attendrop.errors import check_known
from attendrop.tasks.heads import builtin
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.builtin import LABEL_TYPES

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

HEADS: tuple[type[Head], ...] = tuple(resolve_name(f"{__package__}.{name}") for name in builtin.HEADS.values())


def get_head(kind: str, label_names: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> Head:
    """Return the head of a kind of task, with its classes and options; raise AttendropError for an unknown one."""
    found = {head.kind: head for head in HEADS}
    check_known(kind, found, f"there is no kind of task {kind!r}", f"the kinds are {', '.join(sorted(found))}")
    return found[kind](tuple(label_names)).with_options(options or {})


def head_of_model(config: PreTrainedConfig, *, command: str | None = None) -> Head:
    """Return the head of a saved model, with its classes; with a command, the first one that it works for."""
    return next(head for head in HEADS if head.recognizes(config) and command not in head.refused).from_config(config)


def candidate_heads(label_type: str, texts: Sequence[Any], label: Any = None) -> tuple[type[Head], ...]:
    """Return the kinds of heads that labels of a type may be for; those of "auto" check texts and labels alike.

    Raises:
        AttendropError: The label type is none of ``LABEL_TYPES``.
    """
    problem = f"there is no label type {label_type!r}"
    check_known(label_type, LABEL_TYPES, problem, f"it is one of {', '.join(LABEL_TYPES)}")
    asked = tuple(head for head in HEADS if head.label_type == label_type)
    return asked or tuple(head for head in HEADS if head.may_read(texts) and (label is None or head.may_label(label)))
