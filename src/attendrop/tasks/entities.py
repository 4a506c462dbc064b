"""Entities in files: spans of characters, as annotation tools write them, and schemes of tags, as tags of IOB2."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any

from attendrop.tasks.table import UNSPACED, BadValue, Table, listed, written

OUTSIDE = "O"
# Words of texts with spans: letters and digits up to a space or punctuation, each sign of it, and each letter of a
# script without spaces. Marks that join letters (U+200C and U+200D) are no punctuation.
_SIGNS = r"!-/:-@\[-`{-~\u00a1-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf\u2010-\u2027\u2030-\u205e\u2e00-\u2e7f"
_SIGNS += r"\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
_WORD = re.compile(rf"[{UNSPACED}]|[^\s{_SIGNS}{UNSPACED}]+|\S")
# What tools call the parts of a span that is an object.
_KEYS = (("start", "start_offset"), ("end", "end_offset"), ("label", "type", "entity", "tag", "name", "labels"))
# Tags of entities: B-PER is read; BILUO, BMES and BMEWO have further prefixes, and some write them as PER_B.
_READ_TAG, _OUTSIDE = re.compile(r"[BIES]-.+"), {OUTSIDE, "o", "-", "_", "*"}
_PREFIXED, _SUFFIXED = re.compile(r"([BIESLUMW])[-_:.](.+)", re.I), re.compile(r"(.+)[-_:.]([BIESLUMW])", re.I)
TAG = re.compile(rf"O|{_PREFIXED.pattern}|{_SUFFIXED.pattern}", re.I)
_IOB2 = {"L": "I", "U": "B", "M": "I", "W": "B", "E": "I", "S": "B"}
Span = tuple[int, int, str]

# Spans ----------------------------------------------------------------------------------------------------------------


def words_of(text: str) -> list[tuple[int, int]]:
    """Return where each word of a text begins and ends, in characters: names, numbers, and each sign of punctuation."""
    return [found.span() for found in _WORD.finditer(text)]


def read_spans(value: Any, text: str | None = None) -> list[Span]:
    """Read spans as lists ``[start, end, type]``, or objects such as ``{"start": 0, "end": 4, "label": "PER"}``.

    Returns:
        First character, character after the last, and type of each, in the order of the text.

    Raises:
        BadValue: The value is no list of spans; an empty list is one. Or the ``text`` of an object, which many tools
            write beside the numbers, is not there in the row's ``text``, if that is given.
    """
    found = listed(value)
    if found is None:
        raise BadValue(f"{written(value)[:60]!r} is no list of spans; write [] where a text has no entity")
    spans = []
    for item in found:
        parts: Sequence[Any] = item if isinstance(item, list | tuple) else ()
        if isinstance(item, dict):
            parts = [next((item[name] for name in names if name in item), None) for names in _KEYS]
            parts[2] = parts[2][0] if isinstance(parts[2], list) and len(parts[2]) == 1 else parts[2]
        whole = len(parts) == 3 and all(isinstance(part, int) and not isinstance(part, bool) for part in parts[:2])
        if not whole or not isinstance(parts[2], str) or not parts[2].strip():
            raise BadValue(
                f'{str(item)[:60]} is no span; write [start, end, type], or {{"start": 0, "end": 4, "label": "PER"}}'
            )
        start, end, own = parts[0], parts[1], item.get("text") if isinstance(item, dict) else None
        if isinstance(own, str) and text is not None and own.split() != text[max(start, 0) : end].split():
            there = text[max(start, 0) : end][:60]
            raise BadValue(
                f"the span [{start}, {end}, {parts[2]!r}] is of {own[:60]!r}, and the text has {there!r} there; "
                "correct the numbers: characters count from 0, and the end is the one after the last"
            )
        spans.append((start, end, parts[2].strip()))
    return sorted(spans)


def are_spans(values: Collection[Any]) -> bool:
    """Return whether most values are lists of spans, and one has a span: others are mistakes in such a column."""
    lists = [value for value in values if listed(value) is not None]
    filled, right = [value for value in lists if listed(value)], 0
    for value in filled:
        with suppress(BadValue):
            right += bool(read_spans(value))
    return right > 0 and 2 * right > len(filled) and 2 * len(lists) > len(values)


def span_tags(text: str, spans: Sequence[Span]) -> list[str]:
    """Return a tag of IOB2 for each word of a text, given spans of its entities, at whose ends spaces do not count.

    Raises:
        BadValue: A span is outside the text or empty, begins or ends within a word, or overlaps another.
    """
    words = words_of(text)
    starts, ends = {start: n for n, (start, _) in enumerate(words)}, {end: n for n, (_, end) in enumerate(words)}
    tags, trimmed = [OUTSIDE] * len(words), list[tuple[int, int]]()
    for start, end, kind in spans:
        shown = f"the span [{start}, {end}, {kind!r}]"
        if not 0 <= start < end <= len(text):
            raise BadValue(f"{shown} is outside the text of {len(text)} characters, or empty")
        covered = text[start:end]
        first, last = start + len(covered) - len(covered.lstrip()), end - len(covered) + len(covered.rstrip())
        if first not in starts or last not in ends or first >= last:
            raise BadValue(f"{shown}, {covered!r}, begins or ends within a word; move it to the word's ends")
        trimmed.append((first, last))
        tags[starts[first] : ends[last] + 1] = [f"B-{kind}", *[f"I-{kind}"] * (ends[last] - starts[first])]
    for (one, other), ((_, end), (start, _)) in zip(pairwise(spans), pairwise(trimmed), strict=True):
        if start < end:
            raise BadValue(f"the spans {list(one)} and {list(other)} overlap, and a word has one tag; keep one of them")
    return tags


def tagged_spans(text: str, found: Collection[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Return entities, given by type, first and last word, as spans with the text that they cover, in its order."""
    words = words_of(text)
    spans = sorted((words[first][0], words[last][1], kind) for kind, first, last in found)
    return [{"start": start, "end": end, "label": kind, "text": text[start:end]} for start, end, kind in spans]


# Tags -----------------------------------------------------------------------------------------------------------------


def standard_tags(tags: Collection[str], known: Collection[str] = ()) -> dict[str, str]:
    """Return what tags of entities in other schemes are in IOB2, such as ``{"U-PER": "B-PER"}``; IOBES stays.

    ``known`` are the tags of a model: if they are in IOB2, so is what looks like IOBES, as BMES without an M does.

    Read are BILUO, BMES and BMEWO, ``B_PER``, ``PER-B``, and other signs for words outside of entities. Empty for tags
    in IOB1, IOB2 or IOBES, and for tags that mark no entities.
    """
    outside, others = set(tags) & _OUTSIDE, sorted(set(tags) - _OUTSIDE)
    for form, prefix, kind in ((_PREFIXED, 1, 2), (_SUFFIXED, 2, 1)):
        found = [match for tag in others if (match := form.fullmatch(tag))]
        letters = {match[prefix].upper() for match in found}
        if not outside or not found or len(found) < len(others) or not letters & set("BISUW"):
            continue
        of_model = are_entity_tags(known) and not any(tag.startswith(("E-", "S-")) for tag in known)
        to_iob2 = _IOB2 if of_model or letters & set("LUMW") else {}
        standard = {m[0]: f"{to_iob2.get(m[prefix].upper(), m[prefix].upper())}-{m[kind]}" for m in found}
        standard |= dict.fromkeys(outside, OUTSIDE)
        return {tag: new for tag, new in standard.items() if tag != new}
    return {}


def are_entity_tags(names: Iterable[str]) -> bool:
    """Return whether tags mark entities: "O", and others such as "B-PER"."""
    others = set(names) - {OUTSIDE}
    return bool(others) and all(map(_READ_TAG.fullmatch, others))


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert the tags of a sentence from IOB1, in which most entities begin with "I-", to IOB2; other tags stay."""
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and last[2:] != tag[2:] else tag
        for last, tag in pairwise([OUTSIDE, *tags])
    ]


def as_iob2(tables: Sequence[Table], column: str | None, known: Collection[str] = ()) -> list[Table]:
    """Return tables with their tags of words, in a column that they may lack, in IOB2 or IOBES; warn of changes.

    ``known`` are the tags of a model, which show that those of few rows mark entities.
    """
    if column is None or not all(column in table.columns for table in tables):
        return list(tables)
    written_tags = [
        [[written(tag) for tag in listed(value) or written(value).split()] for value in table.column(column)]
        for table in tables
    ]
    names, found = {*chain(*chain(*written_tags)), *([OUTSIDE] if are_entity_tags(known) else [])}, []
    standard = standard_tags(names, known)
    are_entities = are_entity_tags(known or [standard.get(tag, tag) for tag in chain(*written_tags[0])])
    if len(names) > 1 and not are_entities and (OUTSIDE in names or all(map(str.isdecimal, names))):
        bare = min(name for name in names - {OUTSIDE} if not _READ_TAG.fullmatch(standard.get(name, name)))
        said = f"tags such as {bare!r} do not say where entities begin, as B-PER and I-PER do"
        if bare in "BIES":
            said = (
                f"tags such as {bare!r} have no type; a label map that reads B as B-TERM, and I as I-TERM, gives it one"
            )
        warnings.warn(f"{tables[0].path}, column {column!r}: {said}: words are scored, and not entities.", stacklevel=2)
    for table, rows in zip(tables, written_tags, strict=True):
        where = f"{table.path}, column {column!r}"
        if told := [f"{tag!r} as {standard[tag]!r}" for tag in sorted(standard.keys() & {*chain(*rows)})]:
            shown = ", ".join(told[:8]) + (", ..." if len(told) > 8 else "")
            warnings.warn(f"{where}: tags in another scheme are read in IOB2, {shown}.", stacklevel=2)
        read = [[standard.get(tag, tag) for tag in row] for row in rows]
        begun = [to_iob2(row) for row in read] if are_entities else read
        if begun != read:
            warnings.warn(f"{where}: tags in IOB1 are read in IOB2, in which entities begin with B-.", stacklevel=2)
        kept = zip(table.column(column), rows, begun, strict=True)  # what cannot be read is reported later
        changed = [value if row == new else new for value, row, new in kept]
        found.append(table if begun == rows else table.with_column(column, changed))
    return found
