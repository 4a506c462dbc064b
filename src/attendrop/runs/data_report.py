"""Report on the data of a run: its rows, labels, duplicates and conflicts, as values, as a table and as warnings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.runs.data import Parts
from attendrop.tasks.base import TaskData
from attendrop.tasks.splits import class_likeness
from attendrop.tasks.table import joined_labels, plain, skipped_places
from attendrop.tasks.tokenization import HEAD, HEAD_TAIL, WINDOWS, columns_of, of_documents, unknown_rows
from attendrop.tasks.types.base import TaskType
from attendrop.wording import NAMES_LEFT, aligned, counted, counts_of, names_of

# File of the rows that were skipped, in the folder of the run.
SKIPPED = "skipped_rows.jsonl"
_TREATED = {HEAD: "cut", HEAD_TAIL: "cut in the middle", WINDOWS: "in windows"}

# Parts on which the model that is kept has no score.
_UNSCORED = ("train", "reward")
# Up to this many classes are listed in tables, and named in warnings.
_MOST_LISTED, _SHOWN, _ONE = 12, 10, {"classes": "class", "labels": "label"}
# Rows that are tokenised together, where only their lengths are kept: a token takes 120 bytes until then.
_AT_A_TIME = 1000
_MOST_PAIRS = 5  # of similar classes that are named
# Random rows of Banking77 and HWU64 are below 0.12; a row and its four nearest of twenty are above 0.2.
ALIKE = 0.15
# Such rows as those of step 5 of docs/does-it-help.md, and what it found there.
_MANY_CLASSES, _FEW_ROWS = 20, 20
_FOUND = "Recorded attributions gained 0.007 [0.005, 0.009] accuracy on such rows (docs/does-it-help.md, step 5)."


def data_report(
    data: TaskData, parts: Parts, encoded: Parts, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, Any]:
    """Describe the rows of a run; raises AttendropError if no row of a part has a token that the model knows.

    Returns:
        Plain values: ``kind``; ``parts``, each with ``rows``, ``classes`` (rows of each) or ``numbers`` (``min``,
        ``mean``, ``max``), ``unknown_labels`` (counts of labels that train lacks, if any), what
        ``truncated`` and ``unknown`` rows, ``duplicates`` (rows whose text an earlier row of the part has) and
        ``in_train`` (rows whose text is in train, too); ``conflicts`` in train (``texts`` with several labels, their
        ``rows``, an ``example``); ``similar_classes``, which differ in case only; ``skipped`` bad rows, and
        ``skipped_places``, the files and lines of the first of them.
    """
    task_type = data.task.type
    limit = min(max_length, getattr(tokenizer, "model_max_length", max_length))
    texts = {name: task_type.texts(rows) for name, rows in parts.named.items()}
    tokens = encoded.named
    described: dict[str, dict[str, Any]] = {}
    for name, rows in parts.named.items():
        described[name] = {
            "rows": len(rows),
            **task_type.describe_labels(rows),
            **_input_report(task_type, rows, columns_of(tokens[name]), tokenizer, limit),
            "duplicates": len(texts[name]) - len(set(texts[name])),
        }
        if described[name].get("unknown") == len(rows):
            raise AttendropError(
                f"None of the {len(rows)} rows of {name} has a token that the model knows; use a model of their "
                "language, or one with its own tokenizer."
            )
        if task_type.unknown_names:
            described[name]["unknown_labels"] = task_type.unknown_counts(rows["label"][:])
        if name != "train":
            known = set(texts["train"])
            described[name]["in_train"] = sum(text in known for text in texts[name])
    return {
        "kind": data.task.kind,
        "max_length": limit,
        "long_texts": data.task.long_texts,
        "parts": described,
        "conflicts": _conflicts(texts["train"], parts.train, task_type),
        "similar_classes": _similar(task_type.label_names[: task_type.num_classes]),
        "likeness": None if (found := class_likeness(parts.train, data.task)) is None else asdict(found),
        "skipped": len(data.skipped),
        "skipped_places": skipped_places(data.skipped),
    }


def _input_report(
    task_type: TaskType, rows: Dataset, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, limit: int
) -> dict[str, int]:
    """Count rows ``truncated`` to ``limit`` tokens, and ``unknown``, without a token that the tokenizer knows."""
    full = [row for row, length in enumerate(of_documents(encoded["length"], encoded)) if length >= limit]
    parts = rows.select(full).iter(_AT_A_TIME)
    whole = (length for part in parts for length in task_type.lengths(task_type.tokenize(part, tokenizer, None)))
    truncated = sum(length > limit for length in whole)
    return {"truncated": truncated, "unknown": unknown_rows(encoded, tokenizer)}


def _similar(classes: Sequence[str]) -> list[list[str]]:
    """List pairs of classes that differ only in case and spaces."""
    first: dict[str, str] = {}
    keys = [(name, plain(name)) for name in classes]
    return [[first[key], name] for name, key in keys if first.setdefault(key, name) != name]


def report_table(report: dict[str, Any], task_type: TaskType) -> str:
    """Format the report as a table with a column for each part."""
    parts = report["parts"]
    lines = [["", *parts], ["rows", *(str(part["rows"]) for part in parts.values())]]
    lines += label_lines(list(parts.values()))
    if "truncated" in parts["train"]:
        cut = (f"{100 * part['truncated'] / max(part['rows'], 1):.1f} %" for part in parts.values())
        lines.append([f"over {report['max_length']} tokens, {_TREATED[report.get('long_texts', HEAD)]}", *cut])
    return "\n".join([f"Data: {task_type.kind}, {task_type.labels_are}", *aligned(lines, NAMES_LEFT)])


def label_lines(parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of a table of labels: a title, and a cell for each result of :meth:`TaskType.describe_labels`.

    Of more than 12 classes, one line has the smallest and the largest number of rows.
    """
    first = parts[0]
    if "numbers" in first:
        ranges = ("{min:g} to {max:g}".format(**part["numbers"]) for part in parts)
        return [["numbers", *ranges], ["  mean", *(f"{part['numbers']['mean']:.3g}" for part in parts)]]
    if "choices" in first:
        forms = ("{min} to {max}" if part["choices"]["min"] < part["choices"]["max"] else "{max}" for part in parts)
        counts = ["choices", *(form.format(**part["choices"]) for form, part in zip(forms, parts, strict=True))]
        names = max((part["correct"] for part in parts), key=len)
        correct = [[f"  {name} is correct", *(str(part["correct"].get(name, 0)) for part in parts)] for name in names]
        return [counts, *correct]
    kind = next((kind for kind in ("entities", "tags", "classes", "labels") if kind in first), None)
    if kind is None:  # translations
        return [["translation, words", *("{mean:.1f}, up to {max}".format(**part["words"]) for part in parts)]]
    of_words = "words" in first
    lines = [["words", *(str(part["words"]) for part in parts)]] if of_words else []
    if len(first[kind]) <= _MOST_LISTED:
        lines += [[f"  {name}", *(str(part[kind][name]) for part in parts)] for name in first[kind]]
    else:
        title, form = (f"  {kind}", "{} to {} of each") if of_words else (f"rows of a {_ONE[kind]}", "{} to {}")
        lines.append([title, *(form.format(min(part[kind].values()), max(part[kind].values())) for part in parts)])
    return lines + ([["  no label", *(str(part["without"]) for part in parts)]] if "without" in first else [])


def label_warnings(train: Mapping[str, Any], scored: Sequence[Mapping[str, Any]] = ()) -> Iterator[str]:
    """Yield warnings about named labels, given the :meth:`TaskType.describe_labels` of training and of scored rows."""
    for kind in {"classes", "labels", "tags"} & train.keys():
        missing = [name for name, count in train[kind].items() if count == 0]
        found = {f"No row of train has one of these {kind}, which cannot be learnt": missing}
        if scored:  # a class of a single row is never held out
            single = [name for name, count in train[kind].items() if count == 1]
            unscored = [name for name in single if not any(part[kind][name] for part in scored)]
            found[f"These {kind} occur once, in a row that is trained on, so that no score is of them"] = unscored
        yield from (f"{what}: {names_of(names, most=_SHOWN)}." for what, names in found.items() if names)
        if kind == "classes" and (joined := joined_labels(train[kind])):
            yield f"The class {joined}."


def report_warnings(report: dict[str, Any], task_type: TaskType) -> Iterator[str]:
    """Yield warnings about the data, one sentence each."""
    parts = report["parts"]
    if similar := report["similar_classes"]:
        pairs = [f"{first!r} and {second!r}" for first, second in similar[:_MOST_PAIRS]]
        more = [counted(len(similar) - _MOST_PAIRS, "more pair")] if len(similar) > _MOST_PAIRS else []
        yield f"Classes that differ only in case or spaces: {'; '.join(pairs + more)}."
    yield from label_warnings(parts["train"], [part for name, part in parts.items() if name not in _UNSCORED])
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
    if conflicts["texts"]:
        count = conflicts["texts"]
        yield (
            f"{counted(count, 'text')} of train {'has' if count == 1 else 'have'} several labels, in "
            f"{conflicts['rows']} rows, such as {conflicts['example']}."
        )
    if count := parts["train"]["duplicates"]:
        yield f"{counted(count, 'row')} of train repeat{'s' if count == 1 else ''} the text of another row."
    likeness = report["likeness"] if "ood" not in parts else None
    if likeness is not None and likeness["within"] >= max(ALIKE, 2 * likeness["between"]):
        classes, rows = len(parts["train"]["classes"]), parts["train"]["rows"]
        yield (
            f"The texts of a class resemble each other (mean cosine {likeness['within']:.2f}, of different classes "
            f"{likeness['between']:.2f}): on other phrases the model may be worse; --ood measures this."
            + (f" {_FOUND}" if classes >= _MANY_CLASSES and rows <= _FEW_ROWS * classes else "")
        )
    for name, part in parts.items():
        if part.get("unknown"):
            yield f"{part['unknown']} of {part['rows']} rows of {name} have no token that the model knows."


def _conflicts(texts: Sequence[tuple[str, ...]], rows: Dataset, task_type: TaskType) -> dict[str, Any]:
    labels_of: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    labels = rows["label"][:] if "label" in rows.column_names else [None] * len(rows)
    for text, label in zip(texts, labels, strict=True):
        labels_of[text].append(label)
    conflicting = {text: given for text, given in labels_of.items() if any(label != given[0] for label in given)}
    found: dict[str, Any] = {"texts": len(conflicting), "rows": sum(map(len, conflicting.values())), "example": None}
    for text, labels in list(conflicting.items())[:1]:
        names = list(dict.fromkeys(task_type.shown_label(label) for label in sorted(labels, key=str)))
        shown = " | ".join(task_type.texts(rows.select([texts.index(text)]))[0])
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        found["example"] = f"{shown!r}: {', '.join(map(repr, names))}"
    return found
