"""Texts without labels, which train a linear model beside the rows: their file, and what is said of them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attendrop.errors import AttendropError
from attendrop.tasks.class_names import same_text, why_no_names
from attendrop.tasks.heads.builtin import ONE_CLASS
from attendrop.tasks.table import BadRows
from attendrop.tasks.table_files import read_table
from attendrop.tasks.values import text_problem
from attendrop.wording import names_of

# Texts of a larger file are sampled: this is how many were measured, and each is read in each linear model's fits.
MOST_TEXTS = 4000


def check_unlabelled(given: str | None, task: str | None, label_type: str, texts: int) -> None:
    """Raise AttendropError if unlabelled texts are given for other data than one class of one text."""
    reason = why_no_names(task, label_type, texts)
    if not reason and label_type not in ("auto", *ONE_CLASS):
        reason = f"and not for labels of type {label_type!r}"
    if given is not None and reason:
        raise AttendropError(f"unlabelled '{given}' is for one class of rows of one text in files, {reason}; omit it.")


def read_unlabelled(
    file: str, column: str, trained_on: Collection[str], scored: Collection[str], *, skip_bad_rows: bool
) -> tuple[list[str], dict[str, int]]:
    """Read texts, at most :data:`MOST_TEXTS`, from the column of a file, or its only column.

    Args:
        file: Path of the file.
        column: Name of the column of texts in training.
        trained_on: Texts of training rows. These and repeated texts are left out, see :func:`same_text`.
        scored: Texts of rows to score on, which are counted only.
        skip_bad_rows: Leave empty texts out.

    Returns:
        The texts, the same each time, and their numbers: ``texts``, ``repeated`` (which are left out), ``not_sampled``
        and ``scored``.

    Raises:
        AttendropError: The file cannot be read, or has several columns and not this one; or a text is empty.
    """
    bad, table = BadRows(skip=skip_bad_rows), read_table(file)
    if column not in table.columns and len(table.columns) > 1:
        raise AttendropError(
            f"unlabelled: {file} has no column {column!r}, as the training file has, and its columns are "
            f"{names_of(table.columns)}; rename one, or keep one."
        )
    column = column if column in table.columns else table.columns[0]
    texts = table.checked(column, text_problem, bad).column(column)
    known, found = set(map(same_text, trained_on)), dict[str, str]()
    for text in texts:
        if (key := same_text(text)) not in known:
            found.setdefault(key, text)
    kept = list(found)
    sample = sorted(random.Random(0).sample(range(len(kept)), min(MOST_TEXTS, len(kept))))
    if not sample:
        raise AttendropError(f"unlabelled: {file} has no text that the training rows lack; omit it.")
    keys, scored = [kept[place] for place in sample], set(map(same_text, scored))
    numbers = {"texts": len(keys), "repeated": len(texts) - len(kept), "not_sampled": len(kept) - len(keys)}
    return [found[key] for key in keys], numbers | {"scored": sum(key in scored for key in keys)}


def unlabelled_told(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the numbers that :func:`read_unlabelled` returns; none if there are none."""
    if not found:
        return
    texts = f"{found['texts']:,} unlabelled {'text' if found['texts'] == 1 else 'texts'}"
    sampled = f", a sample of {found['texts'] + found['not_sampled']:,}" if found["not_sampled"] else ""
    repeated = (
        f"; {found['repeated']:,} more repeat texts, or training rows, and are left out" if found["repeated"] else ""
    )
    yield f"There are {texts} for linear models{sampled}{repeated}."
    if number := found["scored"]:
        yield f"Of the {texts} {number:,} {'is a text' if number == 1 else 'are texts'} of evaluation rows."


def unlabelled_decisions(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield what became of unlabelled texts in runs, given with their names, and how held-out rows decided on them."""
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for name, _ in runs):
        own = [found for each, found in runs if each == name]
        differences = [found["difference"] for found in own if found.get("difference") is not None]
        used = sum(found["used"] for found in own)
        if differences:
            mean = round(sum(differences) / len(differences), 3)
            what = f"{'lose' if mean < 0 else 'gain'} {abs(mean):.3f}" if mean else "neither gain nor lose"
            reason = f"held-out rows {what}{' on average' if len(own) > 1 else ''}"
        elif any("difference" in found for found in own):
            reason = "no row can be held out, which would tell whether they do harm"
        else:
            reason = "no head starts from a linear model"
        some = "used" if used == len(own) else f"used by {used} of {len(own)} runs" if used else "left out"
        names.setdefault(f"{some}: {reason}", []).append(name)
    for decision, those in names.items():
        yield f"Unlabelled texts in {', '.join(those)}: {decision}."
