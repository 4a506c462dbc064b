"""Tasks and their kinds: columns, classes and metrics; the data loaded for a task, and its encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import uuid4

from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.tasks.table import SkippedRow
from attendrop.tasks.tokenization import DOCUMENT, HEAD, of_documents, split_long
from attendrop.tasks.types.base import TaskType
from attendrop.tasks.types.classification import Classification, MultiLabel, MultipleChoice, Regression
from attendrop.tasks.types.token_classification import SPANS, EntitySpans, TokenClassification
from attendrop.tasks.types.translation import Translation

TASK_TYPES: tuple[type[TaskType], ...] = (
    MultipleChoice, Translation, EntitySpans, TokenClassification, MultiLabel, Regression, Classification,
)  # fmt: skip
# Column of what other columns of a row say, in front of its text.
OTHERS = "other_columns"
# Rows that are tokenized together, where only their lengths are kept: a token takes 120 bytes until then.
_AT_A_TIME = 1000


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


@dataclass(frozen=True)
class Task:
    """A task, without its data."""

    name: str  # such as "rte"; the task of custom files is called "files"
    type: TaskType  # the kind, with its classes: model class, encoding, metrics, predictions
    text_columns: tuple[str, ...]  # of the source files, one for each input
    metric: str  # the score by which models are selected, a key of what `compute_scores` returns
    description: str  # one line
    other_metrics: tuple[str, ...] = ()  # scores reported beside `metric`
    long_texts: str = HEAD  # what is done with texts that are too long, see `tasks/tokenization.py`
    group_columns: tuple[str, ...] = ()  # whose values make groups of rows that are also scored for themselves
    # Classes of models trained on other tasks, each with the class of this task that it is read as. Where there are
    # any, models with other classes are not scored.
    readings: tuple[Mapping[str, str], ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order of their ids; empty if there are none."""
        return self.type.label_names

    def with_long_texts(self, wanted: str | None) -> Self:
        """Return the task with another treatment of long texts; None leaves it as it is.

        Raises:
            AttendropError: Rows of this task do not support it.
        """
        if wanted in (None, HEAD):
            return self if wanted is None else replace(self, long_texts=wanted)
        what, texts = f"long-texts {wanted!r} is for", len(self.text_columns)
        if not self.type.one_vector:
            raise AttendropError(f"{what} one prediction for each text, and the task is {self.type.kind}; omit it.")
        if texts > 1:
            raise AttendropError(f"{what} single texts, and the rows have {texts}; omit it.")
        return replace(self, long_texts=wanted)


@dataclass(frozen=True)
class TaskData:
    """The loaded splits of a task, by name: "train", "dev", "test", and others that it has ("dev_mismatched").

    Columns are ``task.type.inputs`` ("text", "text_pair" ...), "label" (class id, float ...; absent if the split has no
    labels), "index" (id of the row in a file of predictions), and in custom training data the further columns that
    :func:`load_files` was asked for.
    """

    task: Task
    splits: dict[str, Dataset]
    source: str  # description of where the data came from
    skipped: tuple[SkippedRow, ...] = ()  # because they are invalid
    looks_grouped: str = ""  # in words, by a column of the training file, where none was given


def with_others(rows: Dataset, *, joined: bool = True) -> Dataset:
    """Return rows with what their other columns say, :data:`OTHERS`, in front of their text, or again without it."""
    if OTHERS not in rows.column_names:
        return rows
    pairs = zip(rows[OTHERS][:], rows["text"][:], strict=True)
    texts = [others + text if joined else text.removeprefix(others) for others, text in pairs]
    return Dataset.from_dict(rows.to_dict() | {"text": texts}, features=rows.features)


def truncated_rows(
    columns: Mapping[str, Sequence[Any]],
    encoded: Mapping[str, Any],
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    limit: int,
) -> int:
    """Count the rows of more than ``limit`` tokens, of which :func:`encode_columns` has returned ``encoded``."""
    full = [row for row, length in enumerate(of_documents(encoded["length"], encoded)) if length >= limit]
    found = 0
    for start in range(0, len(full), _AT_A_TIME):
        some = {name: [values[row] for row in full[start : start + _AT_A_TIME]] for name, values in columns.items()}
        found += sum(length > limit for length in task.type.lengths(task.type.tokenize(some, tokenizer, None)))
    return found


def encode(dataset: Dataset, task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Tokenize the texts, without padding (the collator pads batches).

    ``max_length`` is the maximum number of tokens, including special tokens, at most that of the tokenizer; the longer
    of two texts is truncated first.

    Returns:
        What :meth:`TaskType.tokenize` makes of the rows, "labels", if there are any, and "length", in tokens.
        Where a row can become several, as texts in windows do, "document", the number of the row in the data set.

    Raises:
        AttendropError: ``max_length`` leaves no room for the texts, or no row has a token.
    """
    limit = task.type.length_limit(tokenizer, max_length, dataset.column_names)
    encoded = dataset.map(
        lambda columns, rows: encode_columns(columns, task, tokenizer, limit, first_row=rows[0]),
        batched=True,
        with_indices=True,
        remove_columns=dataset.column_names,
        desc="tokenising",
        # Rows in memory have no use for a fingerprint, for which the whole tokenizer would be hashed in seconds.
        new_fingerprint=None if dataset.cache_files else uuid4().hex,
    )
    if not len(encoded):
        raise AttendropError(f"none of {len(dataset)} rows has a token that the model knows.")
    return encoded


def encode_columns(
    columns: dict[str, list[Any]],
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    first_row: int = 0,
) -> dict[str, list[Any]]:
    """Tokenize rows as :func:`encode` does, from number ``first_row``, to :meth:`TaskType.length_limit`."""
    task_type, whole = task.type, task.long_texts == HEAD
    tokens = task_type.tokenize(columns, tokenizer, max_length if whole else None)
    encoded = dict(tokens) if whole else split_long(tokens, tokenizer, max_length, task.long_texts)
    encoded["length"] = task_type.lengths(encoded)
    documents = encoded.get(DOCUMENT)
    if "label" in columns:
        labels = columns["label"] if documents is None else [columns["label"][row] for row in documents]
        encoded["labels"] = task_type.targets(labels, tokens, tokenizer)
    return encoded if documents is None else encoded | {DOCUMENT: [first_row + row for row in documents]}
