"""Tagging tasks: entities of CoNLL-2003, parts of speech of the Penn Treebank and of Universal Dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.sources import FolderSource
from attendrop.tasks.table import BadRows
from attendrop.tasks.table_files import read_table
from attendrop.tasks.text_files import HEADS, WORDS, read_sentences, text_lines

_SPLITS = ("train", "dev", "test")
# Where the hub keeps the data of a script, which the package datasets runs no longer, as Parquet files.
_CONVERTED = "refs/convert/parquet"


@dataclass(frozen=True)
class TaggedRow:
    """A sentence of a task.

    Attributes:
        place: Where it is in its file.
        words: Its words.
        tags: A tag for each word.
        heads: Positions of the words' heads in the dependency tree, if the task has them.
    """

    place: str
    words: list[str]
    tags: list[str]
    heads: list[int] | None = None


@dataclass(frozen=True)
class TaggingSource(FolderSource):
    """Files of a tagging task and its data set on the hub.

    Attributes:
        hub_columns: Columns on the hub of the tags and, if the task has them, of the heads.
    """

    hub_columns: tuple[str, ...] = ()

    def read_hub(self, raw: Dataset) -> Iterator[TaggedRow]:
        """Read sentences; tags are numbers there."""
        names = raw.features[self.hub_columns[0]].feature.names
        columns = [raw[name][:] for name in (WORDS, *self.hub_columns)]
        rows = (_of_hub(number, names, *values) for number, values in enumerate(zip(*columns, strict=True)))
        return (row for row in rows if row.words)

    def columns(self, path: Path, rows: Sequence[TaggedRow]) -> dict[str, list[Any]]:
        """Convert sentences to columns; raise AttendropError for an unknown tag."""
        head = self.task.head
        for row in rows:
            problem = head.label_problem(row.tags) or head.row_problem([row.words], row.tags)
            if problem is not None:
                raise AttendropError(f"{path}, {row.place}: {problem}.")
        columns: dict[str, list[Any]] = {
            WORDS: [row.words for row in rows],
            "label": head.read_labels([row.tags for row in rows]),
            "place": [row.place for row in rows],
        }
        if HEADS in self.task.token_columns:
            columns[HEADS] = [row.heads for row in rows]
        return columns


def _of_hub(number: int, names: Sequence[str], words: list[str], tags: list[int], heads: Any = None) -> TaggedRow:
    """Make a row of the hub's: tags are numbers, heads texts that count from 1; tokens of several words have no tag."""
    kept = [at for at, tag in enumerate(tags) if names[tag] != "_"]
    place = f"row {number + 1}"
    named = [names[tags[at]] for at in kept]
    if heads is None:
        return TaggedRow(place, [words[at] for at in kept], named)
    positions = [int(heads[at]) - 1 if int(heads[at]) else own for own, at in enumerate(kept)]
    return TaggedRow(place, [words[at] for at in kept], named, positions)


# Files ----------------------------------------------------------------------------------------------------------------

_CONLL_FILES = {
    "train": (("eng.train", "train.txt"),),
    "dev": (("eng.testa", "valid.txt", "dev.txt"),),
    "test": (("eng.testb", "test.txt"),),
}
# The sample has the files wsj_0001 to wsj_0199.
_PTB_FILES = dict.fromkeys(_SPLITS, (("ptb_nltk_pos.tsv",),))
_PTB_SPLITS = {"train": (1, 159), "dev": (160, 179), "test": (180, 199)}
_UD_FILES = {split: ((f"*-ud-{split}.conllu",),) for split in _SPLITS}


def _conll_rows(path: Path, split: str) -> Iterator[TaggedRow]:
    with text_lines(path, "\n") as lines:
        for sentence in read_sentences(lines):
            words = [word[0] for word in sentence.words]
            yield TaggedRow(f"line {sentence.line}", words, [word[-1] for word in sentence.words])


def _ptb_rows(path: Path, split: str) -> Iterator[TaggedRow]:
    """Yield the sentences of a split: those of its files of the Wall Street Journal, which comments name."""
    first, last = _PTB_SPLITS[split]
    with text_lines(path, "\n") as lines:
        for sentence in read_sentences(lines):
            name = next((text.partition("=")[2].strip() for text in sentence.comments if text.startswith("file")), "")
            number = name.removeprefix("wsj_")
            if number.isdecimal() and first <= int(number) <= last:
                words, tags = (list(values) for values in zip(*sentence.words, strict=True))
                yield TaggedRow(f"line {sentence.line}", words, tags)


def _ud_rows(path: Path, split: str) -> Iterator[TaggedRow]:
    table = read_table(path, BadRows())
    columns = (table.column(name) for name in (WORDS, "upos", HEADS))
    for place, words, tags, heads in zip(table.places, *columns, strict=True):
        yield TaggedRow(place, words, tags, heads)


def _task(
    name: str, tags: Iterable[str], about: str, metrics: Sequence[str], token_columns: Sequence[str] = ()
) -> Task:
    return Task(
        name, "token-classification", (WORDS,), tuple(tags), metrics[0], about, tuple(metrics[1:]), tuple(token_columns)
    )


_ENTITIES = [f"{prefix}-{of}" for of in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"]
_PTB_TAGS = (
    *("CC", "CD", "DT", "EX", "FW", "IN", "JJ", "JJR", "JJS", "LS", "MD", "NN", "NNP", "NNPS", "NNS", "PDT", "POS"),
    *("PRP", "PRP$", "RB", "RBR", "RBS", "RP", "SYM", "TO", "UH", "VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "WDT", "WP"),
    *("WP$", "WRB", "#", "$", "''", ",", "-LRB-", "-RRB-", ".", ":", "``"),
)
_UPOS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ"),
    *("SYM", "VERB", "X"),
)
_OF_ENTITIES = ("entity_f1", "entity_precision", "entity_recall", "accuracy")
_OF_WORDS = ("accuracy", "f1_macro")

TAGGING = (
    TaggingSource(
        _task("conll2003", ("O", *_ENTITIES), "named entities in news", _OF_ENTITIES),
        ("conll2003",), _CONLL_FILES, _conll_rows, (("eriktks/conll2003",),), _CONVERTED, ("ner_tags",),
    ),
    TaggingSource(
        _task("ptb-pos", _PTB_TAGS, "parts of speech, sample of the Penn Treebank", _OF_WORDS),
        ("ptb",), _PTB_FILES, _ptb_rows,
    ),
    TaggingSource(
        _task("ud", _UPOS, "parts of speech, Universal Dependencies (English EWT, or --data-dir)", _OF_WORDS, (HEADS,)),
        ("ud", "ud_englishewt"), _UD_FILES, _ud_rows,
        (("universal-dependencies/universal_dependencies", "en_ewt"),), _CONVERTED, ("upos", "head"),
    ),
)  # fmt: skip
