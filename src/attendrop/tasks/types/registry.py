"""The kinds of tasks, and which one is that of a named task, a saved model or a column of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attendrop.errors import check_known
from attendrop.tasks.table import LABEL_TYPES, listed
from attendrop.tasks.types.base import TaskType
from attendrop.tasks.types.classification import Classification, MultiLabel, MultipleChoice, Regression
from attendrop.tasks.types.token_classification import SPANS, EntitySpans, TokenClassification
from attendrop.tasks.types.translation import Translation

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TASK_TYPES: tuple[type[TaskType], ...] = (
    MultipleChoice, Translation, EntitySpans, TokenClassification, MultiLabel, Regression, Classification,
)  # fmt: skip


def get_task_type(kind: str, label_names: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> TaskType:
    """Return a kind of task, with its classes and options; raise AttendropError for an unknown one."""
    found = {each.kind: each for each in TASK_TYPES}
    check_known(kind, found, f"there is no kind of task {kind!r}", f"the kinds are {', '.join(sorted(found))}")
    return found[kind](tuple(label_names)).with_options(options or {})


def task_type_of_model(config: PreTrainedConfig, *, command: str | None = None) -> TaskType:
    """Return the kind of task of a saved model, with its classes, if it has any; with a command, one that it works for.

    Models are known by their class; those for sequence classification by their loss, or by a single output. Any other
    is taken for a classifier, whose loading says what is missing.
    """
    ids: Any = config.id2label or {}  # JSON keys are converted back
    found: type[TaskType] = Classification
    if config.problem_type == MultiLabel.problem_type:
        found = MultiLabel
    elif config.problem_type == Regression.problem_type or len(ids) == 1:
        found = Regression
    for each in TASK_TYPES:
        named = each.class_name(config) in (config.architectures or ())
        if not each.one_vector and command not in each.refused and named:
            found = each
    if found is TokenClassification and getattr(config, SPANS, False):
        found = EntitySpans
    has_names = not found.generates and found is not Regression
    return found(tuple(ids[number] for number in sorted(ids)) if has_names else ())


def candidate_types(label_type: str, texts: Sequence[Any], label: Any = None) -> tuple[type[TaskType], ...]:
    """Return the kinds of tasks that labels of a type may be for; those of "auto" read texts and labels alike.

    With "auto", texts that are lists, also as JSON in CSV files, are words, and labels that are lists are several.
    ``label`` is the first label of a file. Spans are known before, see :func:`attendrop.tasks.inspection.holds_spans`.

    Raises:
        AttendropError: The label type is none of ``LABEL_TYPES``.
    """
    problem = f"there is no label type {label_type!r}"
    check_known(label_type, LABEL_TYPES, problem, f"it is one of {', '.join(LABEL_TYPES)}")
    if label_type != "auto":
        return tuple(each for each in TASK_TYPES if each.label_type == label_type)
    if any(listed(text) is not None for text in texts):
        return (TokenClassification,)
    return (Regression, Classification) if listed(label) is None else (MultiLabel,)
