"""Loading, splitting and encoding of the data of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.result_cache import cached
from attendrop.support.files import known_sha256
from attendrop.tasks.base import Task, TaskData, encode
from attendrop.tasks.class_names import (
    check_label_names,
    check_unlabelled,
    counted_names,
    in_words,
    read_label_names,
    read_unlabelled,
    same_text,
    telling_names,
    why_no_names,
    why_no_rows,
)
from attendrop.tasks.custom_files import OOD_VALUES, load_files
from attendrop.tasks.metrics import data_digest, with_metric
from attendrop.tasks.registry import load_task, task_files
from attendrop.tasks.splits import few_shot, hold_out, hold_out_like, hold_out_values, subset
from attendrop.tasks.table import files_of
from attendrop.tasks.tokenization import texts_of
from attendrop.wording import counted

# Options by which files are read, with the same names for :func:`load_files`.
_READ_BY = (
    *("text_columns", "label_column", "label_type", "label_map", "unknown_labels", "skip_bad_rows", "ood_column"),
    "group_column",
)
# Seed of the rows that are set aside for the final scores: these do not depend on the seed of a run.
_TEST_SEED = 0
# Fraction of rows held out as unlike the others, if no fraction of test rows is given.
OOD_FRACTION = 0.25


@dataclass(frozen=True)
class Parts:
    """The splits of the data of a run.

    Attributes:
        train: Training rows.
        selection: Rows that select the best epoch; None to keep the last.
        report: Rows of the reported scores, by name.
        reward: Rows on which the method scores models during training; None if it does not.
        names: Number of the last training rows that are names of classes, by the option ``label_names``.
        names_left_out: Such texts that are no rows, because a row has them that is not trained on.
        unlabelled: Texts of the option ``unlabelled``, if it is given.
        unlabelled_numbers: Their numbers, see :func:`attendrop.tasks.class_names.read_unlabelled`.
    """

    train: Dataset
    selection: Dataset | None
    report: dict[str, Dataset]
    reward: Dataset | None = None
    names: int = 0
    names_left_out: tuple[str, ...] = ()
    unlabelled: Dataset | None = None
    unlabelled_numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def real(self) -> Parts:
        """The parts, encoded or not, without names of classes among the training rows."""
        if not self.names:
            return self
        texts = texts_of(self.train)
        return replace(self, train=self.train.select(chain(*texts[: len(texts) - self.names])), names=0)

    @property
    def named(self) -> dict[str, Dataset]:
        """The parts by name, each set of rows once: under protocol 'paper', "selection" is another name of "dev"."""
        others = {"selection": self.selection, "reward": self.reward}
        kept = {
            name: rows
            for name, rows in others.items()
            if rows is not None and not any(rows is known for known in self.report.values())
        }
        return {"train": self.train} | kept | self.report

    def trained_on(self, label_names: str | None) -> str:
        """Count the training rows in words, given the option: "385 rows and 77 names of classes"."""
        rows = counted(len(self.train) - self.names, "row")
        return f"{rows} and {counted_names(self.names, label_names)}" if self.names else rows


def load_data(config: RunConfig) -> TaskData:
    """Load the task, or custom files; runs in a process may share what they have loaded."""
    files = data_files(config)
    options = {name: getattr(config, name) for name in _READ_BY}

    def load() -> TaskData:
        if config.task is not None:
            return load_task(config.task, data_dir=config.data_dir)
        assert config.train_file is not None
        return load_files(train_file=config.train_file, eval_file=config.eval_file, **options)

    if files and all(file.exists() for file in files):
        data = cached(
            lambda: [config.task, config.data_dir, [[str(file), digest(file)] for file in files], options],
            load,
            lambda data: sum(split.data.nbytes for split in data.splits.values()),
            kind="data",
        )
    else:
        data = load()
    task = replace(data.task.with_long_texts(config.long_texts), options=config.task_options)
    return replace(data, task=task if config.metric is None else with_metric(task, config.metric))


def data_files(config: RunConfig) -> list[Path]:
    """List the files of a run's data, which may be missing; data of the hub have none."""
    if config.task is None:
        named = (config.train_file, config.eval_file, config.label_map, config.label_names_file, config.unlabelled)
        return [file for name in named if name is not None for file in files_of(name)]
    try:
        return task_files(config.task, config.data_dir)
    except AttendropError:  # loading reports what is wrong
        return []


def digest(path: Path) -> str:
    """Compute the SHA-256 of a file; empty if there is none."""
    return known_sha256(path) if path.is_file() else ""


def divide(config: RunConfig, data: TaskData) -> Parts:
    """Set the test rows aside, limit the training rows, hold out the selection split, then the reward rows.

    Names of classes are added to the training rows last, so that they change none of these. Unlabelled texts are none
    of the training file's rows that are drawn.
    """
    rows, task, task_type, shifted = data.splits["train"], data.task, data.task.type, {}
    given = len(rows)
    if config.ood or config.ood_column is not None:  # the same for every seed, as the test rows
        fraction = config.test_fraction or OOD_FRACTION
        if config.ood_column is None:
            rows, shifted["ood"] = hold_out_like(rows, task, fraction, _TEST_SEED)
        else:
            values = rows[OOD_VALUES][:]
            rows, shifted["ood"] = hold_out_values(rows, config.ood_column, values, fraction)
    if config.test_fraction:
        rows, held = hold_out(rows, task, config.test_fraction, _TEST_SEED)
        assert held is not None
        report = {"dev": held}
    else:
        report = {name: split for name, split in data.splits.items() if name != "train"}
    report |= shifted
    if config.shots is not None:
        rows = few_shot(rows, task, config.shots, config.seed)
        given = len(rows)
    if config.max_train_samples is not None:
        rows = subset(rows, config.max_train_samples, config.seed)
        given = min(given, config.max_train_samples)
    if config.protocol == "paper":
        kept, selection = rows, report["dev"]
    else:
        kept, selection = hold_out(rows, task, config.selection_fraction or 0.0, config.seed)
    reward = report["dev"] if config.rewarded_on == "eval" else None
    if config.rewarded_on == "split":
        kept, reward = hold_out(kept, task, config.regularizer.rewarded_fraction(), config.seed)
    held_out = [*report.values(), *(part for part in (selection, reward) if part is not None)]
    # By the rows that are given, not those that are left, so that a comparison's last model does as those compared.
    texts, left_out = _names(config, task, given, held_out)
    if texts:
        columns: dict[str, list[Any]] = {name: [""] * len(texts) for name in kept.column_names}
        columns |= {"text": [text for text, _ in texts], "label": [label for _, label in texts]}
        columns["index"] = [-1] * len(texts)  # that of no row of a file
        kept = concatenate_datasets([kept, Dataset.from_dict(columns, features=kept.features)])
    parts = Parts(kept, selection, report, reward, len(texts), left_out)
    check_unlabelled(config.unlabelled, config.task, task_type.label_type, len(task.text_columns))
    if config.unlabelled is None:
        return parts
    drawn = [part for name, part in parts.named.items() if name not in report]
    known, scored = ([text for part in some for (text,) in task_type.texts(part)] for some in (drawn, report.values()))
    column, skip = config.text_columns[0], config.skip_bad_rows
    found, numbers = read_unlabelled(config.unlabelled, column, known, scored, skip_bad_rows=skip)
    unlabelled = Dataset.from_dict({"text": found, "index": list(range(len(found)))})
    return replace(parts, unlabelled=unlabelled, unlabelled_numbers=numbers)


def _names(
    config: RunConfig, task: Task, rows: int, held_out: Sequence[Dataset]
) -> tuple[list[tuple[str, Any]], tuple[str, ...]]:
    """Find the names of classes that are rows beside a number of ``rows``, as texts with labels, and those left out."""
    task_type, file = task.type, config.label_names_file
    reason = why_no_names(config.task, task_type.label_type, len(task.text_columns))
    check_label_names(config.label_names, reason)
    if reason or config.label_names is None or (file is None and why_no_rows(task_type.label_names, rows)):
        return [], ()
    found: list[tuple[str, Any]]
    if file is None:
        names = telling_names(task_type.label_names)
        found = [(in_words(name), task_type.label_of([name])) for name in names]
    else:
        found = read_label_names(file, replace(task_type, unknown_names=()))
    scored = {same_text(text) for part in held_out for (text,) in task_type.texts(part)}
    left_out = tuple(text for text, _ in found if same_text(text) in scored)
    return [(text, label) for text, label in found if same_text(text) not in scored], left_out


def encode_parts(config: RunConfig, task: Task, parts: Parts, tokenizer: PreTrainedTokenizerBase) -> Parts:
    """Tokenize all parts."""
    encoded = partial(encode, task=task, tokenizer=tokenizer, max_length=config.max_length)
    others = (parts.selection, parts.reward, parts.unlabelled)
    selection, reward, unlabelled = (None if rows is None else encoded(rows) for rows in others)
    report = {name: encoded(rows) for name, rows in parts.report.items()}
    train = encoded(parts.train)
    return replace(parts, train=train, selection=selection, report=report, reward=reward, unlabelled=unlabelled)


def sampled_rows(parts: Parts) -> dict[str, list[int]]:
    """Return the indices of the train split's rows used for training, selection and rewards."""
    return {name: rows["index"][:] for name, rows in parts.real.named.items() if name not in parts.report}


def fingerprint(parts: Parts) -> str:
    """Hash the rows that determine the weights, which must be the same when a run is resumed."""
    others = [part for part in (parts.reward, parts.unlabelled) if part is not None]
    return data_digest(parts.train, parts.selection, *others)
