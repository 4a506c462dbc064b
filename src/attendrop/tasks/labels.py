"""Labels of files before a head reads them: what they mean, variants of one, and forms that are refused.

Forms that annotation tools and other libraries write would become names of classes, such as ``[0, 3, 'PER']``, to be
learnt and scored as such. So each is recognised by most values of a column, and refused in a sentence that says what it
is and what to do.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from itertools import chain, islice
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.support.files import check_output, write_text
from attendrop.tasks.table import BadRows, Table, read_table
from attendrop.tasks.types.builtin import NUMBER, OF_WORDS, ONE_CLASS, SEVERAL_CLASSES
from attendrop.tasks.values import (
    class_name,
    is_missing,
    label_names,
    listed,
    may_be_missing,
    number_form,
    plain,
    pointed,
    read_list,
    written,
    yes_or_no,
)
from attendrop.wording import names_of

LABEL, MEANING = "label", "meaning"
# Spaces, which are all blanks in a plain text, and letters without a shape, such as a soft hyphen.
_UNSEEN = ("Zs", "Cf")
# How much rarer a misspelling is, at least.
_TIMES_RARER = 4
# Labels that are compared; more are hardly classes, and comparing takes the square of their number.
_MOST_LABELS = 300
# Number of values by which a form is recognised, and the part of them that have it, for a few may be broken.
_MOST_VALUES, _MOST = 1000, 0.8
# Items of a vector in a text, such as "[0. 1.]" or "0;1", and what NumPy and PyTorch print around them.
_ITEM, _AROUND = re.compile(r"[^\s,;|\[\](){}'\"]+"), re.compile(r"(\w+\.)?(array|tensor)\(|dtype=[\w.]+")
# A span in a text, such as 0:4:PER, but no time of day.
_SPAN = re.compile(r"(\d+) ?([ :,;|]) ?(\d+) ?\2 ?(?![ap]m\b)[^\W\d]\w*", re.I)
# Tags of entities: B-PER is read; BILUO and BMES have further prefixes, and some write them otherwise, such as PER_B.
_READ_TAG, _OUTSIDE = re.compile(r"[BIES]-.+"), {"O", "o", "-", "_", "*"}
_PREFIXED, _SUFFIXED = re.compile(r"([BIESLUMW])[-_:.].+", re.I), re.compile(r".+[-_:.]([BIESLUMW])", re.I)
_TAG = re.compile(rf"O|{_PREFIXED.pattern}|{_SUFFIXED.pattern}", re.I)
# Columns that number the sentences of a table with a word in each row, or may do so, and the longest word there.
_SENTENCE = re.compile(r".*(sent|satz|phrase|utter|doc).*", re.I)
_NUMBER = re.compile(r"(.*[\W_])?(s?id|nr|no|num|number|idx|index|#)", re.I)
_LONGEST_WORD = 40
# What an annotator decides on a row, and columns that a tool writes beside it.
_DECISION = re.compile(r"(accept|reject|ignor|skip)(e|ed|ped)?", re.I)
_BESIDE_DECISION = re.compile(r"options|accept|spans|_\w+")

# What labels mean -----------------------------------------------------------------------------------------------------


def read_label_map(path: str | Path) -> dict[str, str]:
    """Read a file with the columns ``label`` and ``meaning``, or with two others in this order.

    Raises:
        AttendropError: The file cannot be read, or a label has two meanings.
    """
    table = read_table(path)
    names = [LABEL, MEANING] if {LABEL, MEANING} <= set(table.columns) else table.columns[:2]
    if len(names) < 2:
        raise AttendropError(f"the label map {path} has one column; give it two, {LABEL} and {MEANING}.")
    meanings: dict[str, str] = {}
    for place, row in zip(table.places, table.values(names), strict=True):
        label, meaning = map(written, row)
        if (known := meanings.setdefault(label, meaning)) != meaning:
            raise AttendropError(f"{path}, {place}: {label!r} means {known!r} and {meaning!r}; delete one of them.")
    return meanings


def write_label_map(
    path: str | Path, counts: Mapping[str, int], inputs: Iterable[str | Path] = (), *, overwrite: bool = False
) -> None:
    """Write a draft of a label map, to be corrected: each label, its likely meaning, and its rows, of ``counts``.

    Raises:
        AttendropError: The file exists and may not be replaced, which ``inputs`` never are.
    """
    check_output(path, inputs, overwrite=overwrite)
    meanings = {label: group[0] for group in label_variants(counts) for label in group}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((LABEL, MEANING, "rows"))
    rows.writerows((label, meanings.get(label, label), count) for label, count in counts.items())
    write_text(Path(path), text.getvalue())


def label_variants(counts: Mapping[str, int]) -> list[list[str]]:
    """Group labels that may be the same: they differ in case, spaces and punctuation, or by a misspelling.

    A misspelling is much rarer than the label that it stands for; ``counts`` has the rows of each label. Groups have
    two labels or more, the most frequent first.
    """

    def bare(label: str) -> str:
        """Return what two spellings of a label share. Signs of -1, C++ or <=50K, and points of numbers, stay."""
        text = "".join(c for c in plain(label).replace("_", " ") if unicodedata.category(c) not in _UNSEEN)
        if any(letter.isdigit() for letter in text):
            return text
        return re.sub(r"(?<=\w)[-.,/'’\"()]+(?=\w)", "", text.strip(".,;:'’\"()"))

    def misspelt(first: str, second: str) -> bool:
        """Return whether labels differ in one letter, or two if they are long; other digits are no misspelling."""
        if min(len(first), len(second)) < 4 or first.endswith(second) or second.endswith(first):
            return False  # "entailment" and "not entailment"
        if re.findall(r"\d", first) != re.findall(r"\d", second):
            return False
        matcher = SequenceMatcher(None, first, second, autojunk=False)
        length = len(first) + len(second)
        least = 1 - (2 if length < 20 else 4) / length  # a letter that is replaced is missing in both
        return matcher.real_quick_ratio() >= least and matcher.ratio() >= least

    groups: dict[str, list[str]] = {}  # by the bare form of the first label
    for label in sorted(counts, key=lambda each: -counts[each])[:_MOST_LABELS]:
        own = bare(label)
        for main, group in groups.items():
            rare = _TIMES_RARER * counts[label] <= counts[group[0]]
            if (main == own and own) or (rare and misspelt(own, main)):
                group.append(label)
                break
        else:
            groups[own or label] = [label]
    return [group for group in groups.values() if len(group) > 1]


def label_columns(columns: Sequence[str], label_column: str | None) -> list[str]:
    """Return the columns of the labels: the one that is named, or several, comma-separated, with a label each."""
    if label_column is None:
        return []
    parts = [part.strip() for part in label_column.split(",")]
    known = sum(part in columns for part in parts)
    return parts if known == len(parts) or (known and label_column not in columns) else [label_column]


def as_meant(
    table: Table, column: str | None, meanings: Mapping[str, str], label_type: str, bad: BadRows | None = None
) -> Table:
    """Return the table with its labels, in a column that it may lack, replaced by what they mean.

    Several columns, see :func:`label_columns`, become an additional one with a list of the labels that a row has; a row
    with other values than yes or no is reported to ``bad``. Labels that ``meanings`` lacks are kept. A value may hold
    several labels if the label type is in ``SEVERAL_CLASSES``. If labels are numbers, by a type in ``NUMBER`` or all of
    them with "auto" but for missing ones, ``0,5`` is 0.5 in a file separated by semicolons, as spreadsheets write it.
    """
    if column is not None and column not in table.columns and len(names := label_columns(table.columns, column)) > 1:
        table.values(names)  # raises if one is missing
        no_answer = "{!r} does not say whether the row has this label; write 0 or 1".format
        for name in names:
            table = table.checked(name, lambda v: no_answer(v) if yes_or_no(v) is None else None, bad or BadRows())
        marked = [[n for n, value in zip(names, row, strict=True) if yes_or_no(value)] for row in table.values(names)]
        table = table.with_column(column, marked)
    if column is None or column not in table.columns:
        return table

    def meaning(value: Any, several: bool) -> Any:
        for label in (written(value), class_name(value)):  # drafts have 1 for 1.0
            if label in meanings and not isinstance(value, list):
                return meanings[label]
        if (found := listed(value)) is not None:
            return [meaning(each, False) for each in found]
        if several and isinstance(value, str) and (names := list(filter(None, label_names(value)))):
            return [meanings.get(name, name) for name in names]
        return value

    def is_number(value: Any) -> bool:
        return number_form(pointed(str(value)).strip()) in ("whole", "decimal")

    labels = table.column(column)
    if meanings:
        labels = [meaning(value, label_type in SEVERAL_CLASSES) for value in labels]
        table = table.with_column(column, labels)
    if table.delimiter == ";" and label_type in ("auto", *NUMBER):
        others = [] if label_type != "auto" else [value for value in labels if not is_number(value)]
        if all(may_be_missing(str(value)) for value in others):
            table = table.with_column(column, [pointed(value) if is_number(value) else value for value in labels])
    return table


def check_map(path: str | Path, meanings: Mapping[str, str], table: Table, column: str | None) -> None:
    """Raise AttendropError if a map, read from a path, has none of the labels in a column of a table."""
    names = label_columns(table.columns, column)
    values = names if len(names) > 1 else table.column(names[0]) if names else []
    found = {written(value) for value in values if not is_missing(value)}
    found |= {name for value in values for name in label_names(value)} | set(map(class_name, found))
    if found and not found & meanings.keys():
        raise AttendropError(
            f"the label map {path} has none of the labels of {table.path}, column {column!r}, such as "
            f"{names_of(sorted(found)[:5])}; correct its column {LABEL!r}, or omit it."
        )


# Forms that are refused -----------------------------------------------------------------------------------------------


def check_form(
    table: Table,
    text_columns: Sequence[str],
    columns: Sequence[str],
    label_type: str = "auto",
    *,
    guessed: bool = False,
) -> None:
    """Refuse labels in a form that is not read, chats, and a multiple choice that nobody asked for.

    Args:
        table: Rows of training, their labels as they are meant.
        text_columns: Columns of the texts.
        columns: The column of the labels, or all that may be.
        label_type: Type of the labels.
        guessed: Whether the columns are guessed, so that another may be meant.

    Raises:
        AttendropError: It says what the labels are, with an example, and what to do.
    """
    for name in text_columns:
        first = _parsed(next(iter(_some(table, name)), None))
        if isinstance(first, list) and first and all(isinstance(each, dict) and "role" in each for each in first):
            raise AttendropError(
                f"{table.path}: {name!r} has chats; to classify them, write each as one text. A causal language model "
                "trains on their replies in Python: examples/sft.py."
            )
    lists = [any(listed(value) is not None for value in _some(table, name, 1)) for name in text_columns]
    if label_type == "auto" and (len(lists) > 2 or lists == [False, True]):
        raise AttendropError(
            f"{table.path}: {names_of(text_columns)} may be a question with its choices, or parts of a text to "
            "classify; add --label-type choice, or give one or two text columns, with the others joined into them."
        )
    if label_type in ("auto", *ONE_CLASS, *SEVERAL_CLASSES, *NUMBER, *OF_WORDS):
        _check_decisions(table, columns, guessed=guessed)
    if label_type not in ("auto", *SEVERAL_CLASSES, *OF_WORDS):  # classes that are asked for have any names
        return
    if columns and not any(lists):
        _check_one_word(table, columns)
    of_words = any(lists) or label_type in OF_WORDS
    for name in columns:
        # Without lists and objects that hold nothing, which may be of any form.
        values = [v for v in _some(table, name) if not all(isinstance(part, dict | list) for part in _parts(v))]
        where = f"{table.path}, column {name!r}"
        tags = (read_list(value) or () for value in (values if guessed else table.column(name))) if of_words else ()
        if of_words and (scheme := tag_scheme(set(chain.from_iterable(tags)))):
            raise AttendropError(
                f"{where}: the tags are {scheme}, which are not read; write IOB2, that is B-PER for the first word of "
                "an entity, I-PER for its other words, and O for words that are in none."
            )
        forms = list(map(_form, values))
        for form in (_SPANS,) if of_words else (_SPANS, _VECTORS) if guessed else _REMEDIES:
            if forms and forms.count(form) >= _MOST * len(forms):
                example = written(values[forms.index(form)])
                shown = example if len(example) <= 60 else f"{example[:60]}..."
                other = "; if the labels are in another column, name it with --label-column" if guessed else ""
                raise AttendropError(f"{where}: the labels are {form}, such as {shown}; {_REMEDIES[form]}{other}.")


def tag_scheme(tags: Collection[str]) -> str:
    """Describe tags of entities that are neither IOB1, IOB2 nor IOBES; empty for these, and for all other tags."""
    outside, others = sorted(set(tags) & _OUTSIDE), sorted(set(tags) - _OUTSIDE)
    unread = [tag for tag in others if not _READ_TAG.fullmatch(tag)] or [tag for tag in outside if tag != "O"]
    for form, what in ((_PREFIXED, "with prefixes"), (_SUFFIXED, "with prefixes as suffixes")):
        found = [form.fullmatch(tag) for tag in others]
        letters = {each[1].upper() for each in found if each}
        if outside and unread and all(found) and letters & set("BISUW"):
            what = "BILUO" if letters & set("LU") and form is _PREFIXED else what
            return f"of entities, {what}, such as {names_of(unread[:3])}"
    return ""


def _some(table: Table, name: str, most: int = _MOST_VALUES) -> list[Any]:
    """Return the first values of a column that are not missing."""
    return list(islice((value for value in table.column(name) if not may_be_missing(str(value))), most))


def _parsed(value: Any) -> Any:
    """Return what a text stands for in JSON, or as Python prints it; other values as they are."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{", "("):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.literal_eval(value.strip())
    return value


def _parts(value: Any) -> Iterator[Any]:
    """Yield a value, and all that it holds at any depth; texts of lists and objects as these."""
    parts = [value]
    while parts:
        part = _parsed(parts.pop())
        yield part
        parts.extend(part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ())


def _is_span(part: Any) -> bool:
    """Tell whether a part of a value is a span of characters: two numbers and a name, by key or not."""
    if isinstance(part, str):
        spans = _SPAN.findall(part)
        return bool(spans) and not _ITEM.search(_SPAN.sub("", part)) and all(int(a) < int(b) for a, _, b in spans)
    if isinstance(part, dict):
        named = {re.sub(r"[^a-z]", "", str(key).lower()): item for key, item in part.items()}
        numbers = [key for key, item in named.items() if number_form(written(item)) == "whole"]
        starts = any(key.startswith(("start", "begin", "from", "offset")) for key in numbers)
        ends = any(key.startswith(("end", "stop", "to", "len")) for key in numbers)
        others = (item for key, item in named.items() if key not in ("text", *numbers))
        return starts and ends and any(isinstance(item, str | list) for item in others)
    items = part if isinstance(part, list | tuple) else ()
    places = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
    return len(places) == 2 and 0 <= places[0] < places[1] and any(isinstance(item, str) for item in items)


_SPANS, _VECTORS, _ANSWERS, _FRACTIONS, _TAGS, _OBJECTS = (
    *("spans of characters", "vectors of zeros and ones", "answers in texts, as in SQuAD", "vectors of numbers"),
    *("tags of words", "objects or lists of them"),
)
_WORDS = 'such as {"tokens": ["Anna", "left"], "tags": ["B-PER", "O"]}'
_NAMES = 'the names of the labels that a row has, such as ["late", "broken"]'
# What to do about each form.
_REMEDIES = {
    _SPANS: f"write the words of each text and a tag for each word, {_WORDS}",
    _VECTORS: f"write {_NAMES}, or a column of zeros and ones for each, and add --label-column late,broken",
    _ANSWERS: "a model learns to find them in Python: examples/question_answering.py",
    _FRACTIONS: f"write one number, or {_NAMES}",
    _TAGS: f"write lists of words, too, {_WORDS}, or add --label-type tags",
    _OBJECTS: f"write the name of the class, or {_NAMES}",
}


def _form(value: Any) -> str:
    """Return the form of a label that is not read, of :data:`_REMEDIES`; empty for a name, a number or their list."""
    if any(map(_is_span, _parts(value))):
        return _SPANS
    found, items = _parsed(value), list[str]()
    if isinstance(found, list | tuple):
        items = list(map(written, found))
    elif isinstance(value, str) and number_form(value) == "text":  # with brackets, spaces or separators around them
        items = _ITEM.findall(_AROUND.sub("", value))
    if len(items) > 1 and all(yes_or_no(item) is not None or item == "-1" for item in items):
        return _VECTORS
    if isinstance(found, dict) and "answer_start" in found:
        return _ANSWERS
    if len(items) > 1 and "decimal" in (forms := set(map(number_form, items))) and forms <= {"decimal", "whole"}:
        return _FRACTIONS
    tags = listed(value) or written(value).split()
    if len(tags) > 1 and "O" in tags and all(_TAG.fullmatch(written(tag)) for tag in tags):
        return _TAGS
    holds = isinstance(found, list) and any(isinstance(item, dict | list | tuple) for item in found)
    return _OBJECTS if holds or (isinstance(value, str) and isinstance(found, dict | tuple | set)) else ""


def _check_one_word(table: Table, columns: Sequence[str]) -> None:
    """Refuse a table with a word in each row, and its tag: each word would be a sentence."""
    where = ""
    for label in columns:
        tags = set(map(written, _some(table, label)))
        if "O" in tags and tags != {"O"} and all(map(_TAG.fullmatch, tags)):
            where = f", and its tag in {label!r}"
    sentences = numbers = signs = False
    words = True
    for name in table.columns:
        texts = [str(value or "").strip() for value in table.column(name)[:_MOST_VALUES]]
        begun = [text for text, before in zip(texts, ["", *texts], strict=False) if text not in ("", before)]
        if 1 < len(set(begun)) == len(begun) <= len(texts) / 2:  # each in one piece, and perhaps named only once there
            sentences |= _SENTENCE.fullmatch(name) is not None
            numbers |= _NUMBER.fullmatch(name) is not None
        else:
            words &= all(len(text.split()) <= 1 and len(text) <= _LONGEST_WORD for text in texts)
            signs |= any(text and not any(map(str.isalnum, text)) for text in texts)  # punctuation
    if where or (words and (sentences or (numbers and signs))):
        raise AttendropError(
            f"{table.path} has a word in each row{where}; write a sentence in each row, {_WORDS}, or a .conll file: a "
            "word and its tag on each line, and an empty line after each sentence."
        )


def _check_decisions(table: Table, columns: Sequence[str], *, guessed: bool) -> None:
    """Refuse the export of a tool in which annotators accept or reject rows: not all of their labels are right."""
    for name in table.columns if guessed else [name for name in table.columns if name not in columns]:
        decisions = list(map(str, _some(table, name)))
        rejected = [each for each in decisions if not each.lower().startswith("accept")]
        if not rejected or not all(map(_DECISION.fullmatch, decisions)):
            continue
        for other in table.columns:
            of_tool = _BESIDE_DECISION.fullmatch(other) or (name == "answer" and other in ("label", "labels"))
            items = _parsed(next(iter(_some(table, other, 1)), None))
            objects = guessed and isinstance(items, list) and isinstance(items[0], dict)
            if other != name and (of_tool or objects):
                raise AttendropError(
                    f"{table.path} is an export of annotations: {name!r} says which rows an annotator accepted, and "
                    f"labels of {rejected[0]!r} rows may be wrong; keep the accepted rows, with the names of their "
                    f"labels in a column, or add --label-column {name} to predict the decision."
                )
