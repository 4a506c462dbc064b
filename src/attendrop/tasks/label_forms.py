"""Forms of labels that annotation tools and other libraries write, and that are not read.

Their values would become names of classes, such as ``[0, 3, 'PER']``, to be learnt and scored as such. So each form is
recognised by most values of a column, and refused in a sentence that says what it is and what to do.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from attendrop.errors import AttendropError
from attendrop.tasks.heads.builtin import NUMBER, OF_WORDS, ONE_CLASS, SEVERAL_CLASSES
from attendrop.tasks.table import Table
from attendrop.tasks.values import listed, may_be_missing, number_form, read_list, written, yes_or_no
from attendrop.wording import names_of

# Number of values by which a form is recognised, and the part of them that have it, for a few may be broken.
_MOST_VALUES, _MOST = 1000, 0.8
_SHOWN = 60
# Items of a vector in a text, such as "[0. 1.]" or "0;1", and what NumPy and PyTorch print around them.
_ITEM, _AROUND = re.compile(r"[^\s,;|\[\](){}'\"]+"), re.compile(r"(\w+\.)?(array|tensor)\(|dtype=[\w.]+")
_SPAN = re.compile(r"(\d+)[\s:,;|]+(\d+)[\s:,;|]+[^\W\d]\w*")
# Tags of entities: B-PER is read; BILUO and BMES have further prefixes, and some write them otherwise, such as PER_B.
_READ_TAG, _OUTSIDE = re.compile(r"[BIES]-.+"), {"O", "o", "-", "_", "*"}
_PREFIXED, _SUFFIXED = re.compile(r"([BIESLUMW])[-_:.].+", re.I), re.compile(r".+[-_:.]([BIESLUMW])", re.I)
# What numbers the sentences of a table with a word in each row, and the longest word there.
_NUMBER = re.compile(r".*(sent|satz|phrase|utter|doc).*|(.*[\W_])?(s?id|nr|no|num|number|idx|index|#)", re.I)
_LONGEST_WORD = 40
# What an annotator decides on a row, and columns that a tool writes beside it.
_DECISION = re.compile(r"(accept|reject|ignor|skip)(e|ed|ped)?", re.I)
_BESIDE_DECISION = re.compile(r"options|accept|spans|_\w+")


def check_form(
    table: Table,
    text_columns: Sequence[str],
    columns: Sequence[str],
    label_type: str = "auto",
    *,
    guessed: bool = False,
) -> None:
    """Refuse labels in a form that is not read, and a multiple choice that nobody asked for.

    Args:
        table: Rows of training, their labels as they are meant.
        text_columns: Columns of the texts.
        columns: The column of the labels, or all that may be.
        label_type: Type of the labels.
        guessed: Whether the columns are guessed, so that another may be meant.

    Raises:
        AttendropError: It says what the labels are, with an example, and what to do.
    """
    lists = [any(listed(value) is not None for value in _some(table, name)[:1]) for name in text_columns]
    if label_type == "auto" and (len(lists) > 2 or lists == [False, True]):
        raise AttendropError(
            f"{table.path}: {names_of(text_columns)} may be a question with its choices, or parts of a text to "
            "classify; add --label-type choice, or give one or two text columns, with the others joined into them."
        )
    if label_type in ("auto", *ONE_CLASS, *SEVERAL_CLASSES, *NUMBER, *OF_WORDS):
        _check_decisions(table, columns, guessed=guessed)
    if label_type not in ("auto", *SEVERAL_CLASSES, *OF_WORDS):  # classes that are asked for have any names
        return
    of_words = any(lists) or label_type in OF_WORDS
    for name in columns:
        values, where = _some(table, name), f"{table.path}, column {name!r}"
        if not values or "answer_start" in (first if isinstance(first := _parsed(values[0]), dict) else ()):
            continue  # answers as in SQuAD
        if not any(lists):
            _check_one_word(table, name, values)
        tags = {tag for value in table.column(name) for tag in read_list(value) or ()} if of_words else ()
        if scheme := tag_scheme(tags):
            raise AttendropError(
                f"{where}: the tags are {scheme}, which are not read; write IOB2, that is B-PER for the first word of "
                "an entity, I-PER for its other words, and O for words that are in none."
            )
        for is_one, what, remedy in _FORMS[:1] if of_words else _FORMS[:2] if guessed else _FORMS:
            if sum(map(is_one, values)) >= _MOST * len(values):
                example = written(next(filter(is_one, values)))
                shown = example if len(example) <= _SHOWN else f"{example[:_SHOWN]}..."
                other = "; if the labels are in another column, name it with --label-column" if guessed else ""
                raise AttendropError(f"{where}: the labels are {what}, such as {shown}; {remedy}{other}.")


def tag_scheme(tags: Collection[str]) -> str:
    """Describe tags of entities that are neither IOB1, IOB2 nor IOBES; empty for these, and for all other tags."""
    outside, others = sorted(set(tags) & _OUTSIDE), sorted(set(tags) - _OUTSIDE)
    unread = [tag for tag in others if not _READ_TAG.fullmatch(tag)] or [tag for tag in outside if tag != "O"]
    for form, what in ((_PREFIXED, "with prefixes"), (_SUFFIXED, "with prefixes as suffixes")):
        found = [form.fullmatch(tag) for tag in others]
        letters = {each[1].upper() for each in found if each}
        if outside and unread and all(found) and letters & set("BSUW"):
            what = "BILUO" if letters & set("LU") and form is _PREFIXED else what
            return f"of entities, {what}, such as {names_of(unread[:3])}"
    return ""


def _some(table: Table, name: str) -> list[Any]:
    """Return the first values of a column that are not empty."""
    there = (value for value in table.column(name) if not may_be_missing(str(value)) and not _is_empty(_parsed(value)))
    return list(islice(there, _MOST_VALUES))


def _is_empty(value: Any) -> bool:
    """Tell whether a value is a list or an object that holds nothing but empty ones."""
    return isinstance(value, list | dict) and all(map(_is_empty, value.values() if isinstance(value, dict) else value))


def _parsed(value: Any) -> Any:
    """Return what a text stands for in JSON, or as Python prints it; other values as they are."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{", "("):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.literal_eval(value.strip())
    return value


def _items(value: Any) -> list[str]:
    """Return the items of a list, or of a text with brackets, spaces, commas, semicolons or bars around them."""
    found = _parsed(value)
    if isinstance(found, list | tuple):
        return [written(item) for item in found]
    return _ITEM.findall(_AROUND.sub("", value)) if isinstance(value, str) and number_form(value) == "text" else []


def _is_span(value: Any) -> bool:
    """Tell whether a value has spans of characters: two numbers and a name each, by key or not, at any depth."""
    found = _parsed(value)
    if isinstance(found, str):
        spans = _SPAN.findall(found)
        return bool(spans) and not _ITEM.search(_SPAN.sub("", found)) and all(int(a) < int(b) for a, b in spans)
    if isinstance(found, dict):
        named = {re.sub(r"[^a-z]", "", str(key).lower()): item for key, item in found.items()}
        numbers = [key for key, item in named.items() if number_form(written(item)) == "whole"]
        starts = any(key.startswith(("start", "begin", "from", "offset")) for key in numbers)
        ends = any(key.startswith(("end", "stop", "to", "len")) for key in numbers)
        is_named = any(isinstance(item, str | list) for key, item in named.items() if key not in ("text", *numbers))
        return (starts and ends and is_named) or any(map(_is_span, found.values()))
    if not isinstance(found, list | tuple):
        return False
    places = [item for item in found if isinstance(item, int) and not isinstance(item, bool)]
    is_one = len(places) == 2 and 0 <= places[0] < places[1] and any(isinstance(item, str) for item in found)
    return is_one or any(map(_is_span, found))


def _is_vector(value: Any) -> bool:
    """Tell whether a value says yes or no to each of several labels, without their names."""
    items = _items(value)
    return len(items) > 1 and all(yes_or_no(item) is not None or item == "-1" for item in items)


def _is_of_fractions(value: Any) -> bool:
    """Tell whether a value is a vector of numbers that cannot be names, for some have a decimal fraction."""
    forms = set(map(number_form, items)) if len(items := _items(value)) > 1 else set()
    return "decimal" in forms and forms <= {"decimal", "whole"}


def _is_of_tags(value: Any) -> bool:
    """Tell whether a value has tags of entities for several words."""
    items = listed(value) or written(value).split()
    return len(items) > 1 and "O" in items and all(item == "O" or _PREFIXED.fullmatch(written(item)) for item in items)


def _is_nested(value: Any) -> bool:
    """Tell whether a value is a list of objects or lists, or a text that stands for something else than a list."""
    found = _parsed(value)
    if isinstance(found, list):
        return any(isinstance(item, dict | list | tuple) for item in found)
    return isinstance(value, str) and isinstance(found, dict | tuple | set)


_WORDS = 'such as {"tokens": ["Anna", "left"], "tags": ["B-PER", "O"]}'
_NAMES = 'the names of the labels that a row has, such as ["late", "broken"]'
# What a value is, in words, and what to do, in the order in which the forms are tried.
_FORMS = (
    (_is_span, "spans of characters", f"write the words of each text and a tag for each word, {_WORDS}"),
    (
        _is_vector,
        "vectors of zeros and ones",
        f"write {_NAMES}, or a column of zeros and ones for each, and add --label-column late,broken",
    ),
    (_is_of_fractions, "vectors of numbers", f"write one number, or {_NAMES}"),
    (_is_of_tags, "tags of words", f"write lists of words, too, {_WORDS}, or add --label-type tags"),
    (_is_nested, "objects or lists of them", f"write the name of the class, or {_NAMES}"),
)


def _check_one_word(table: Table, label: str, values: Sequence[Any]) -> None:
    """Refuse a table with a word in each row, and its tag: each word would be a sentence."""
    tags = {written(value) for value in values}
    of_entities = "O" in tags and all(
        tag == "O" or _PREFIXED.fullmatch(tag) or _SUFFIXED.fullmatch(tag) for tag in tags
    )
    columns = {
        name: [str(value or "").strip() for value in table.column(name)] for name in table.columns if name != label
    }
    words = numbers = False
    for name, texts in columns.items():
        # Words, of which some are signs of punctuation, and sentences in one piece, each of which may be named once.
        single = all(len(text.split()) == 1 and len(text) <= _LONGEST_WORD for text in texts)
        words |= single and any(not any(map(str.isalnum, text)) for text in texts)
        begun = [text for text, before in zip(texts, ["", *texts], strict=False) if text not in ("", before)]
        once = 1 < len(set(begun)) == len(begun) <= len(texts) / 2
        numbers |= once and _NUMBER.fullmatch(name) is not None
    if (of_entities and len(tags) > 1) or (words and numbers):
        raise AttendropError(
            f"{table.path} has a word in each row, and its tag in {label!r}; write a sentence in each row, {_WORDS}, "
            "or a .conll file, with a word and its tag on a line, and an empty line after each sentence."
        )


def _check_decisions(table: Table, columns: Sequence[str], *, guessed: bool) -> None:
    """Refuse the export of a tool in which annotators accept or reject rows: not all of their labels are right."""
    for name in table.columns if guessed else [name for name in table.columns if name not in columns]:
        decisions = [str(value) for value in _some(table, name)]
        rejected = [each for each in decisions if not each.lower().startswith("accept")]
        if not rejected or not all(map(_DECISION.fullmatch, decisions)):
            continue
        for other in table.columns:
            of_tool = _BESIDE_DECISION.fullmatch(other) or (name == "answer" and other in ("label", "labels"))
            objects = guessed and any(isinstance(_parsed(value), dict | list) for value in _some(table, other)[:1])
            if other != name and (of_tool or objects):
                raise AttendropError(
                    f"{table.path} is an export of annotations: {name!r} says which rows an annotator accepted, and "
                    f"labels of {rejected[0]!r} rows may be wrong; keep the accepted rows, with the names of their "
                    f"labels in a column, or add --label-column {name} to predict the decision."
                )
