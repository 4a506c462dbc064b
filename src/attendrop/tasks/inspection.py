"""What is in files of data, before PyTorch is loaded: columns, labels and their meaning, likely mistakes, refusals."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.tasks.class_names import in_words, telling_names, why_no_names, why_no_rows
from attendrop.tasks.entities import TAG, are_spans, as_iob2, read_spans, span_tags
from attendrop.tasks.table import (
    ENCODINGS,
    GUESSED,
    HOW_TO_WRITE,
    LABEL_SEPARATORS,
    LABELS,
    MISSING,
    SEPARATORS,
    WORDS,
    BadRows,
    BadValue,
    Table,
    class_name,
    count_words,
    default_columns,
    encoding_of,
    extension_of,
    files_of,
    is_missing,
    joined_labels,
    label_names,
    listed,
    may_be_missing,
    number_form,
    parsed,
    plain,
    read_class,
    read_table,
    read_text,
    skipped_places,
    written,
    yes_or_no,
)
from attendrop.wording import MOST_NAMES, counted, counts_of, names_of

TEXT, LABEL, ID, DATE, SOURCE, EMPTY, CONSTANT = ("text", "label", "id", "date", "source", "empty", "constant")
SPLIT = "split"
MEANING, POSITION = "meaning", "position"
# What columns of a role are called.
_NAMES = {
    LABEL: r"(gold_?)?(labels?|class(es)?|categor(y|ies)|targets?|tags?|intents?|sentiment|emotion|scores?|ratings?|"
    r"(ner|pos)_tags|topics?|teams?|queue|department|kategorie|klasse|thema|cat[ée]gorie|classe|categor[ií]a|clase|etiqueta|"
    r"accept)",
    TEXT: r"texts?|sentences?|documents?|reviews?|comments?|messages?|tweets?",
    WORDS: r"tokens?|words?|forms?",
    ID: r"(.*[_ -])?(id|nr|no|number|key|uuid|guid|index)",
    SPLIT: r"(data_?)?(split|subset|fold|partition)",
    SOURCE: r"source|channel|origin|author|user|customer|site|language|lang|agent",
}
# Names of labels that may also be of something else, such as the target of a stance, or its score.
_UNSURE = re.compile(r"categor(y|ies)|targets?|tags?|scores?|ratings?|topics?|teams?|accept", re.IGNORECASE)
# What columns are called whose rows may belong together, alone or before "id".
_GROUP = re.compile(
    r"(.*[_ -])?(customer|client|kund(e|in)|user|author|patient|speaker|person|member|account|household|session|thread|"
    r"conversation|dialog(ue)?|ticket|case|doc(ument)?|article|group|template)s?([_ -]?(id|nr|no|number|key|name))?",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d\d?(-\d\d?([T ].*)?)?|\d{4}([./])\d\d?\3\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{2,4}(,? .*)?")
# With months as words, such as "Mon Apr 06 22:00:01 UTC 2026" and "6 April 2026, 10:00".
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_DATE_IN_WORDS = re.compile(
    rf"((mon|tue|wed|thu|fri|sat|sun)[a-z]{{0,6}},? )?(\d\d?(st|nd|rd|th)?[. -]{{1,2}})?{_MONTH}[ ,-]{{1,2}}\d{{1,4}}"
    r"([\s,:.+\d-]*([a-z]{1,4}\b)?){0,3}",
    re.IGNORECASE,
)
_LONG_TEXT, _LONG_NAME = 3, 6  # words, on average
_MANY_CLASSES = 30
# Number of values by which a form is recognised, and the part of them that have it, for a few may be broken.
_MOST_VALUES, _MOST = 1000, 0.8
# Items of a vector in a text, such as "[0. 1.]" or "0;1", and what NumPy and PyTorch print around them.
_ITEM, _AROUND = re.compile(r"[^\s,;|\[\](){}'\"]+"), re.compile(r"(\w+\.)?(array|tensor)\(|dtype=[\w.]+")

# Columns --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column: its likely role, empty if none, and what its values are."""

    name: str
    role: str
    distinct: int  # different values
    rows: int  # with a value
    missing: int  # rows without one
    most: int  # rows of the most frequent value
    words: float  # of a value, on average


def describe(table: Table, name: str) -> Column:
    """Describe a column, with the role that it has if neither the texts nor the labels are in it."""
    counts = Counter(map(written, table.column(name)))
    missing = sum(counts.pop(value) for value in [*counts] if value.lower() in ("", "nan"))
    distinct, rows = len(counts), len(table) - missing
    # Words are counted in at most 20,000 different values: more take longer, and their mean is the same.
    some = list(islice(counts.items(), 0, None, 1 + distinct // 20_000))
    words = sum(number * count_words(value) for value, number in some) / max(1, sum(number for _, number in some))
    role = ""
    if distinct < 2:
        role = CONSTANT if rows > 1 else "" if rows else EMPTY
    elif all((words <= _LONG_NAME and _DATE.fullmatch(value)) or _DATE_IN_WORDS.fullmatch(value) for value in counts):
        role = DATE
    elif _named(name, SPLIT) and distinct <= _MANY_CLASSES:
        role = SPLIT
    elif (
        _named(name, ID) and words < _LONG_TEXT and (2 * distinct >= rows or name.lower() in ("id", "uuid", "guid"))
    ) or (distinct == rows > 9 and words <= 1 and "decimal" not in _number_forms(islice(counts, _MOST_VALUES))):
        role = ID
    elif words >= _LONG_TEXT and distinct > rows / 2:
        role = TEXT
    elif _named(name, SOURCE) and distinct <= rows / 2:
        role = SOURCE
    return Column(name, role, distinct, rows, missing, max(counts.values(), default=0), words)


def label_columns(columns: Sequence[str], label_column: str | None) -> list[str]:
    """Return the columns of the labels: the one that is named, or several, comma-separated, with a label each."""
    if label_column is None:
        return []
    parts = [part.strip() for part in label_column.split(",")]
    known = sum(part in columns for part in parts)
    return parts if known == len(parts) or (known and label_column not in columns) else [label_column]


def _named(name: str, role: str) -> bool:
    return re.fullmatch(_NAMES[role], name, re.IGNORECASE) is not None


def tells_label(values: Iterable[Any], labels: Iterable[Any]) -> bool:
    """Return whether each value of a column is of one label, as another name of the label would be.

    By chance it is, if values do not repeat: each has two rows or more on average, five if labels have several values.
    """
    rows = ((written(value), str(label).strip()) for value, label in zip(values, labels, strict=True))
    pairs = [row for row in rows if not {"", "nan", "NaN"} & {*row}]
    found = dict(pairs)
    least = 2 if len(set(found.values())) == len(found) else 5
    several, enough = len(set(found.values())) > 1, len(pairs) >= max(10, least * len(found))
    return several and enough and len(set(pairs)) == len(found)


def _number_forms(values: Iterable[Any]) -> set[str]:
    """Return the forms of values if all are numbers, "whole" or "decimal"; otherwise none."""
    forms = {number_form(value) for value in map(written, values) if value.lower() not in ("", "nan")}
    return forms if forms <= {"decimal", "whole"} else set()


def _label_columns(table: Table, columns: Mapping[str, Column], text_columns: Sequence[str]) -> list[str]:
    """Guess the column of the labels: by its name, or its form, otherwise the last with few short values or a source.

    A number to predict may have many values. Names that may be of something else do not decide alone. All that the same
    rule finds are returned, the likeliest first.
    """
    others = [column for name, column in columns.items() if name not in text_columns]
    # Answers of a survey may be longer than most names, but not than its texts.
    longest = min(_LONG_NAME, max((each.words for each in columns.values()), default=0))
    few: list[Column] = []
    for each in reversed(others):
        if each.distinct > 1 and each.words < max(longest, _LONG_TEXT):
            own = not (_named(each.name, ID) or _GROUP.fullmatch(each.name))
            many = each.distinct <= each.rows / 2 or "decimal" in _number_forms(_some(table, each.name))
            few += [each] if each.distinct <= max(10, each.rows / 5) or (own and many) else []
    few.sort(key=lambda each: each.words >= _LONG_TEXT)
    named = [each for each in others if _named(each.name.rpartition(".")[2], LABEL) and each.rows]
    formed = [each for each in others if are_spans(_some(table, each.name)) or vector_names(table, each.name, {})]
    usual, sources = ([each for each in few if each.role == role] for role in ("", SOURCE))
    unsure = all("." in each.name or _UNSURE.fullmatch(each.name) for each in named)
    if named and unsure and not listed(next(iter(_some(table, named[0].name, 1)), None)):
        for each in usual:
            values = list(map(written, _some(table, each.name)))
            marks = all(yes_or_no(value) is not None for value in values)
            named += [each] if marks or any(number_form(value) == "text" for value in values) else []
    return list(dict.fromkeys(each.name for each in next(filter(None, (named, formed, usual, sources)), [])))


def _text_columns(table: Table, columns: Mapping[str, Column], label_column: str | None) -> list[tuple[str, ...]]:
    """Guess the columns of the texts, the likeliest first: lists of words, two that belong together, or the longest."""
    labels = set(label_columns(list(columns), label_column))
    words = {name: column.words for name, column in columns.items() if name not in labels}
    begins = {name: listed(next(iter(_some(table, name, 1)), None)) for name in words if _named(name, WORDS)}
    if lists := [name for name, found in begins.items() if found and isinstance(found[0], str)]:
        return [(name,) for name in lists]
    texts = [name for name in words if columns[name].role == TEXT]
    lower, alike = {name.lower(): name for name in texts}, Counter(name[:-1] for name in texts)
    for first in texts:
        second = first[:-1] + {"1": "2", "a": "b", "A": "B"}.get(first[-1:], first[-1:])
        if second != first and second in texts and alike[first[:-1]] == 2:  # more than two may be choices
            return [(first, second), *((name,) for name in texts if name not in (first, second))]
        for one, other in (("premise", "hypothesis"), ("question", "sentence"), ("title", "body"), ("subject", "body")):
            if first.lower() == one and other in lower:
                return [(first, lower[other])]
    # The same ones again and again: if there is no other, or they are longer or named so, and no label in other words.
    longest = max(map(words.__getitem__, texts), default=_LONG_TEXT)
    least = {name: _LONG_TEXT if _named(name, TEXT) else longest for name in words}
    again = [name for name in words if words[name] >= least[name] and columns[name].role in ("", SOURCE)]
    if texts and label_column is not None and label_column in columns:
        answers = list(map(written, table.column(label_column)))
        again = [name for name in again if not tells_label(table.column(name), answers)]
    texts += again
    # Words such as queries.
    own = [name for name in words if columns[name].role in ("", SOURCE, ID) and not _number_forms(_some(table, name))]
    texts = texts or [name for name in own if columns[name].role != ID or not _named(name, ID)]
    texts = [name for name in texts if not isinstance(parsed(next(iter(_some(table, name)), "")), list | dict)] or texts
    return [(name,) for name in sorted(texts or words, key=words.__getitem__, reverse=True)]


def _choice_of(table: Table, names: Sequence[str], first: str = "") -> str:
    """Name columns that may hold the labels, or may do so together with the first."""
    others, together = names_of(names, " or "), [*([first] if first else []), *names][::-1]
    if len(together) > 1 and all(yes_or_no(value) is not None for row in table.values(together) for value in row):
        all_of = ",".join([*together[:MOST_NAMES], *(["..."] if len(together) > MOST_NAMES else [])])
        others += f", or in all of {all_of} if a row may have several labels"
    return others


# What labels mean -----------------------------------------------------------------------------------------------------


def read_label_map(path: str | Path) -> dict[str, str]:
    """Read a file with the columns ``label`` and ``meaning``, or with two others in this order.

    With the columns ``position`` and ``meaning`` it names the places of vectors of zeros and ones, from 0, which are
    keys such as "position 0".

    Raises:
        AttendropError: The file cannot be read, a label has two meanings, or positions are not 0, 1, 2 and so on.
    """
    table = read_table(path)
    if {POSITION, MEANING} <= set(table.columns):
        places = dict(zip(map(class_name, table.column(POSITION)), map(written, table.column(MEANING)), strict=True))
        if set(places) != {str(number) for number in range(len(table))} or len(set(places.values())) < len(table):
            raise AttendropError(f"the label map {path} has to name each position once, from 0 to {len(table) - 1}.")
        return {f"{POSITION} {number}": places[str(number)] for number in range(len(table))}
    names = [LABEL, MEANING] if {LABEL, MEANING} <= set(table.columns) else table.columns[:2]
    if len(names) < 2:
        raise AttendropError(f"the label map {path} has one column; give it two, {LABEL} and {MEANING}.")
    meanings: dict[str, str] = {}
    for place, row in zip(table.places, table.values(names), strict=True):
        label, meaning = map(written, row)
        if (known := meanings.setdefault(label, meaning)) != meaning:
            raise AttendropError(f"{path}, {place}: {label!r} means {known!r} and {meaning!r}; delete one of them.")
    return meanings


def label_variants(counts: Mapping[str, int]) -> list[list[str]]:
    """Group labels that may be the same: they differ in case, spaces and punctuation; the most frequent are first."""
    groups: dict[str, list[str]] = {}  # by what spellings of a label share
    for label in sorted(counts, key=lambda each: -counts[each]):
        # Without letters that have no shape, such as a soft hyphen, and selectors of one, as of an emoji.
        own = "".join(c for c in plain(label).replace("_", " ") if unicodedata.category(c) not in ("Zs", "Cf"))
        own = re.sub(r"[\ufe00-\ufe0f]", "", own)
        if not any(letter.isdigit() for letter in own):  # signs of -1, C++ or <=50K, and points of numbers, stay
            own = re.sub(r"(?<=\w)[-.,/'’\"()]+(?=\w)", "", own.strip(".,;:'’\"()"))
        groups.setdefault(own or label, []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def _vector(value: Any) -> list[bool | None]:
    """Return what a vector of zeros and ones, also as NumPy prints it, says of each label; None of other items."""
    found = parsed(value)
    items = found if isinstance(found, list) else _ITEM.findall(_AROUND.sub("", written(value)))
    return list(map(yes_or_no, items))


def vector_names(table: Table, column: str, meanings: Mapping[str, str]) -> list[str]:
    """Return the names of the places of the vectors that are labels; none if labels are no vectors, or have no names.

    They are those of a label map with positions, or the parts of the column's own name, such as ``late,broken``, if
    most values are vectors of as many zeros and ones.
    """
    if f"{POSITION} 0" in meanings:
        return list(meanings.values())
    parts = [part.strip() for part in LABEL_SEPARATORS.split(column)]
    if len(parts) < 2 or not all(parts):
        return []
    vectors = list(map(_vector, _some(table, column)))
    right = sum(len(vector) == len(parts) and None not in vector for vector in vectors)
    return parts if vectors and right >= _MOST * len(vectors) else []


def _marked_names(table: Table, column: str, meanings: Mapping[str, str], label_type: str) -> list[str]:
    """Return the names of labels that have columns, or places in a vector, of zeros and ones, if any do."""
    if column not in table.columns:
        return names if len(names := label_columns(table.columns, column)) > 1 else []
    return vector_names(table, column, meanings) if label_type in ("auto", "labels") else []


def as_meant(table: Table, column: str | None, meanings: Mapping[str, str], label_type: str, bad: BadRows) -> Table:
    """Return the table with its labels, in a column that it may lack, replaced by what they mean.

    Several columns, see :func:`label_columns`, become an additional one with a list of the labels that a row has, and
    so does a vector whose places have names, see :func:`vector_names`; a row with other values is reported to ``bad``.
    Labels that ``meanings`` lacks are kept. A value may hold several labels if the label type is "labels". If labels
    are numbers, by their type or all of them with "auto" but for missing ones, ``0,5`` is 0.5 in a file separated by
    semicolons, as spreadsheets write it, unless others have points.
    """
    columns = [str(column)] if column in table.columns else label_columns(table.columns, column)
    is_one = len(columns) == 1
    if column is None or (is_one and column not in table.columns):
        return table
    names = _marked_names(table, column, meanings, label_type)

    def marked(*values: Any) -> list[str]:
        found = _vector(values[0]) if is_one else list(map(yes_or_no, values))
        if len(found) != len(names) or (is_one and None in found):
            shown = written(values[0])[:60]
            raise BadValue(f"{shown!r} is no vector of {len(names)} zeros and ones, one for each name")
        if None in found:
            wrong = values[place := found.index(None)]
            raise BadValue(f"{wrong!r} does not say whether the row has this label; write 0 or 1", place)
        return [name for name, is_so in zip(names, found, strict=True) if is_so]

    table = table.read(columns, marked, bad, column) if names else table

    def meaning(value: Any, several: bool) -> Any:
        for label in (written(value), class_name(value)):  # drafts have 1 for 1.0
            if label in meanings and not isinstance(value, list):
                return meanings[label]
        if (found := listed(value)) is not None:
            return [meaning(each, False) for each in found]
        if several and isinstance(value, str) and (names := list(filter(None, label_names(value)))):
            return [meanings.get(name, name) for name in names]
        if label_type == "tags" and isinstance(value, str):
            return [meanings.get(tag, tag) for tag in value.split()]
        return value

    labels = table.column(column)
    if label_type == "labels":  # names with a comma, as other rows have between semicolons, are one also when alone
        whole = {name for value in labels for name in label_names(value) if "," in name}
        labels = [[value] if written(value) in whole else value for value in labels]
    if meanings:
        labels = [meaning(value, label_type == "labels") for value in labels]
    if meanings or label_type == "labels":
        table = table.with_column(column, labels)
    if table.delimiter == ";" and label_type in ("auto", "number"):
        texts = [str(value).strip() for value in labels]
        numeric = [text for text in set(texts) if number_form(text.replace(",", ".")) != "text"]
        # Beside decimal commas, a point may separate thousands: 1.250 is no 1.25.
        signs = {sign for text in numeric for sign in ".," if sign in text}
        points = [text if "." in text or len(signs) > 1 else text.replace(",", ".") for text in texts]
        numbers = [number_form(point) in ("whole", "decimal") for point in points]
        pairs = zip(labels, numbers, strict=True)
        if label_type == "number" or all(number or may_be_missing(str(value)) for value, number in pairs):
            read = zip(labels, points, numbers, strict=True)
            table = table.with_column(column, [point if number else value for value, point, number in read])
    return table


def read_meanings(
    tables: Sequence[Table],
    text_columns: Sequence[str],
    column: str | None,
    label_type: str,
    label_map: str | Path | None,
    bad: BadRows,
    *,
    guessed: bool = False,
) -> list[Table]:
    """Return tables, those of training first, with labels as they are meant, and tags of words in IOB2.

    Raises:
        AttendropError: The label map has none of the labels of training, or their form is refused, see
            :func:`check_form`.
    """
    meanings, train = {} if label_map is None else read_label_map(label_map), tables[0]
    of_words = any(listed(text) is not None for text in next(iter(train.values(text_columns)), ()))
    kind = "tags" if label_type == "auto" and of_words else label_type
    if label_map is not None and f"{POSITION} 0" not in meanings:
        names = label_columns(train.columns, column)
        values = names if len(names) > 1 else train.column(names[0]) if names else []
        found = {written(value) for value in values if not is_missing(value)}
        found |= {name for value in values for name in label_names(value)} | set(map(class_name, found))
        found |= {tag for value in values if kind == "tags" for tag in written(value).split()}
        header = read_table(label_map).columns
        if LABEL not in header and header[0] in found:
            raise AttendropError(
                f"the label map {label_map} begins with {header[0]!r}, a label of {train.path}, which would be read as "
                f"the name of a column; write {LABEL},{MEANING} in a line before it."
            )
        if found and not found & meanings.keys():
            raise AttendropError(
                f"the label map {label_map} has none of the labels of {train.path}, column {column!r}, such as "
                f"{names_of(sorted(found)[:5])}; correct its column {LABEL!r}, or omit it."
            )
    tables = [as_meant(table, column, meanings, kind, bad) for table in tables]
    marked = [] if column is None else _marked_names(train, column, meanings, kind)
    had = set(chain.from_iterable(tables[0].column(str(column)))) if marked else set()
    if never := [name for name in marked if meanings.get(name, name) not in had]:
        warnings.warn(f"{train.path}: no row has {names_of(never)}: the model has no such label.", stacklevel=2)
    if label_type == "auto" and train.delimiter == ";" and column in train.columns:
        pairs = zip(train.column(column), tables[0].column(column), strict=False)
        if read := next((pair for pair in pairs if str(pair[0]).strip().replace(",", ".") == pair[1] != pair[0]), None):
            warnings.warn(
                f"{train.path}, column {column!r}: labels such as {read[0]!r} are read as {read[1]}, with a decimal "
                "comma; set --label-type class or labels if they are none.",
                stacklevel=2,
            )
    if len(train) and not len(tables[0]):
        first = bad.skipped[0]
        raise AttendropError(
            f"{train.path} has no valid row: all were skipped, the first ({first.place}): {first.reason}."
        )
    check_form(tables[0], text_columns, [] if column is None else [column], label_type, guessed=guessed)
    return as_iob2(tables, column) if kind == "tags" else tables


# What labels are ------------------------------------------------------------------------------------------------------


def label_type_of(tables: Sequence[Table], text_columns: Sequence[str], column: str) -> tuple[str, str]:
    """Recognise the type of labels, as they are meant, one of ``LABEL_TYPES``; warn of words for what is not there.

    Labels are tags if texts are lists of words, entities if most are lists of spans of characters, several labels if
    they are lists, numbers if at least one has a decimal fraction or an exponent, otherwise classes. The training rows
    come first.

    Returns:
        The type, and why it is unclear, a sentence; empty if it is not.
    """
    train, values = tables[0], tables[0].column(column)
    for some in (_some(train, name) for name in text_columns):
        if 2 * sum(listed(value) is not None for value in some) > len(some):
            return "tags", ""
    if holds_spans(train, text_columns, column):
        return "spans", ""
    mixed: dict[bool, str] = {}  # where a list or an object is first, and a name or a number, in a file with both
    found: dict[str, str] = {}  # where each label is first
    for table in tables:
        first: dict[bool, str] = {}
        for place, value in zip(table.places, table.column(column), strict=True):
            if (label := written(value)).lower() not in ("", "nan"):
                first.setdefault(isinstance(parsed(value), list | dict), f"{label[:60]!r} ({table.path}, {place})")
                found.setdefault(label, f"{label!r} ({table.path}, {place})")
        mixed = mixed or (first if len(first) > 1 else {})
    several = listed(next(filter(written, values), next((each for each in values if each is not None), None)))
    if mixed:
        read = all(listed(value) is not None for value in values if isinstance(parsed(value), list | dict))
        both = "--label-type labels, which reads both, or class" if read else "--label-type class"
        unclear = (
            f"column {column!r}: the labels mix lists or objects, such as {mixed[True]}, with names, such as "
            f"{mixed[False]}; write {_MANY}, in all rows, or set {both} if they are classes."
        )
        return "labels" if read else "class", unclear
    if several is not None:
        twice = [each for each in map(label_names, values) if len(set(each)) < len(each)]
        if 10 * len(twice) > len(values):
            return "labels", (
                f"column {column!r}: rows name a label twice, such as {twice[0]}; if these are answers of several "
                "annotators, keep one label a row, such as most gave; otherwise set --label-type labels."
            )
        return "labels", ""
    forms: dict[str, list[str]] = defaultdict(list)
    for label, where in found.items():
        forms["missing" if label.casefold() in MISSING else number_form(label)].append(where)
    numeric, text, classes = forms["whole"] + forms["decimal"], forms["text"] + forms["missing"], "--label-type class"
    said, unclear = f"column {column!r}: the labels {{}}".format, ""
    names, where = _label_counts(train, column, "class"), f"{train.path}, column {column!r}"
    if forms["notation"] and not forms["text"]:
        ids = ", or --label-type labels if a row may have several" if joined_labels(found) else ""
        unclear = (
            f"{said(', '.join(forms['notation'][:3]))} look like numbers, but are not read as such; {HOW_TO_WRITE}, or "
            f"set {classes} if they are classes{ids}."
        )
    elif numeric and text:
        unclear = (
            f"{said('mix numbers')}, such as {numeric[0]}, with text, such as {text[0]}; correct them, or set "
            f"{classes} if they are classes, or --label-type number with --skip-bad-rows to leave out what is none."
        )
    elif forms["decimal"]:
        decimals = (each for each in found if number_form(each) == "decimal")  # 1.250 may be 1250
        points = all(re.fullmatch(r"[1-9]\d{0,2}(\.\d{3})+", each) for each in decimals)
        if points and any("." not in each for each in found if number_form(each) == "whole"):
            unclear = (
                f"{said(', '.join(forms['decimal'][:3]))} may have points between thousands, as others have no point; "
                f"{HOW_TO_WRITE}, or set --label-type number if they are decimals."
            )
    elif len(names) > _MANY_CLASSES and not text:
        unclear = (
            f"{where}: {len(names)} different whole numbers may be classes, numbers to predict or ids; set "
            "--label-type class or --label-type number, or give another label column."
        )
    elif len(names) > max(_MANY_CLASSES, len(train) / 2) and why_no_rows(names):
        unclear = (
            f"{where}: {len(names)} different labels in {len(train)} rows look like ids; give another label "
            "column, or set --label-type class if they are classes."
        )
    elif forms["missing"] or forms["notation"]:
        warnings.warn(
            f"{said(', '.join([*forms['missing'], *forms['notation']][:3]))} are read as classes; if they stand for "
            f"missing labels or for numbers, correct or delete these rows; otherwise set {classes}.",
            stacklevel=2,
        )
    numbers = forms["decimal"] and not forms["notation"] and len(numeric) > len(forms["text"])
    return "number" if numbers else "class", unclear


def holds_spans(table: Table, text_columns: Sequence[str], column: str | None) -> bool:
    """Return whether labels are spans of characters of the only text, whose words they tag."""
    if column not in table.columns or len(text_columns) != 1:
        return False
    return not isinstance(table.column(text_columns[0])[0], list) and are_spans(_some(table, str(column)))


def _classes_or_nothing(values: Sequence[Any]) -> list[str]:
    """Return the class of each value, or nothing; each text is read once, as labels repeat."""

    def read(value: Any) -> str:
        try:
            return read_class(value)
        except BadValue:
            return ""

    known = {value: read(value) for value in {value for value in values if isinstance(value, str)}}
    return [known[value] if isinstance(value, str) else read(value) for value in values]


def _label_counts(table: Table, column: str | None, label_type: str) -> dict[str, int]:
    """Count the rows of each class or label, the most frequent first; none if the labels are something else."""
    if column is None or label_type not in ("class", "labels"):
        return {}
    values = table.column(column)
    names = (
        list(chain.from_iterable(map(dict.fromkeys, map(label_names, values))))
        if label_type == "labels"
        else _classes_or_nothing(values)
    )
    return dict(Counter(filter(None, names)).most_common())


# Forms that are refused -----------------------------------------------------------------------------------------------

_WORDS = 'such as {"tokens": ["Anna", "left"], "tags": ["B-PER", "O"]}'
_MANY = 'the names of the labels that a row has, such as ["late", "broken"]'
# Forms that annotation tools and other libraries write, and what to do about each. Their values would become names of
# classes, such as ``[0, 3, 'PER']``, to be learnt and scored as such.
_OBJECTS, _VECTORS, _TAGS = "objects, spans of characters or answers in texts", "vectors of numbers", "tags of words"
_REMEDIES = {
    _OBJECTS: f'write the name of the class, or {_MANY}; for spans, lists such as [[0, 4, "PER"]] beside one text; a '
    f"model learns to find answers in Python: examples/question_answering.py",
    _VECTORS: f"write one number, or {_MANY}, or a column of zeros and ones for each, with --label-column late,broken, "
    f"or name the places of vectors by --label-map, a file with the columns {POSITION} and {MEANING}",
    _TAGS: f"write lists of words, too, {_WORDS}, or add --label-type tags",
}


def check_form(
    table: Table,
    text_columns: Sequence[str],
    columns: Sequence[str],
    label_type: str = "auto",
    *,
    guessed: bool = False,
) -> None:
    """Refuse labels in a form that is not read, chats, numbers of words, and a multiple choice that nobody asked for.

    The error says what the labels are, with an example, and what to do. Labels of training are given as they are meant;
    their column is not known if there is none in ``columns``, and another may be meant if it is ``guessed``.
    """
    for name in text_columns:
        first = parsed(next(iter(_some(table, name)), None))
        if isinstance(first, list) and first and all(isinstance(each, dict) and "role" in each for each in first):
            raise AttendropError(
                f"{table.path}: {name!r} has chats; to classify them, write each as one text. A causal language model "
                "trains on their replies in Python: examples/sft.py."
            )
        rows = [[written(word) for word in listed(value) or ()] for value in _some(table, name)]
        numbered = (
            row[0].isdecimal() and row == [str(int(row[0]) + at) for at in range(len(row))] for row in rows if row
        )
        if any(len(row) > 1 for row in rows) and all(numbered):
            raise AttendropError(
                f"{table.path}: {name!r} has numbers of words, and no words; of the columns {names_of(table.columns)} "
                "name the one with words by --text-columns; or name a CoNLL-U file .conllu."
            )
    lists = [any(listed(value) is not None for value in _some(table, name, 1)) for name in text_columns]
    if label_type == "auto" and (len(lists) > 2 or lists == [False, True]):
        raise AttendropError(
            f"{table.path}: {names_of(text_columns)} may be a question with its choices, or parts of a text to "
            "classify; add --label-type choice, or give one or two text columns, and the others by --with-columns."
        )
    decisions = set(map(str, _some(table, "answer"))) if "answer" in table.columns else set[str]()
    rejected = [each for each in sorted(decisions) if not each.lower().startswith("accept")]
    decided = all(re.fullmatch("(accept|reject|ignor|skip)(e|ed|ped)?", each, re.IGNORECASE) for each in decisions)
    if rejected and decided and (guessed or "answer" not in columns):
        raise AttendropError(
            f"{table.path} is an export of annotations: 'answer' says which rows an annotator accepted, and labels of "
            f"{rejected[0]!r} rows may be wrong; keep the accepted rows, with the names of their labels in a column, "
            "or add --label-column answer to predict the decision."
        )
    if label_type not in ("auto", "labels", "tags"):  # classes that are asked for have any names
        return
    for name in columns or table.columns:
        where = f"{table.path}, column {name!r}"
        values = [value for value in _some(table, name) if value not in ([], "[]", {}, "{}")]
        tags = {tag for value in values for tag in map(written, listed(value) or written(value).split())}
        single = all(len(written(value).split()) == 1 and listed(value) is None for value in values)
        if not any(lists) and single and "O" in tags and len(tags) > 1 and all(map(TAG.fullmatch, tags)):
            raise AttendropError(
                f"{table.path} has a word in each row, and its tag in {name!r}; write a sentence in each row, "
                f"{_WORDS}, or a .conll file: a word and its tag on each line, and an empty line after each sentence; "
                "or number the sentences in a column 'sentence' beside the column 'word'."
            )
        if label_type == "auto" and holds_spans(table, text_columns, name):
            continue
        forms = list(map(_form, values))
        for form in (_OBJECTS,) if any(lists) or label_type == "tags" else _REMEDIES:
            if forms and forms.count(form) >= _MOST * len(forms):
                example = written(values[forms.index(form)])
                shown = example if len(example) <= 60 else f"{example[:60]}..."
                other = "; if the labels are in another column, name it with --label-column" if guessed else ""
                raise AttendropError(f"{where}: the labels are {form}, such as {shown}; {_REMEDIES[form]}{other}.")


def _some(table: Table, name: str, most: int = _MOST_VALUES) -> list[Any]:
    """Return the first values of a column that are not missing."""
    return list(islice((value for value in table.column(name) if not may_be_missing(str(value))), most))


def _form(value: Any) -> str:
    """Return the form of a label that is not read, of :data:`_REMEDIES`; empty for a name, a number or their list."""
    found, items = parsed(value), list[str]()
    if isinstance(found, list | tuple):
        items = list(map(written, found))
    elif isinstance(value, str) and number_form(value) == "text":  # with brackets, spaces or separators around them
        items = _ITEM.findall(_AROUND.sub("", value))
    forms = set(map(number_form, items))
    marks = all(yes_or_no(item) is not None or item == "-1" for item in items)
    if len(items) > 1 and (marks or ("decimal" in forms and forms <= {"decimal", "whole"})):
        return _VECTORS
    tags = listed(value) or written(value).split()
    if len(tags) > 1 and "O" in tags and all(TAG.fullmatch(written(tag)) for tag in tags):
        return _TAGS
    holds = isinstance(found, list) and any(isinstance(parsed(item), dict | list | tuple) for item in found)
    return _OBJECTS if holds or isinstance(found, dict | tuple | set) else ""


# Inspection -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inspection:
    """Content of a file."""

    table: Table  # its rows, with their labels as they are meant
    evaluated: Table | None  # those of the evaluation file, if there is one
    columns: list[Column]
    text_columns: tuple[str, ...]  # that are read as texts
    label_column: str | None  # that is read as labels; None if none looks like it
    text_candidates: list[tuple[str, ...]]  # the text columns, if given, or all that may be
    label_candidates: list[str]  # the label column, likewise
    label_type: str  # one of ``LABEL_TYPES``; "auto" if there is no label column
    labels: dict[str, int]  # rows of each label, the most frequent first; none if there are no classes
    written_as: str  # encoding and separator; empty for files that are no text
    notes: tuple[str, ...]  # what a run warns of as it reads, such as rows between stray quotes
    unclear: str  # why a run refuses the labels unless their type is given; empty if it does not
    bad: BadRows  # that cannot be read

    @property
    def label_hint(self) -> str:
        """Which columns may hold the labels, where several may; a sentence with a space before it."""
        found = self.label_candidates
        return f" The labels may be in {_choice_of(self.table, found)}." if len(found) > 1 else ""

    @cached_property
    def group_columns(self) -> list[Column]:
        """The columns, here and in the evaluation file, by which rows may belong together.

        They have names of groups, ids or sources, ten values or more, most of them several times, and no texts.
        """
        found = []
        for column in self.columns:
            name, used = column.name, column.role == LABEL or column.name in self.text_columns
            named = _GROUP.fullmatch(name) or _named(name, ID) or _named(name, SOURCE)
            # Fewer values than ten, such as languages, are no sample.
            several = 10 <= column.distinct <= 0.8 * column.rows and column.most <= column.rows / 2
            known = self.evaluated is None or name in self.evaluated.columns
            if named and several and known and not used and column.words < _LONG_TEXT:
                found.append(column)
        return found

    @cached_property
    def tags(self) -> dict[str, int]:
        """Words with each tag, or spans of each type, the most frequent first; none if the labels are neither."""
        if self.label_type == "spans":
            good = self.table.read([str(self.label_column)], read_spans, BadRows(skip=True), LABELS)
            return dict(Counter(kind for spans in good.column(LABELS) for _, _, kind in spans).most_common())
        if self.label_column is None or self.label_type != "tags":
            return {}
        rows = (listed(value) or written(value).split() for value in self.table.column(self.label_column))
        return dict(Counter(filter(None, map(written, chain.from_iterable(rows)))).most_common())

    @cached_property
    def variants(self) -> list[list[str]]:
        """Groups of labels that may be the same."""
        return label_variants(self.labels)

    @property
    def names_as_rows(self) -> str:
        """Whether the names of the classes are training rows by default, and why not; empty where they cannot be."""
        if not self.labels or why_no_names(None, self.label_type, len(self.text_columns)):
            return ""
        if reason := why_no_rows(self.labels, len(self.table)):
            return f"no, since {reason}"
        return f"yes, such as {in_words(telling_names(self.labels)[0])!r}"

    @cached_property
    def written_labels(self) -> list[str]:
        """The label of each row as it is written; empty where it is missing."""
        if self.label_column is None:
            return [""] * len(self.table)
        one = self.label_type in ("class", "number")
        values = self.table.column(self.label_column)
        if self.label_type == "labels":  # whose order says nothing
            return [written(value) and ("; ".join(sorted(label_names(value))) or "none") for value in values]
        if self.label_type == "tags":
            return [" ".join(map(written, listed(value) or written(value).split())) for value in values]
        return _classes_or_nothing(values) if one else list(map(written, values))

    def as_dict(self) -> dict[str, Any]:
        """Return what was found as JSON values."""
        named = ["written_as", "text_columns", "label_column", "group_columns", "label_type", "labels", "names_as_rows"]
        named += ["tags", "variants", "notes"]
        found = {"file": str(self.table.path), "rows": len(self.table)} | {name: getattr(self, name) for name in named}
        found["group_columns"] = [column.name for column in self.group_columns]
        return found | {"columns": list(map(asdict, self.columns)), "doubts": self.doubts()}

    def doubts(self) -> dict[str, str]:
        """Describe likely mistakes: a sentence for each, by its name."""
        table, label_column, labels, said = self.table, self.label_column, self.written_labels, dict[str, str]()
        if skipped := self.bad.skipped:
            places = skipped_places(skipped)
            said["skipped"] = f"{counted(len(skipped), 'row')} cannot be read ({places}): {skipped[0].reason}."
        if not self.text_columns:
            return said
        texts = _plain_texts(table, self.text_columns)
        # Choices may be fewer than their columns.
        there = all if self.label_type in ("class", "labels", "number") else any
        if missing := sum(not there(row) for row in texts):
            said["without_text"] = f"{counted(missing, 'row')} without a text."
        missing = labels.count("")
        if self.label_type == "labels" and label_column is not None:  # an empty text says that none applies
            values = table.column(label_column)
            missing = sum(map(is_missing, values))
            if table.delimiter and (none := list(map(written, values)).count("")):
                said["no_label"] = f"{counted(none, 'row')} with an empty cell, which says that no label applies."
            if empty := sum(not is_missing(value) and "" in label_names(value) for value in values):
                said["empty_label"] = f"{counted(empty, 'row')} with an empty label among others."
        if self.label_type == "spans":
            bad, columns = BadRows(skip=True), [self.text_columns[0], str(label_column)]
            table.read(columns, lambda text, value: span_tags(str(text), read_spans(value, str(text))), bad)
            if wrong := bad.skipped:
                what = f"{counted(len(wrong), 'row')} with spans that cannot be read ({skipped_places(wrong)})"
                said["spans"] = f"{what}: {wrong[0].reason}."
        elif label_column is not None and missing:
            said["without_label"] = f"{counted(missing, 'row')} without a label."
        if groups := "; ".join(counts_of({label: self.labels[label] for label in group}) for group in self.variants):
            said["variants"] = f"Labels that may be the same: {groups}; --label-map merges them."
        if self.label_type == "class" and not self.unclear and (joined := joined_labels(self.labels)):
            said["joined"] = f"The label {joined}."
        if len(self.label_candidates) > 1:
            others = _choice_of(table, self.label_candidates[1:], str(label_column))
            said["label_column"] = f"The labels may also be in {others}: name their column with --label-column."
        if len(self.text_candidates) > 1:
            others = names_of([*map(",".join, self.text_candidates[1:])], " or ")
            said["text_columns"] = f"The texts may also be in {others}: name their columns with --text-columns."
        rest = [each for each in self.columns if each.role in ("", TEXT) and each.name not in self.text_columns]
        answers = [each.name for each in rest if each.distinct > each.rows / 2]
        if self.label_type == "class" and len(answers) >= len(self.labels) > 2 and set("ABCDEFGH") >= {*self.labels}:
            read = ",".join([*self.text_columns, *answers])
            said["choices"] = f"If the labels are those of choices: --text-columns {read!r} --label-type choice."
        if self.unclear:
            said["label_type"] = self.unclear
        if len(labels) > 1 and len(different := set(labels) - {""}) == 1:
            said["one_label"] = f"All rows have the same label, {different.pop()!r}."
        elif rare := list(self.labels.values()).count(1):
            said["rare"] = f"{counted(rare, 'label')} with a single row."
        whole = list(filter(there, texts))
        if repeated := len(whole) - len(set(whole)):
            said["duplicates"] = f"{counted(repeated, 'row')} with the text of an earlier row."
        main = {label: group[0] for group in self.variants for label in group}
        labels_of = defaultdict[tuple[str, ...], dict[str, None]](dict)
        for row, label in zip(texts, labels, strict=True):
            labels_of[row] |= {main.get(label, label): None} if label else {}
        if conflicts := [row for row, several in labels_of.items() if len(several) > 1 and all(row)]:
            text, several = " | ".join(conflicts[0])[:60], ", ".join(map(repr, labels_of[conflicts[0]]))
            what = f"{counted(len(conflicts), 'text')} with different labels"
            said["conflicts"] = f"{what}, such as {text!r}: {several}."
        if self.evaluated is not None:
            evaluated, rows = self.evaluated, _plain_texts(self.evaluated, self.text_columns)
            if known := sum(all(row) and row in labels_of for row in rows):
                said["in_both"] = f"{known} of {len(rows)} rows of {evaluated.path} have a text that is also here."
            theirs = _label_counts(evaluated, label_column, self.label_type)
            if unknown := {label: count for label, count in theirs.items() if label not in self.labels}:
                said["unknown_labels"] = f"Labels of {evaluated.path} that are not here: {counts_of(unknown)}."
        return said


def inspect_files(
    train_file: str | Path,
    eval_file: str | Path | None = None,
    *,
    text_columns: Sequence[str] = (),
    label_column: str | None = None,
    label_type: str = "auto",
    label_map: str | Path | None = None,
    bad: BadRows | None = None,
) -> Inspection:
    """Inspect files of data; columns and types that are not given are guessed, and bad rows by default skipped.

    Arguments and errors are those of :func:`attendrop.tasks.custom_files.load_files`; what it refuses in labels is in
    ``unclear`` of the result.
    """
    bad = bad or BadRows(skip=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table, *evaluated = (read_table(path, bad) for path in (train_file, eval_file) if path is not None)
        usual_texts, usual_label, usual_type = default_columns(str(train_file))
        label_column = usual_label if label_column is None else label_column  # which may be ""
        texts = tuple(text_columns) or usual_texts
        columns = {name: describe(table, name) for name in table.columns}
        for parts in (each for each in columns.values() if each.role == SPLIT and each.name != label_column):
            counts = counts_of(Counter(map(written, table.column(parts.name))))
            warnings.warn(
                f"column {parts.name!r} seems to name the parts of the data ({counts}), which are all trained on; to "
                "hold one out, write it into another file, for --eval-file.",
                stacklevel=2,
            )
        labels_of = [] if label_column is None else [label_column]
        guessed = label_column is None and (label_type in GUESSED or not texts)
        if guessed:
            labels_of = _label_columns(table, columns, texts)
            label_column = next(iter(labels_of), None)
        texts_of = [texts] if texts else _text_columns(table, columns, label_column)
        texts = next(iter(texts_of), ())
        for each in (table, *evaluated):
            for name in (*texts, *label_columns(each.columns, label_column)):
                each.column(name)
        written_as = ""
        if table.path.is_file() and extension_of(table.path) not in (".parquet", ".xlsx"):
            # Labels as they are meant may have separators that the file does not have.
            separated = f", separated by {SEPARATORS[table.delimiter]}" if table.delimiter else ""
            written_as = ENCODINGS[encoding_of(table.path)] + separated
        found = read_meanings([table, *evaluated], texts, label_column, label_type, label_map, bad, guessed=guessed)
        kind, unclear = usual_type if label_type == "auto" else label_type, ""
        for each in found if label_column is not None else ():
            names = each.column(label_column) if label_column in each.columns else []
            if again := next((at for at, name in zip(each.places, names, strict=True) if name == label_column), None):
                warnings.warn(
                    f"column {label_column!r}: the label {label_column!r} ({each.path}, {again}) is also the name of "
                    "the column; if the file has no header, give it one, for its first row is read as such; if the "
                    "header is repeated, delete it there.",
                    stacklevel=2,
                )
        if label_column is not None and kind == "auto":
            kind, unclear = label_type_of(found, texts, label_column)
            if kind == "labels" and not unclear:
                own = [each.column(label_column) for each in (table, *evaluated) if label_column in each.columns]
                lists = [listed(value) for value in chain(*own) if written(value)]
                if lists and all(each is not None and len(each) == 1 for each in lists):
                    unclear = (
                        f"column {label_column!r}: each row has one label, in a list; set --label-type class if no "
                        "row has several, or none, which such a model predicts more surely, otherwise labels."
                    )
    for name in label_columns(list(columns), label_column):
        columns[name] = replace(describe(found[0], name), role=LABEL)
    columns |= {name: replace(columns[name], role=TEXT) for name in texts}
    return Inspection(
        table=found[0],
        evaluated=next(iter(found[1:]), None),
        columns=list(columns.values()),
        text_columns=texts,
        label_column=label_column,
        text_candidates=texts_of,
        label_candidates=labels_of,
        label_type=kind,
        labels=_label_counts(found[0], label_column, kind),
        written_as=written_as,
        notes=tuple(dict.fromkeys(str(warning.message) for warning in caught)),
        unclear=unclear,
        bad=bad,
    )


def check_files(
    train_file: str, eval_file: str | None, *, skip_bad_rows: bool = False, **options: Any
) -> Inspection | None:
    """Inspect the files of a run before loading PyTorch; refuse what the run would refuse later.

    Other options are those of :func:`inspect_files`. Returns None for parallel files.

    Raises:
        AttendropError: As :func:`inspect_files` says; or a text or a label is empty, all labels are the same class, or
            it is unclear whether they are classes.
    """
    if len(files_of(train_file)) > 1:
        return None
    found = inspect_files(train_file, eval_file, bad=BadRows(skip=skip_bad_rows), **options)
    if found.unclear:
        raise AttendropError(found.unclear)
    plain = found.label_column is not None and found.label_type in ("class", "number")
    for table in filter(None, (found.table, found.evaluated)) if plain else ():
        for name in found.text_columns:
            table = table.read([name], read_text, found.bad)
        table.read([str(found.label_column)], read_class, found.bad)
    if plain and len(labels := set(found.written_labels) - {""}) == 1:
        what = "number" if found.label_type == "number" else "class"
        raise AttendropError(f"{train_file} has only one {what}, {labels.pop()!r}; training needs at least two.")
    return found


def _plain_texts(table: Table, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the texts of each row, without differences of case and spaces; empty for what is neither text nor list."""
    rows = table.values(columns)
    return [tuple(plain(str(text)) if isinstance(text, str | list) else "" for text in row) for row in rows]
