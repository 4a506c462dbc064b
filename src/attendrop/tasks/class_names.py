"""Texts beside the rows: names of classes, also as training rows, and texts without labels for linear models."""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError
from attendrop.tasks.table import (
    COUNT_AS_WRONG,
    MARKS,
    UNSPACED,
    BadRows,
    BadValue,
    count_words,
    plain,
    read_table,
    read_text,
)
from attendrop.wording import counted, names_of

if TYPE_CHECKING:
    from attendrop.tasks.types.base import TaskType

# Value of the option ``label_names`` that is no file.
AUTO = "auto"
# Names are rows where a class has no more rows than this, on average: a linear model gains on both data sets that were
# measured with seven (0.007 and 0.006), with ten on one of two (docs/experiments.md, step 6).
MOST_ROWS_PER_CLASS = 7
_WORD = rf"(?:[^\W_]|[{MARKS}])+"
_PICTURES = "\u2190-\u2bff\U0001f000-\U0001faff"  # arrows, signs and emoji
# Texts of a larger file are sampled: this is how many were measured, and each is read in each linear model's fits.
MOST_TEXTS = 4000


def in_words(name: str) -> str:
    """Return the name of a class in words, as a text: ``lost_card`` and ``lostCard`` as "lost card".

    It is split at ``_``, ``-``, ``/``, ``:``, white space and before words in camel case. Letters and digits are kept.
    """
    found = ""
    for at, letter in enumerate(name):
        # After two small letters, or after a capital and before two small ones, so that "eBay" and "URLs" are whole.
        before, after = name[max(0, at - 2) : at], name[at + 1 : at + 3]
        small = len(before) == 2 and before.isalpha() and before.islower()
        capitals = before[-1:].isupper() and len(after) == 2 and after.isalpha() and after.islower()
        if letter.isupper() and (small or capitals):
            letter = f" {letter.lower() if after[:1].islower() else letter}"
        found += letter
    return " ".join(re.split(r"[\s_\-/:]+", found)).strip()


def telling_names(names: Collection[str]) -> list[str]:
    """Return the names that are words, and that tell a class from the others by words.

    A word has two letters or more, four in a name with digits: "C17" and "AB-12" are codes. Names that differ only in
    digits or single letters, such as "label_3" and "label_4", tell nothing; addresses, and names of more than ten
    words, are none.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        text = unicodedata.normalize("NFKC", in_words(name))
        least = 3 if re.search(r"\d", text) else 1
        word = re.compile(rf"[^\W\d_](?:[^\W\d_]|[{MARKS}]){{{least},}}|[{UNSPACED}]+")
        none = re.search(r"@|://", name) or count_words(in_words(name)) > 10
        parts = () if none else re.findall(_WORD, text)
        found[name] = tuple(part.casefold() for part in parts if word.fullmatch(part))
    alike = Counter(found.values())
    return [name for name in names if found[name] and alike[found[name]] == 1]


def why_no_rows(names: Collection[str], rows: int = 0) -> str:
    """Return why ``label_names="auto"`` makes no training rows of the names of classes with so many rows in all.

    It makes some where nine in ten names tell their class in words (:func:`telling_names`), for "w2" among 150 intents
    says nothing, and there are at most ``MOST_ROWS_PER_CLASS`` rows a class, on average; then the reason is empty.
    """
    telling = set(telling_names(names))
    if len(telling) < 0.9 * len(names):
        unclear = next(name for name in names if name not in telling)
        return f"{unclear!r} does not tell its class from the others in words"
    if rows > MOST_ROWS_PER_CLASS * len(names):
        return f"there are more than {MOST_ROWS_PER_CLASS} rows a class"
    return ""


def why_no_names(task: str | None, label_type: str, texts: int) -> str:
    """Return why data of a kind have no names that could be rows; empty if they may have."""
    if task is not None:
        return f"and not for task {task!r}"
    if label_type not in ("auto", "class", "labels"):
        return f"and not for labels of type {label_type!r}"
    return "" if texts == 1 else f"and these have {texts}"


def check_texts(label_names: str | None, unlabelled: str | None, *of_data: Any) -> str:
    """Return :func:`why_no_names` ``of_data``; refuse files of names, or of unlabelled texts, where there are none."""
    reason, (_, label_type, _) = why_no_names(*of_data), of_data
    if reason and label_names not in (None, AUTO):
        raise AttendropError(
            f"label-names '{label_names}' is for classes, or labels, of rows of one text in files, {reason}; omit it."
        )
    of_labels = f"and not for labels of type {label_type!r}" if label_type == "labels" else ""
    if unlabelled is not None and (why := reason or of_labels):
        raise AttendropError(f"unlabelled '{unlabelled}' is for a class of rows of one text in files, {why}; omit it.")
    return reason


def same_text(text: str) -> str:
    """Return a text without differences of case, punctuation, spaces and Unicode forms; C++ is not C#."""
    return " ".join(re.findall(rf"{_WORD}[+#]*|[{_PICTURES}]", plain(text))) or plain(text)


def read_label_names(file: str, task_type: TaskType) -> list[tuple[str, Any]]:
    """Read texts of classes, which may have several, each with its label, from a file with columns label and text.

    Raises:
        AttendropError: The file cannot be read or lacks a column, a text is empty, or a label is not one of training.
    """
    table, found = read_table(file), []
    for place, (text, label) in zip(table.places, table.values(("text", "label")), strict=True):
        try:
            found.append((read_text(text), task_type.read_label(label)))
        except BadValue as problem:
            text = str(problem).replace(f" {COUNT_AS_WRONG}", "")
            raise AttendropError(f"{file}, {place}: {text}; correct it.") from None
    return found


def counted_names(rows: int, given: str | None) -> str:
    """Count training rows that the option ``label_names``, as it was given, makes: "77 names of classes"."""
    if given in (None, AUTO):
        return f"{counted(rows, 'name')} of classes"
    return f"{counted(rows, 'text')} of {Path(str(given)).name}"


def names_told(rows: int, left_out: Sequence[str], given: str | None) -> Iterator[str]:
    """Yield a sentence on names that are training rows, and one on texts that are left out, if there are any."""
    if rows:
        yield f"{counted_names(rows, given)} {'is a training row' if rows == 1 else 'are training rows'}, too."
    if left_out:
        number, verb = counted_names(len(left_out), given), "is" if len(left_out) == 1 else "are"
        texts = names_of(left_out[:5]) + (", ..." if len(left_out) > 5 else "")
        yield f"{number} {verb} left out, because rows to score on have the same text: {texts}."


# Texts without labels -------------------------------------------------------------------------------------------------


def read_unlabelled(
    file: str, column: str, trained_on: Collection[str], scored: Collection[str], *, skip_bad_rows: bool
) -> tuple[list[str], dict[str, int]]:
    """Read texts, at most :data:`MOST_TEXTS`, from the column of a file, or its only column.

    Texts that are trained on, and repeated ones, are left out, see :func:`same_text`; those of rows to score on are
    only counted.

    Returns:
        The texts, the same each time, and their numbers: ``texts``, ``repeated`` (which are left out), ``not_sampled``,
        ``skipped`` (invalid rows) and ``scored``.

    Raises:
        AttendropError: The file cannot be read, or has several columns and not this one; or a text is empty.
    """
    table = read_table(file, bad := BadRows(skip=skip_bad_rows))
    if column not in table.columns and len(table.columns) > 1:
        raise AttendropError(
            f"unlabelled: {file} has no column {column!r}, as the training file has, and its columns are "
            f"{names_of(table.columns)}; rename one, or keep one."
        )
    column = column if column in table.columns else table.columns[0]
    texts = table.read([column], read_text, bad).column(column)
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
    numbers["skipped"] = len(bad.skipped)
    return [found[key] for key in keys], numbers | {"scored": sum(key in scored for key in keys)}


def unlabelled_told(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the numbers that :func:`read_unlabelled` returns; none if there are none."""
    if not found:
        return
    texts = f"{found['texts']:,} unlabelled {'text' if found['texts'] == 1 else 'texts'}"
    more = f", a sample of {found['texts'] + found['not_sampled']:,}" if found["not_sampled"] else ""
    if found["repeated"]:
        more += f"; {found['repeated']:,} more repeat texts, or training rows, and are left out"
    more += f"; {counted(found['skipped'], 'invalid row')} skipped" if found["skipped"] else ""
    yield f"There are {texts} for linear models{more}."
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
