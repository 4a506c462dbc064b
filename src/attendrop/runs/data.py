"""Data of a run: loading, splitting, encoding, the report on them, and the options that follow from them.

All constants of the recipe for small data are here: enough optimizer steps that plain fine-tuning fits the training
rows, at a learning rate that a head which starts from the frozen encoder survives.

Runs of one process may share results, such as the frozen encoder's features of the same evaluation rows: not until a
process that performs many of them asks for it (:func:`share_results`). A key holds everything that a result depends on,
so that a run with shared results ends with the same scores, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from datasets import Dataset, concatenate_datasets
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.runs.config import RunConfig
from attendrop.runs.model_loading import default_pooling, load_config, refuse_untrainable
from attendrop.runs.run_folder import number_of_processes
from attendrop.support.files import known_sha256
from attendrop.tasks import class_names, registry, splits
from attendrop.tasks.base import Task, TaskData, encode, truncated_rows, with_others
from attendrop.tasks.custom_files import OOD_VALUES, load_files
from attendrop.tasks.metrics import data_digest, texts_alone, with_metric
from attendrop.tasks.table import files_of, joined_labels, plain, skipped_places
from attendrop.tasks.tokenization import LONG_TEXTS, columns_of, texts_of, unknown_rows
from attendrop.tasks.types.base import TaskType
from attendrop.wording import NAMES_LEFT, aligned, counted, counts_of, names_of

BATCH_SIZE = 16
# Bounds on epochs and steps for small and large data sets.
EPOCHS, LEAST_STEPS, MOST_STEPS, LEAST_EPOCHS = 10, 240, 1200, 3
# Learning rates by the largest hidden size that they are for.
LEARNING_RATES = ((512, 1e-4), (900, 5e-5), (math.inf, 2e-5))
# For adapters, which take higher rates: Hu et al. (2022) tune RoBERTa-base with 4e-4 to 5e-4, large with 2e-4 to 4e-4.
LORA_FACTOR = 10
# Fraction of rows to hold out if a selection split is requested, or there is no other set to score on.
SELECTION_FRACTION = 0.1
# Options that the recipe may decide.
DECIDED = ("epochs", "max_steps", "batch_size", "learning_rate", "pooling", "head_init", "selection_fraction", "refit")
# Seed of the rows that are set aside for the final scores: these do not depend on the seed of a run.
_TEST_SEED = 0
# File of the rows that were skipped, in the folder of the run.
SKIPPED = "skipped_rows.jsonl"
_MOST_PAIRS = 5  # of similar classes that are named


# The results that are shared, by key, with their sizes in bytes, the one that was used least recently first; None where
# nothing is shared.
_results: OrderedDict[str, tuple[Any, int]] | None = None
MOST_BYTES = 256 * 2**20  # that are kept
Result = TypeVar("Result")


@dataclass(frozen=True)
class Parts:
    """The splits of the data of a run."""

    train: Dataset
    selection: Dataset | None  # rows that select the best epoch; None to keep the last
    report: dict[str, Dataset]  # rows of the reported scores, by name
    reward: Dataset | None = None  # rows on which the method scores models during training, if it does
    names: int = 0  # number of the last training rows that are names of classes, by the option ``label_names``
    names_left_out: tuple[str, ...] = ()  # such texts that are no rows, because a row has them that is not trained on
    unlabelled: Dataset | None = None  # texts of the option ``unlabelled``, and their numbers (`read_unlabelled`)
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
        others, reported = {"selection": self.selection, "reward": self.reward}, set(map(id, self.report.values()))
        kept = {name: rows for name, rows in others.items() if rows is not None and id(rows) not in reported}
        return {"train": self.train} | kept | self.report

    def trained_on(self, label_names: str | None) -> str:
        """Count the training rows in words, given the option: "385 rows and 77 names of classes"."""
        rows = counted(len(self.train) - self.names, "row")
        return f"{rows} and {class_names.counted_names(self.names, label_names)}" if self.names else rows


def load_data(config: RunConfig) -> TaskData:
    """Load the task, or custom files; runs in a process may share what they have loaded."""
    named = (config.task, config.data_dir, config.train_file, config.eval_file)
    read_by = ("text_columns", "label_column", "label_type", "label_map", "unknown_labels", "skip_bad_rows")
    options = {name: getattr(config, name) for name in (*read_by, "ood_column", "group_column", "with_columns")}

    if config.task is not None:
        load = partial(registry.load_task, config.task, data_dir=config.data_dir)
    else:
        load = partial(load_files, train_file=str(config.train_file), eval_file=config.eval_file, **options)
    data = cached(
        lambda: [*named, [[str(file), known_sha256(file)] for file in data_files(config) if file.is_file()], options],
        load,
        lambda data: sum(split.data.nbytes for split in data.splits.values()),
        kind="data",
    )
    task_type = data.task.type.with_options(config.task_options)
    task = replace(data.task.with_long_texts(config.long_texts), type=task_type)
    return replace(data, task=task if config.metric is None else with_metric(task, config.metric))


def data_files(config: RunConfig) -> list[Path]:
    """List the files of a run's data, which may be missing; data of the hub have none."""
    if config.task is None:
        names = None if config.label_names == class_names.AUTO else config.label_names
        named = (config.train_file, config.eval_file, config.label_map, names, config.unlabelled)
        return [file for name in named if name is not None for file in files_of(name)]
    try:
        return registry.task_files(config.task, config.data_dir)
    except AttendropError:  # loading reports what is wrong
        return []


def divide(config: RunConfig, data: TaskData) -> Parts:
    """Set the test rows aside, limit the training rows, hold out the selection split, then the reward rows.

    Names of classes are added to the training rows last, and other columns put in front of texts, so that they change
    none of these. Unlabelled texts are none of the training file's rows that are drawn.
    """
    rows, task, task_type, shifted = data.splits["train"], data.task, data.task.type, {}
    given = len(rows)
    if config.ood or config.ood_column is not None:  # the same for every seed, as the test rows
        fraction = config.test_fraction or 0.25
        if config.ood_column is None:
            rows, shifted["ood"] = splits.hold_out_like(rows, task, fraction, _TEST_SEED)
        else:
            values = rows[OOD_VALUES][:]
            rows, shifted["ood"] = splits.hold_out_values(rows, config.ood_column, values, fraction)
    if config.test_fraction:
        rows, held = splits.hold_out(rows, task, config.test_fraction, _TEST_SEED)
        assert held is not None
        report = {"dev": held}
    else:
        report = {name: split for name, split in data.splits.items() if name != "train"}
    report |= shifted
    if config.shots is not None:
        rows = splits.few_shot(rows, task, config.shots, config.seed)
        given = len(rows)
    if config.max_train_samples is not None:
        rows = splits.subset(rows, config.max_train_samples, config.seed)
        given = min(given, config.max_train_samples)
    for _ in range(config.halvings or 0):  # names of classes stay rows, or none, as with all of the rows
        rows = splits.hold_out(rows, task, 0.5, config.seed)[0]
    if config.protocol == "paper":
        kept, selection = rows, report["dev"]
    else:
        kept, selection = splits.hold_out(rows, task, config.selection_fraction or 0.0, config.seed)
    reward = report["dev"] if config.rewarded_on == "eval" else None
    if config.rewarded_on == "split":
        kept, reward = splits.hold_out(kept, task, config.regularizer.rewarded_fraction(), config.seed)
    held_out = [*report.values(), *(part for part in (selection, reward) if part is not None)]
    of_data = (config.task, task_type.label_type, len(task.text_columns))
    named: list[tuple[str, Any]] = []  # names of classes that may be rows, with their labels
    if class_names.check_texts(config.label_names, config.unlabelled, *of_data) or config.label_names is None:
        pass
    elif config.label_names != class_names.AUTO:
        named = class_names.read_label_names(config.label_names, replace(task_type, unknown_names=()))
    # By the rows that are given, not those that are left, so that a comparison's last model does as those compared.
    elif not class_names.why_no_rows(task_type.label_names, given):
        names = class_names.telling_names(task_type.label_names)
        named = [(class_names.in_words(name), task_type.label_of([name])) for name in names]
    held_texts = {class_names.same_text(text) for part in held_out if named for (text,) in task_type.texts(part)}
    left_out = tuple(text for text, _ in named if class_names.same_text(text) in held_texts)
    if texts := [(text, label) for text, label in named if text not in left_out]:
        columns: dict[str, list[Any]] = {name: [""] * len(texts) for name in kept.column_names}
        columns |= {"text": [text for text, _ in texts], "label": [label for _, label in texts]}
        columns["index"] = [-1] * len(texts)  # that of no row of a file
        kept = concatenate_datasets([kept, Dataset.from_dict(columns, features=kept.features)])
    whole = {id(rows): with_others(rows) for rows in held_out}  # of one set under two names, one: see `Parts.named`
    selection, reward = (None if rows is None else whole[id(rows)] for rows in (selection, reward))
    report = {name: whole[id(rows)] for name, rows in report.items()}
    parts = Parts(with_others(kept), selection, report, reward, len(texts), left_out)
    if config.unlabelled is None:
        return parts
    drawn = [part for name, part in parts.named.items() if name not in report]
    known, scored = ([text for part in some for (text,) in task_type.texts(part)] for some in (drawn, report.values()))
    column, skip = config.text_columns[0], config.skip_bad_rows
    found, numbers = class_names.read_unlabelled(config.unlabelled, column, known, scored, skip_bad_rows=skip)
    unlabelled = Dataset.from_dict({"text": found, "index": list(range(len(found)))})
    return replace(parts, unlabelled=unlabelled, unlabelled_numbers=numbers)


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


# The report on the data ----------------------------------------------------------------------------------------------


def data_report(
    data: TaskData, parts: Parts, encoded: Parts, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, Any]:
    """Describe the rows of a run, as plain values; raises AttendropError if the model knows no token of a part.

    ``parts`` have the ``rows`` of each, what :meth:`TaskType.describe_labels` says of them, how many are ``truncated``,
    ``unknown`` (without a known token), ``duplicates`` (of a text of an earlier row) and ``in_train``, and the counts
    of ``unknown_labels``. ``conflicts`` are texts of train with several labels; ``similar_classes`` differ in case
    only, and so may texts that are called the same.
    """
    task_type = data.task.type
    limit = min(max_length, getattr(tokenizer, "model_max_length", max_length))
    texts = {name: [tuple(map(plain, text)) for text in task_type.texts(rows)] for name, rows in parts.named.items()}
    known = set(texts_alone(parts.train, data.task))
    described: dict[str, dict[str, Any]] = {}
    for name, rows in parts.named.items():
        columns = columns_of(encoded.named[name])
        described[name] = {
            "rows": len(rows),
            **task_type.describe_labels(rows),
            "truncated": truncated_rows(columns_of(rows), columns, data.task, tokenizer, limit),
            "unknown": unknown_rows(columns, tokenizer),
            "duplicates": len(texts[name]) - len(set(texts[name])),
        }
        if described[name]["unknown"] == len(rows):
            raise AttendropError(
                f"None of the {len(rows)} rows of {name} has a token that the model knows; use one of their language."
            )
        if task_type.unknown_names:
            described[name]["unknown_labels"] = task_type.unknown_counts(rows["label"][:])
        if name != "train":
            described[name]["in_train"] = sum(text in known for text in texts_alone(rows, data.task))
    labels_of, first = defaultdict[tuple[str, ...], list[Any]](list), dict[str, str]()
    for text, label in zip(texts["train"], parts.train["label"][:], strict=True):
        labels_of[text].append(label)
    several = {text: given for text, given in labels_of.items() if any(label != given[0] for label in given)}
    conflicts: dict[str, Any] = {"texts": len(several), "rows": sum(map(len, several.values())), "example": None}
    if several:
        text, given = next(iter(several.items()))
        text = task_type.texts(parts.train)[texts["train"].index(text)]  # as it is written
        names = dict.fromkeys(task_type.shown_label(label) for label in sorted(given, key=str))
        shown = " | ".join(text)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        conflicts["example"] = f"{shown!r}: {', '.join(map(repr, names))}"
    classes = task_type.label_names[: task_type.num_classes]
    return {
        "kind": data.task.type.kind,
        "max_length": limit,
        "long_texts": data.task.long_texts,
        "parts": described,
        "conflicts": conflicts,
        "similar_classes": [
            [first[plain(name)], name] for name in classes if first.setdefault(plain(name), name) != name
        ],
        "likeness": splits.class_likeness(parts.train, data.task),
        "skipped": len(data.skipped),
        "skipped_places": skipped_places(data.skipped),
    }


def report_table(report: dict[str, Any], task_type: TaskType) -> str:
    """Format the report as a table with a column for each part.

    Its lines on labels depend on what :meth:`TaskType.describe_labels` says of them; of more than 12 classes, one line
    has the smallest and the largest number of rows.
    """
    parts = list(report["parts"].values())
    first = parts[0]
    lines = [["", *report["parts"]], ["rows", *(str(part["rows"]) for part in parts)]]
    kind = next((kind for kind in ("entities", "tags", "classes", "labels") if kind in first), None)
    of_words = kind is not None and "words" in first
    if "numbers" in first:
        lines.append(["numbers", *("{min:g} to {max:g}".format(**part["numbers"]) for part in parts)])
        lines.append(["  mean", *(f"{part['numbers']['mean']:.3g}" for part in parts)])
    elif "choices" in first:
        forms = ("{min} to {max}" if part["choices"]["min"] < part["choices"]["max"] else "{max}" for part in parts)
        lines.append(["choices", *(form.format(**part["choices"]) for form, part in zip(forms, parts, strict=True))])
        for name in max((part["correct"] for part in parts), key=len):
            lines.append([f"  {name} is correct", *(str(part["correct"].get(name, 0)) for part in parts)])
    elif kind is None:
        lines.append(["translation, words", *("{mean:.1f}, up to {max}".format(**part["words"]) for part in parts)])
    else:
        lines += [["words", *(str(part["words"]) for part in parts)]] if of_words else []
        if len(first[kind]) <= 12:
            lines += [[f"  {name}", *(str(part[kind][name]) for part in parts)] for name in first[kind]]
        else:
            rows_of = {"classes": "rows of a class", "labels": "rows of a label"}
            title, form = (f"  {kind}", "{} to {} of each") if of_words else (rows_of[kind], "{} to {}")
            lines.append([title, *(form.format(min(part[kind].values()), max(part[kind].values())) for part in parts)])
        lines += [["  no label", *(str(part["without"]) for part in parts)]] if "without" in first else []
    cut = (f"{100 * part['truncated'] / max(part['rows'], 1):.1f} %" for part in parts)
    treated = dict(zip(LONG_TEXTS, ("cut", "cut in the middle", "in windows"), strict=True))[report["long_texts"]]
    lines.append([f"over {report['max_length']} tokens, {treated}", *cut])
    return "\n".join([f"Data: {task_type.kind}, {task_type.labels_are}", *aligned(lines, NAMES_LEFT)])


def report_warnings(report: dict[str, Any], task_type: TaskType, of_names: Sequence[Any] = ()) -> Iterator[str]:
    """Yield warnings about the data, one sentence each, given the labels of the names that are training rows, too."""
    named = {task_type.label_names[number] for label in of_names for number in task_type.ids_in(label)}
    parts = report["parts"]
    if report["skipped"]:
        skipped = counted(report["skipped"], "invalid row")
        yield f"Skipped {skipped} ({report['skipped_places']}); {SKIPPED} in the run's folder lists them."
    if similar := report["similar_classes"]:
        pairs = [f"{first!r} and {second!r}" for first, second in similar[:_MOST_PAIRS]]
        more = [counted(len(similar) - _MOST_PAIRS, "more pair")] if len(similar) > _MOST_PAIRS else []
        yield f"Classes that differ only in case or spaces: {'; '.join(pairs + more)}."
    # On train and reward, the model that is kept has no score.
    train, scored = parts["train"], [part for name, part in parts.items() if name not in ("train", "reward")]
    for kind in {"classes", "labels", "tags"} & train.keys():
        missing = [name for name, count in train[kind].items() if count == 0 and name not in named]
        found = {f"No row of train has one of these {kind}, which cannot be learnt": missing}
        if scored:  # a class of a single row is never held out
            single = [name for name, count in train[kind].items() if count == 1]
            unscored = [name for name in single if not any(part[kind][name] for part in scored)]
            found[f"These {kind} occur once, in a row that is trained on, so that no score is of them"] = unscored
        yield from (f"{what}: {names_of(names, most=10)}." for what, names in found.items() if names)
        if kind == "classes" and (joined := joined_labels(train[kind])):
            yield f"The class {joined}."
    for name, part in parts.items():
        if unknown := part.get("unknown_labels"):
            lacking = f"{counted(sum(unknown.values()), 'label')} of {name} not in train"
            yield f"{lacking} count as wrong: {counts_of(unknown)}."
        if part.get("in_train"):
            percent = 100 * part["in_train"] / part["rows"]
            yield (
                f"{part['in_train']} of {part['rows']} rows of {name} ({percent:.1f} %) have a text that is in train, "
                "too: the score on them is optimistic."
            )
    conflicts = report["conflicts"]
    if count := conflicts["texts"]:
        several = f"{counted(count, 'text')} of train {'has' if count == 1 else 'have'} several labels"
        yield f"{several}, in {conflicts['rows']} rows, such as {conflicts['example']}."
    if count := train["duplicates"]:
        yield f"{counted(count, 'row')} of train repeat{'s' if count == 1 else ''} the text of another row."
    likeness = report["likeness"] if "ood" not in parts else None
    # Random rows of Banking77 and HWU64 are below 0.12; a row and its four nearest of twenty are above 0.2.
    if likeness is not None and likeness["within"] >= max(0.15, 2 * likeness["between"]):
        told = "Recorded attributions gained 0.007 [0.005, 0.009] accuracy on such rows (docs/does-it-help.md, step 5)."
        yield (
            f"The texts of a class resemble each other (mean cosine {likeness['within']:.2f}, of different classes "
            f"{likeness['between']:.2f}): on other phrases the model may be worse; --ood measures this."
            + (f" {told}" if len(train["classes"]) >= 20 and train["rows"] <= 20 * len(train["classes"]) else "")
        )
    for name, part in parts.items():
        if part["unknown"]:
            yield f"{part['unknown']} of {part['rows']} rows of {name} have no token that the model knows."


# What runs share -----------------------------------------------------------------------------------------------------


def share_results(shared: bool = True) -> None:
    """Share results between the runs of this process from now on; or forget them, and share none any longer."""
    global _results
    _results = (OrderedDict() if _results is None else _results) if shared else None


def cached(
    key: Callable[[], Any], compute: Callable[[], Result], size: Callable[[Result], int], *, kind: str
) -> Result:
    """Return a result that this process has computed before, or compute it; nobody may change it afterwards.

    ``key`` returns everything that the result depends on, as JSON values; it is called only where results are shared.
    ``size`` returns the size of a result in bytes; ``kind`` names the computation.
    """
    if _results is None:
        return compute()
    digest = hashlib.sha256(json.dumps([kind, key()], sort_keys=True).encode()).hexdigest()
    result, needed = _results.pop(digest, None) or ((found := compute()), size(found))
    if needed <= MOST_BYTES:
        _results[digest] = result, needed  # as the newest
    while sum(kept for _, kept in _results.values()) > MOST_BYTES:
        _results.popitem(last=False)
    return result


def digest_of_model(model: nn.Module, *, without: nn.Module | None = None) -> str:
    """Hash the class, the configuration and the weights of a model, except those of one of its modules."""
    left_out = set() if without is None else {id(tensor) for tensor in without.parameters()}
    digest = hashlib.sha256(f"{type(model).__name__} {getattr(model, 'config', None)}".encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if id(tensor) not in left_out:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


# What follows from rows and model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResolvedRun:
    """Run with resolved options, which are read only here."""

    config: RunConfig  # the options, all decided except the start of the head, which depends on the model
    given: RunConfig  # the options as they were given
    data: TaskData  # the task with all its rows
    parts: Parts  # the splits of the run, not encoded

    @property
    def method(self) -> Method:
        """Method with its options."""
        return self.config.regularizer

    @property
    def task(self) -> Task:
        """Task of the run."""
        return self.data.task

    @property
    def chooses_epoch(self) -> bool:
        """Whether the best epoch is kept (if a selection split was requested) instead of the last."""
        if self.parts.selection is None:
            return False
        asked = bool(self.given.selection_fraction) or self.given.patience is not None
        return asked or self.config.protocol == "paper"

    def on_all_rows(self) -> ResolvedRun:
        """Return the run on all training rows, including those held out here, for as many epochs or steps."""
        config = self.config.filled(selection_fraction=0.0, refit=False, patience=None)
        return ResolvedRun(config, config, self.data, divide(config, self.data))


def resolve_run(config: RunConfig, decided: Mapping[str, Any] | None = None) -> ResolvedRun:
    """Resolve the options of a run: build its method, load and split its data, and apply the recipe.

    - Rows are held out only if something needs them: a choice of the epoch that was asked for, calibration, or a score
      if there are no evaluation rows. Finally the model is also trained on them, unless there is no step to take.
    - A step has 16 rows. Steps are 10 epochs, but at least 240 and at most 1,200; for large sets, 3 epochs if that is
      more.
    - The learning rate falls with the model's hidden size, see ``LEARNING_RATES``. An adapter's is ten times that.
    - The pooling is what the model was trained with, see :func:`attendrop.runs.model_loading.default_pooling`; None if
      the model offers no choice.

    ``decided`` are the options of a run that is resumed as they were decided when it began.
    """
    data = load_data(config)
    task_type, found = data.task.type, config.filled(**(decided or {}))
    asked = [name for name in ("calibrate", "accept", "class_weights") if getattr(config, name)]
    if asked and not task_type.num_classes:
        option = asked[0].replace("_", "-")
        raise AttendropError(f"{option} is for one class a row; the labels are {task_type.labels_are}: omit it.")
    if config.accept is not None and "dev" not in data.splits and not config.test_fraction:
        raise AttendropError("accept needs evaluation rows, and this task has none; give your own file.")
    # The rows.
    holds_out, fraction, refit = found.protocol == "held-out", found.selection_fraction, found.refit
    if fraction is None:
        has_eval_rows = "dev" in data.splits or config.test_fraction
        needed = found.patience is not None or refit or found.calibrate or not has_eval_rows
        fraction = SELECTION_FRACTION if needed and holds_out else 0.0
    if refit is None:
        refit = fraction > 0 and holds_out and found.max_steps != 0
    found = found.filled(selection_fraction=fraction, refit=refit, batch_size=found.batch_size or BATCH_SIZE)
    parts = divide(found, data)
    # The steps do not depend on the method, so that methods that hold rows out are compared over the same steps.
    held_out = parts.selection if holds_out else None
    rewards = parts.reward if found.rewarded_on == "split" else None
    rows = sum(len(part) for part in (parts.train, held_out, rewards) if part is not None)
    # The training.
    refuse_untrainable(config.model)
    assert found.batch_size is not None
    if found.epochs is None and found.max_steps is None:
        in_step = found.batch_size * found.gradient_accumulation * number_of_processes()
        found = found.filled(max_steps=steps(rows, in_step))
    if not task_type.one_vector:
        if found.pooling == "mean":
            raise AttendropError("pooling 'mean' is for tasks with one prediction for a whole text; omit it here.")
        found = found.filled(pooling=None)
    elif found.pooling == "auto":
        found = found.filled(pooling=default_pooling(config.model))
    if found.learning_rate is None:
        rate = learning_rate(load_config(config.model))
        found = found.filled(learning_rate=rate if config.lora is None else rate * LORA_FACTOR)
    method = found.regularizer.for_data(len(task_type.strata), rows)
    if method != found.regularizer:
        found = found.filled(options=method.options())
    return ResolvedRun(found, config, data, parts)


def steps(rows: int, batch_size: int) -> int:
    """Return the number of optimizer steps for a number of rows, ``batch_size`` of them in a step."""
    of_small = min(max(math.ceil(EPOCHS * rows / BATCH_SIZE), LEAST_STEPS), MOST_STEPS)
    return max(of_small, math.ceil(LEAST_EPOCHS * rows / batch_size))


def learning_rate(config: PreTrainedConfig) -> float:
    """Return the learning rate for a model, given its configuration."""
    size = getattr(config.get_text_config(), "hidden_size", 0)
    return next(rate for largest, rate in LEARNING_RATES if size <= largest)
