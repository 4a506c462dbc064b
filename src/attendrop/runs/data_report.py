"""What the data of a run are, told before training: classes, lengths, duplicates, leaks and contradictions."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.runs.data import Parts
from attendrop.tasks.base import Task, TaskData

# So many classes are listed one by one; of more, the smallest and the largest size is told.
_LISTED_CLASSES = 12
_Text = tuple[str, ...]


def data_report(
    data: TaskData, parts: Parts, encoded: Parts, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, Any]:
    """Describe the rows of a run.

    Args:
        data: What was loaded.
        parts: Its rows, divided.
        encoded: The same rows, tokenised.
        tokenizer: The model's.
        max_length: In tokens; longer texts were cut.

    Returns:
        Plain values: ``kind``; ``parts``, of each ``rows``, ``classes`` (rows of each) or ``numbers`` (``min``,
        ``mean``, ``max``), ``truncated`` and ``unknown`` (rows that were cut; that have no token known to the
        tokenizer), ``duplicates`` (rows whose text an earlier row of the part has) and ``in_train`` (rows whose text
        is in train, too); ``conflicts`` in train (``texts`` with several labels, their ``rows``, an ``example``);
        ``similar_classes``, which differ in case only; ``skipped`` bad rows.
    """
    limit = min(max_length, tokenizer.model_max_length)
    texts = {name: _texts(rows) for name, rows in _named(parts).items()}
    tokens = _named(encoded)
    described = {}
    for name, rows in _named(parts).items():
        ids = tokens[name]["input_ids"]
        described[name] = {
            "rows": len(rows),
            **_labels(rows, data.task),
            "truncated": _truncated(texts[name], tokens[name]["length"], tokenizer, limit),
            "unknown": sum(not set(row) - set(tokenizer.all_special_ids) for row in ids),
            "duplicates": len(texts[name]) - len(set(texts[name])),
        }
        if name != "train":
            known = set(texts["train"])
            described[name]["in_train"] = sum(text in known for text in texts[name])
    return {
        "kind": data.task.kind,
        "max_length": limit,
        "parts": described,
        "conflicts": _conflicts(texts["train"], parts.train, data.task),
        "similar_classes": _similar(data.task.label_names),
        "skipped": len(data.skipped),
    }


def report_table(report: dict[str, Any]) -> str:
    """The report as a table for people: a column for each part."""
    parts = report["parts"]
    lines = [["", *parts], ["rows", *(str(part["rows"]) for part in parts.values())]]
    classes = list(parts["train"].get("classes", ()))
    if 0 < len(classes) <= _LISTED_CLASSES:
        lines += [[f"  {name}", *(str(part["classes"][name]) for part in parts.values())] for name in classes]
    elif classes:
        lines.append(["rows of a class", *(_span(part["classes"].values()) for part in parts.values())])
    else:
        lines.append(["numbers", *("{min:g} to {max:g}".format(**part["numbers"]) for part in parts.values())])
        lines.append(["  mean", *(f"{part['numbers']['mean']:.3g}" for part in parts.values())])
    cut = (f"{100 * part['truncated'] / max(part['rows'], 1):.1f} %" for part in parts.values())
    lines.append([f"over {report['max_length']} tokens, cut", *cut])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    kind = f"{report['kind']}, {len(classes)} classes" if classes else f"{report['kind']}, numbers to predict"
    return "\n".join(
        [f"Data: {kind}"]
        + [
            line[0].ljust(widths[0])
            + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
            for line in lines
        ]
    )


def report_warnings(report: dict[str, Any]) -> Iterator[str]:
    """What a person should look at before trusting a model of these data, a sentence each."""
    parts = report["parts"]
    for first, second in report["similar_classes"]:
        yield f"The classes {first!r} and {second!r} differ only in case or spaces: are they the same?"
    for name, count in parts["train"].get("classes", {}).items():
        if count == 0:
            yield f"No row of train is of class {name!r}: it cannot be learnt."
    for name, part in parts.items():
        if part.get("in_train"):
            percent = 100 * part["in_train"] / part["rows"]
            yield (
                f"{part['in_train']} of {part['rows']} rows of {name} ({percent:.1f} %) have a text that is in train, "
                "too: the score on them flatters."
            )
    conflicts = report["conflicts"]
    if conflicts["texts"]:
        yield (
            f"{conflicts['texts']} texts of train have several labels, in {conflicts['rows']} rows, such as "
            f"{conflicts['example']}."
        )
    if parts["train"]["duplicates"]:
        yield f"{parts['train']['duplicates']} rows of train repeat the text of another row."
    for name, part in parts.items():
        if part["unknown"]:
            yield f"{part['unknown']} of {part['rows']} rows of {name} have no token that the model knows."


def _named(parts: Parts) -> dict[str, Dataset]:
    """The parts by name, each set of rows once."""
    others = {"selection": parts.selection, "reward": parts.reward} | parts.report
    named: dict[str, Dataset] = {"train": parts.train}
    for name, rows in reversed(others.items()):  # under protocol 'paper', "selection" is a second name of "dev"
        if rows is not None and not any(rows is known for known in named.values()):
            named[name] = rows
    return {name: named[name] for name in ("train", *others) if name in named}


def _texts(rows: Dataset) -> list[_Text]:
    columns = [rows[name][:] for name in ("text", "text_pair") if name in rows.column_names]
    return list(zip(*columns, strict=True))


def _labels(rows: Dataset, task: Task) -> dict[str, Any]:
    labels = rows["label"][:]
    if task.label_names:
        counts = Counter(labels)
        return {"classes": {name: counts[number] for number, name in enumerate(task.label_names)}}
    return {"numbers": {"min": min(labels), "mean": statistics.fmean(labels), "max": max(labels)}}


def _truncated(texts: Sequence[_Text], lengths: Sequence[int], tokenizer: PreTrainedTokenizerBase, limit: int) -> int:
    """How many texts were cut: of those that fill the whole length, the ones that are longer."""
    full = [text for text, length in zip(texts, lengths, strict=True) if length >= limit]
    if not full:
        return 0
    whole = tokenizer(*map(list, zip(*full, strict=True)), verbose=False)
    return sum(len(ids) > limit for ids in whole["input_ids"])


def _conflicts(texts: Sequence[_Text], rows: Dataset, task: Task) -> dict[str, Any]:
    labels_of: defaultdict[_Text, list[Any]] = defaultdict(list)
    for text, label in zip(texts, rows["label"][:], strict=True):
        labels_of[text].append(label)
    conflicting = {text: labels for text, labels in labels_of.items() if len(set(labels)) > 1}
    found: dict[str, Any] = {"texts": len(conflicting), "rows": sum(map(len, conflicting.values())), "example": None}
    for text, labels in list(conflicting.items())[:1]:
        names = [task.label_names[label] if task.label_names else label for label in sorted(set(labels))]
        shown = " | ".join(text)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        found["example"] = f"{shown!r}: {', '.join(map(repr, names))}"
    return found


def _similar(names: Sequence[str]) -> list[list[str]]:
    """Pairs of classes that differ in case and spaces only."""
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        key = " ".join(name.casefold().split())
        if key in seen:
            pairs.append([seen[key], name])
        seen.setdefault(key, name)
    return pairs


def _span(counts: Any) -> str:
    return f"{min(counts)} to {max(counts)}"
