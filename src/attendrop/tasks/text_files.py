"""Readers of text files: lines of one file or of two parallel ones, and column files with a word on each line.

Errors name the file and the line. In column files, columns are separated by tabs where a line has one, otherwise by
spaces; a blank line ends a sentence, which is a row. Comments before a sentence, such as ``# name = value``, and the
``-DOCSTART-`` lines of CoNLL-2003 are not words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.tasks.dialect import text_lines
from attendrop.tasks.file_formats import SOURCE, TARGET
from attendrop.tasks.table import BadRows, Table, in_chunks
from attendrop.wording import counted


def decode(path: Path) -> str:
    """Read a text file, without its byte-order mark; raise AttendropError if it is empty or not text."""
    with text_lines(path) as lines:
        return "".join(lines)


def read_lines(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    """Read a text file in chunks: the column ``text`` has its lines."""
    return _tables(path, (path,), ("text",), size)


def read_parallel(files: Sequence[Path], size: int | None) -> Iterator[Table]:
    """Read two text files, of the same length, in chunks: their lines are the columns ``source`` and ``target``."""
    named = ", ".join(map(str, files))
    if len(files) != 2:
        raise AttendropError(f"{named} are {len(files)} parallel files; give two, of the texts and of their targets.")
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise AttendropError(f"there is no file {missing[0]}.")
    return _tables(Path(named), files, (SOURCE, TARGET), size)


def _tables(path: Path, files: Sequence[Path], columns: Sequence[str], size: int | None) -> Iterator[Table]:
    def rows() -> Iterator[tuple[int, str, list[str]]]:
        for index, texts in enumerate(zip_longest(*lines)):
            if None in texts:
                raise AttendropError(
                    f"{files[texts.index(None)]} ends before line {index + 1}, and the other file goes on; parallel "
                    "files have the same number of lines."
                )
            yield index, f"line {index + 1}", [text.rstrip("\r\n") for text in texts]

    with ExitStack() as stack:
        lines = [stack.enter_context(text_lines(file)) for file in files]
        yield from in_chunks(path, list(columns), rows(), size)


WORDS, TAGS = "tokens", "tags"
# Names of the columns of CoNLL-U that are read.
_CONLLU = {WORDS: 1, "lemma": 2, "upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
_CONLLU_WIDTH = 10
# What a comment begins with; in CoNLL-U no word begins so.
_COMMENT, _CONLLU_COMMENT = re.compile(r"# \S+ ="), re.compile("#")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a column file: its first line with a word, from 1, the fields of words, and comments before it."""

    line: int
    words: list[list[str]]
    comments: list[str]


def read_sentences(lines: Iterable[str], comment: re.Pattern[str] = _COMMENT) -> Iterator[Sentence]:
    """Yield the sentences of a column file, given its lines."""
    first, words, comments = 0, list[list[str]](), list[str]()
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r\n")
        if not line.strip() or line.startswith("-DOCSTART-"):
            if words:
                yield Sentence(first, words, comments)
            if words or not line.strip():
                words, comments = [], []
        elif not words and comment.match(line):
            comments.append(line.removeprefix("#").strip())
        else:
            first = first if words else number
            words.append(line.split("\t") if "\t" in line else line.split())
    if words:
        yield Sentence(first, words, comments)


def read_conll(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    """Read a column file in chunks.

    The first column is ``tokens`` and, if there are several, the last ``tags``; those between are ``column_2``,
    ``column_3`` and so on. Values are lists of strings, one for each word.
    """
    columns: list[str] = []

    def rows() -> Iterator[tuple[int, str, list[Any]]]:
        for index, sentence in enumerate(read_sentences(lines)):
            if not columns:
                others = range(2, len(sentence.words[0]) + 1)
                columns.extend([WORDS, *(f"column_{number}" for number in others[:-1]), *([TAGS] if others else [])])
            wrong = [number for number, word in enumerate(sentence.words) if len(word) != len(columns)]
            if wrong:
                word = sentence.words[wrong[0]]
                problem = f"{counted(len(word), 'column')} where the first line of the file has {len(columns)}"
                bad.add(path, f"line {sentence.line + wrong[0]}", index, problem, word)
            else:
                yield index, f"line {sentence.line}", [list(values) for values in zip(*sentence.words, strict=True)]

    with text_lines(path) as lines:
        yield from in_chunks(path, columns, rows(), size)


def read_conllu(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    """Read a CoNLL-U file (Universal Dependencies) in chunks.

    The columns are ``tokens``, ``lemma``, ``upos``, ``xpos``, ``feats`` and ``deprel``. Lines of tokens of several
    words and of empty words, with numbers such as ``3-4`` and ``8.1``, are left out.
    """

    def rows() -> Iterator[tuple[int, str, list[Any]]]:
        for index, sentence in enumerate(read_sentences(lines, _CONLLU_COMMENT)):
            words = [word for word in sentence.words if word[0].isdecimal() or len(word) != _CONLLU_WIDTH]
            problem = _conllu_problem(words)
            if problem is not None:
                bad.add(path, f"line {sentence.line}", index, problem, [" ".join(word) for word in sentence.words])
                continue
            yield index, f"line {sentence.line}", [[word[at] for word in words] for at in _CONLLU.values()]

    with text_lines(path) as lines:
        yield from in_chunks(path, list(_CONLLU), rows(), size)


def _conllu_problem(words: list[list[str]]) -> str | None:
    if not words:
        return "the sentence has no words"
    for number, word in enumerate(words, start=1):
        if len(word) != _CONLLU_WIDTH:
            return f"word {number} has {counted(len(word), 'column')} instead of {_CONLLU_WIDTH}, separated by tabs"
        if word[0] != str(number):
            return f"word {number} has the number {word[0]}"
    return None
