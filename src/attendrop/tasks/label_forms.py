"""Forms of labels that annotation tools and other libraries write, and that are not read.

Their values would become names of classes, such as ``[0, 3, 'PER']``, to be learnt and scored as such. So each form is
recognised by most values of a column, and refused in a sentence that says what it is and what to do.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
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
        first = next((_parsed(value) for value in table.column(name) if not may_be_missing(str(value))), None)
        if isinstance(first, list) and first and all(isinstance(each, dict) and "role" in each for each in first):
            raise AttendropError(
                f"{table.path}: {name!r} has chats; to classify them, write each as one text. A causal language model "
                "trains on their replies in Python: examples/sft.py."
            )
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
    if columns and not any(lists):
        _check_one_word(table, columns)
    for name in columns:
        values, where = _some(table, name), f"{table.path}, column {name!r}"
        if not values:
            continue
        tags = (read_list(value) or () for value in (values if guessed else table.column(name)))
        if of_words and (scheme := tag_scheme(set(chain.from_iterable(tags)))):
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
        if outside and unread and all(found) and letters & set("BISUW"):
            what = "BILUO" if letters & set("LU") and form is _PREFIXED else what
            return f"of entities, {what}, such as {names_of(unread[:3])}"
    return ""


def _some(table: Table, name: str) -> list[Any]:
    """Return the first values of a column that are not empty."""
    there = (value for value in table.column(name) if not may_be_missing(str(value)))
    held = (value for value in there if not all(isinstance(part, dict | list) for part in _parts(value)))
    return list(islice(held, _MOST_VALUES))


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


def _items(value: Any) -> list[str]:
    """Return the items of a list, or of a text with brackets, spaces, commas, semicolons or bars around them."""
    found = _parsed(value)
    if isinstance(found, list | tuple):
        return [written(item) for item in found]
    return _ITEM.findall(_AROUND.sub("", value)) if isinstance(value, str) and number_form(value) == "text" else []


def _is_span(value: Any) -> bool:
    """Tell whether a value holds spans of characters: two numbers and a name each, by key or not."""
    for part in _parts(value):
        if isinstance(part, str):
            spans = _SPAN.findall(part)
            is_span = spans and not _ITEM.search(_SPAN.sub("", part)) and all(int(a) < int(b) for a, _, b in spans)
        elif isinstance(part, dict):
            named = {re.sub(r"[^a-z]", "", str(key).lower()): item for key, item in part.items()}
            numbers = [key for key, item in named.items() if number_form(written(item)) == "whole"]
            starts = any(key.startswith(("start", "begin", "from", "offset")) for key in numbers)
            ends = any(key.startswith(("end", "stop", "to", "len")) for key in numbers)
            names = [
                item for key, item in named.items() if key not in ("text", *numbers) and isinstance(item, str | list)
            ]
            is_span = starts and ends and names
        else:
            items = part if isinstance(part, list | tuple) else ()
            places = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
            is_span = len(places) == 2 and 0 <= places[0] < places[1] and any(isinstance(item, str) for item in items)
        if is_span:
            return True
    return False


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
    return len(items) > 1 and "O" in items and all(_TAG.fullmatch(written(item)) for item in items)


def _is_nested(value: Any) -> bool:
    """Tell whether a value is a list of objects or lists, or a text that stands for something else than a list."""
    found = _parsed(value)
    if isinstance(found, list):
        return any(isinstance(item, dict | list | tuple) for item in found)
    return isinstance(value, str) and isinstance(found, dict | tuple | set)


def _is_answer(value: Any) -> bool:
    """Tell whether a value is an object with the texts and the places of answers."""
    found = _parsed(value)
    return isinstance(found, dict) and "answer_start" in found


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
    (
        _is_answer,
        "answers in texts, as in SQuAD",
        "a model learns to find them in Python: examples/question_answering.py",
    ),
    (_is_of_fractions, "vectors of numbers", f"write one number, or {_NAMES}"),
    (_is_of_tags, "tags of words", f"write lists of words, too, {_WORDS}, or add --label-type tags"),
    (_is_nested, "objects or lists of them", f"write the name of the class, or {_NAMES}"),
)


def _check_one_word(table: Table, columns: Sequence[str]) -> None:
    """Refuse a table with a word in each row, and its tag: each word would be a sentence."""
    where = ""
    for label in columns:
        tags = {written(value) for value in _some(table, label)}
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
        decisions = [str(value) for value in _some(table, name)]
        rejected = [each for each in decisions if not each.lower().startswith("accept")]
        if not rejected or not all(map(_DECISION.fullmatch, decisions)):
            continue
        for other in table.columns:
            of_tool = _BESIDE_DECISION.fullmatch(other) or (name == "answer" and other in ("label", "labels"))
            first = next(iter(_some(table, other)), None)
            objects = guessed and isinstance(items := _parsed(first), list) and isinstance(items[0], dict)
            if other != name and (of_tool or objects):
                raise AttendropError(
                    f"{table.path} is an export of annotations: {name!r} says which rows an annotator accepted, and "
                    f"labels of {rejected[0]!r} rows may be wrong; keep the accepted rows, with the names of their "
                    f"labels in a column, or add --label-column {name} to predict the decision."
                )
