"""Tagging tasks: entities of CoNLL-2003, parts of speech of the Penn Treebank and of Universal Dependencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.bad_rows import BadRows
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.column_files import HEADS, WORDS, read_sentences
from attendrop.tasks.sources import check_splits, find_folder, load_from_hub
from attendrop.tasks.table_files import read_table
from attendrop.tasks.text_lines import text_lines

_SPLITS = ("train", "dev", "test")
_HUB_SPLITS = {"dev": "validation"}
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
class TaggingSource:
    """Files of a tagging task and its data set on the hub.

    Attributes:
        task: The task.
        folders: Names of its folder, in lower case without dashes; the usual one first.
        file_names: Names of the file of each split, or patterns; the first that there is counts.
        read: Reads the rows of a split from its file.
        hub: Name of the data set on the hub, and of its configuration if it has several; None: it is not there.
        hub_columns: Columns on the hub of the tags and, if the task has them, of the heads.
    """

    task: Task
    folders: tuple[str, ...]
    file_names: Mapping[str, tuple[str, ...]]
    read: Callable[[Path, str], Iterator[TaggedRow]]
    hub: tuple[str, ...] | None = None
    hub_columns: tuple[str, ...] = ()

    def load(self, data_dir: str | Path | None, splits: Sequence[str]) -> TaskData:
        """Load splits, from the places listed in :func:`attendrop.tasks.registry.load_task`."""
        check_splits(self.task, splits, _SPLITS)
        folder = self._folder(data_dir)
        if folder is None:
            return TaskData(self.task, {split: self._from_hub(split) for split in splits}, self._hub_title())
        found = {split: self._from_file(folder, split) for split in splits}
        return TaskData(self.task, found, f"local folder {folder}")

    def files(self, data_dir: str | Path | None) -> list[Path]:
        """Return the local files; none if the task is loaded from the hub."""
        folder = self._folder(data_dir)
        found = [] if folder is None else [self._file(folder, split) for split in _SPLITS]
        return list(dict.fromkeys(file for file in found if file is not None))

    def _folder(self, data_dir: str | Path | None) -> Path | None:
        names = [name for every in self.file_names.values() for name in every]
        return find_folder(data_dir, self.folders, files=names)

    def _file(self, folder: Path, split: str) -> Path | None:
        found = (path for name in self.file_names[split] for path in sorted(folder.glob(name)))
        return next(found, None)

    def _from_file(self, folder: Path, split: str) -> Dataset:
        path = self._file(folder, split)
        if path is None:
            raise AttendropError(f"the folder {str(folder)!r} has no file of {self.task.name} {split}.")
        rows = list(self.read(path, split))
        if not rows:
            raise AttendropError(f"{path} has no sentence of {self.task.name} {split}.")
        return self._to_dataset(path, rows)

    def _hub_title(self) -> str:
        return f"Hugging Face hub {self.hub[0] if self.hub else ''}"

    def _from_hub(self, split: str) -> Dataset:
        if self.hub is None:
            raise AttendropError(
                f"{self.task.name} is not in a local folder, and not on the hub; name the folder that holds "
                f"'{self.folders[0]}' with --data-dir or ATTENDROP_DATA."
            )
        raw = load_from_hub(self.task, *self.hub, split=_HUB_SPLITS.get(split, split), revision=_CONVERTED)
        names = raw.features[self.hub_columns[0]].feature.names
        columns = [raw[name][:] for name in (WORDS, *self.hub_columns)]
        rows = (_of_hub(number, names, *values) for number, values in enumerate(zip(*columns, strict=True)))
        return self._to_dataset(Path(self.hub[0]), [row for row in rows if row.words])

    def _to_dataset(self, path: Path, rows: Sequence[TaggedRow]) -> Dataset:
        head = self.task.head
        for row in rows:
            problem = head.label_problem(row.tags) or head.row_problem([row.words], row.tags)
            if problem is not None:
                raise AttendropError(f"{path}, {row.place}: {problem}.")
        columns: dict[str, list[Any]] = {
            WORDS: [row.words for row in rows],
            "label": head.read_labels([row.tags for row in rows]),
            "index": list(range(len(rows))),
            "place": [row.place for row in rows],
        }
        if HEADS in self.task.token_columns:
            columns[HEADS] = [row.heads for row in rows]
        return Dataset.from_dict(columns)


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
    "train": ("eng.train", "train.txt"),
    "dev": ("eng.testa", "valid.txt", "dev.txt"),
    "test": ("eng.testb", "test.txt"),
}
# The sample has the files wsj_0001 to wsj_0199.
_PTB_FILES = dict.fromkeys(_SPLITS, ("ptb_nltk_pos.tsv",))
_PTB_SPLITS = {"train": (1, 159), "dev": (160, 179), "test": (180, 199)}
_UD_FILES = {split: (f"*-ud-{split}.conllu",) for split in _SPLITS}


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
        ("conll2003",), _CONLL_FILES, _conll_rows, ("eriktks/conll2003",), ("ner_tags",),
    ),
    TaggingSource(
        _task("ptb-pos", _PTB_TAGS, "parts of speech, sample of the Penn Treebank", _OF_WORDS),
        ("ptb",), _PTB_FILES, _ptb_rows,
    ),
    TaggingSource(
        _task("ud", _UPOS, "parts of speech, Universal Dependencies (English EWT, or --data-dir)", _OF_WORDS, (HEADS,)),
        ("ud", "ud_englishewt"), _UD_FILES, _ud_rows,
        ("universal-dependencies/universal_dependencies", "en_ewt"), ("upos", "head"),
    ),
)  # fmt: skip
