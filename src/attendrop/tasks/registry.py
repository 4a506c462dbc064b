"""Named tasks: how their rows are read, from official files or from the hub, and the registry of them."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import datasets
from datasets import Dataset

from attendrop.errors import AttendropError, check_known
from attendrop.support.files import first_line
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.custom_files import load_files as load_files  # beside load_task, for programs of one's own
from attendrop.tasks.entities import to_iob2
from attendrop.tasks.table import (
    SOURCE,
    TARGET,
    WORDS,
    BadValue,
    read_once,
    read_sentences,
    read_table,
    text_lines,
)
from attendrop.tasks.types.translation import Translation
from attendrop.wording import counted

_BROKEN_SHARE = 0.001  # only QQP has broken rows, about 20 in 360,000
# Where the hub keeps, as Parquet files, the data of a script, which the package datasets no longer runs.
_CONVERTED = "refs/convert/parquet"
_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Row:
    """A row of a named task as its file has it."""

    file: str | Path  # or data set on the hub, for messages
    place: str  # where it is in the file, such as "line 7"
    inputs: tuple[Any, ...]  # such as two texts
    label: Any = None  # or on the hub the id of its class; None: not known. Of all rows of a split, or of none
    others: Mapping[str, Any] = field(default_factory=dict)  # "index" (default: the row's number), and those of `Task`


@dataclass(frozen=True)
class Source:
    """Files of a task in a folder of its own, and its data sets on the hub."""

    task: Task
    folders: tuple[str, ...]  # names of its folder, in lower case without dashes; in messages, the first one
    # By split, for each of its files: the possible names or patterns, of which the first that exists is read.
    file_names: Mapping[str, tuple[tuple[str, ...], ...]]
    read: Callable[[Path, str], Iterable[Row]]  # reads the rows of a split from a file, or from two parallel ones
    # Names of the data sets on the hub, each with that of its configuration if it has several; none: not there.
    hub: tuple[tuple[str, ...], ...] = ()
    of_hub: Callable[[str, Dataset], Iterable[Row]] | None = None  # reads the rows of a data set, given its name
    # How files write the classes, in the order of ``task.label_names``; None: as in files of one's own.
    labels: tuple[str, ...] | None = None
    hub_splits: Mapping[str, str] = field(default_factory=lambda: {"dev": "validation"})  # where names are others
    revision: str | None = None  # on the hub
    within: str | None = None  # folder of a group of tasks, which may hold the task's folder

    def folder(self, data_dir: str | Path | None) -> Path | None:
        """Find the task's folder in ``data_dir``, otherwise in ``$ATTENDROP_DATA``; None if that has none.

        ``data_dir`` may be the folder itself: it has its name, in which cases and dashes do not matter, or its files.
        """
        given = data_dir or os.environ.get("ATTENDROP_DATA")
        if not given:
            return None
        root = Path(given).expanduser()
        if data_dir and not root.is_dir():
            raise AttendropError(f"the data folder {str(root)!r} does not exist; name a folder of the task's files.")
        parents = ([root / self.within] if self.within else []) + [root]
        children = [child for parent in parents if parent.is_dir() for child in sorted(parent.iterdir())]
        wanted = {name.lower().replace("-", "") for name in self.folders}
        for folder in (*children, root):
            if folder.is_dir() and folder.name.lower().replace("-", "") in wanted:
                return folder
        files = [name for split in self.file_names.values() for names in split for name in names]
        if not data_dir:
            return None
        if any(any(root.glob(file)) for file in files):
            return root
        name = self.folders[0]
        places = f"neither '{self.within}/{name}' nor '{name}'" if self.within else f"no folder '{name}'"
        problem = f"the data folder {str(root)!r} holds {places}, nor a file such as {files[0]!r}"
        raise AttendropError(f"{problem}; name a folder that has one.")

    def files(self, folder: Path, split: str) -> list[Path]:
        """Return the files of a split that are in a folder."""
        found = ([path for name in names for path in sorted(folder.glob(name))] for names in self.file_names[split])
        return [paths[0] for paths in found if paths]

    def rows_of_hub(self, split: str) -> list[Row]:
        """Read a split from the hub; raise AttendropError if it is not there, or cannot be loaded."""
        if self.of_hub is None:
            raise AttendropError(
                f"{self.task.name} is not in a local folder, and not on the hub; name the folder that holds "
                f"'{self.folders[0]}' with --data-dir or ATTENDROP_DATA."
            )
        options = {} if self.revision is None else {"revision": self.revision}
        rows: list[Row] = []
        for names in self.hub:
            try:
                raw = datasets.load_dataset(*names, split=self.hub_splits.get(split, split), **options)
            except Exception as error:  # the hub's client and its HTTP library raise many classes
                raise AttendropError(
                    f"{self.task.name} is not in a local folder, and loading {names[0]} from the hub failed "
                    f"({type(error).__name__}: {first_line(error)}); name a folder of its files with --data-dir or "
                    "ATTENDROP_DATA."
                ) from error
            rows += self.of_hub(names[0], raw)
        if split.startswith("test"):
            rows = [replace(row, label=None) if row.label == -1 else row for row in rows]
        return rows

    def dataset(self, rows: Sequence[Row]) -> Dataset:
        """Make a data set of rows, without pairs with an empty translation; raise AttendropError for a wrong label."""
        task_type, labels = self.task.type, list[Any]()
        both = task_type.generates
        numbers = [n for n, row in enumerate(rows) if not both or (row.inputs[0].strip() and row.label.strip())]
        rows = [rows[number] for number in numbers]
        ids = {label: number for number, label in enumerate(self.labels or ())}
        labelled = any(row.label is not None for row in rows)
        for row in rows if labelled else ():
            try:
                if isinstance(row.label, str) and ids and row.label not in ids:
                    raise BadValue(f"the label {row.label!r} is not one of {', '.join(ids)}")
                label = ids.get(row.label, row.label) if ids else task_type.read_label(row.label, row.inputs)
            except BadValue as problem:
                raise AttendropError(f"{row.file}, {row.place}: {problem}.") from None
            labels.append(label)
        values = zip(*(row.inputs for row in rows), strict=True)
        columns: dict[str, list[Any]] = dict(zip(task_type.inputs, map(list, values), strict=False))
        columns |= {"label": labels} if labelled else {}
        columns |= {name: [row.others[name] for row in rows] for name in rows[0].others}
        return Dataset.from_dict({**columns, "index": columns.get("index", numbers)})


def tabbed_rows(
    path: Path,
    split: str,
    *,
    texts: tuple[str, ...],
    label: str,
    header: tuple[str, ...] = (),
    index: str = "index",
    groups: tuple[str, ...] = (),
    tests_have_labels: bool = False,
) -> Iterator[Row]:
    """Read a file with tabs and without quoting, whose lines end with a line feed only; columns are found by name.

    Rows with a wrong number of fields, an empty text or an empty label are skipped with a warning if they are at most
    one in a thousand. More of them is an error, as is one in a file without labels: a submission needs every row.

    ``header`` is for files that have no header line. Where the column ``index`` has no whole number, rows are numbered.
    """
    labelled = tests_have_labels or not split.startswith("test")
    wanted = (*texts, *((label,) if labelled else ()))
    with text_lines(path) as text:
        lines = [line.removesuffix("\n").removesuffix("\r").split("\t") for line in text]
    has_header = not header or set(wanted) <= set(lines[0])
    names = lines[0] if has_header else list(header)
    for column in (*wanted, *groups):
        check_known(column, names, f"{path} has no column {column!r}", f"its header is {', '.join(map(repr, names))}")
    rows: list[Row] = []
    broken = []
    for number, values in enumerate(lines[has_header:], start=1 + has_header):
        fields, place = dict(zip(names, values, strict=False)), f"line {number}"
        if len(values) != len(names):
            broken.append(f"{place}: {counted(len(values), 'field')} instead of {len(names)}")
        elif labelled and not all(fields[column].strip() for column in wanted):
            broken.append(f"{place}: an empty text or label")
        else:
            own = fields.get(index, "")
            others: dict[str, Any] = {group: fields[group] for group in groups}
            others["index"] = int(own) if own.isdecimal() else len(rows)
            inputs = tuple(fields[column] for column in texts)
            rows.append(Row(path, place, inputs, fields[label] if labelled else None, others))
    count = len(rows) + len(broken)
    if not count:
        raise AttendropError(f"{path} has no rows.")
    if broken and (not labelled or len(broken) > count * _BROKEN_SHARE):
        raise AttendropError(f"{path}, {broken[0]}; {len(broken)} of {count} rows are broken; download the file again.")
    if broken:
        skipped = f"skipped {len(broken)} broken rows of {count}, the first at {broken[0]}"
        warnings.warn(f"{path}: {skipped}.", stacklevel=5)
    yield from rows


def table_rows(texts: Sequence[str], label: str, path: Path, split: str) -> Iterator[Row]:
    """Read a file that :func:`read_table` reads, given its columns."""
    table = read_table(path)
    for place, (*inputs, value) in zip(table.places, table.values((*texts, label)), strict=True):
        yield Row(table.path, place, tuple(inputs), value)


def hub_rows(texts: Sequence[str], groups: Sequence[str], name: str, raw: Dataset) -> Iterator[Row]:
    """Yield the rows of a data set of the hub, given its columns of texts and of groups; their ids are in "idx"."""
    columns = (raw[column][:] for column in (*texts, *groups))
    numbers = raw["idx"][:] if "idx" in raw.column_names else range(len(raw))
    for label, number, *values in zip(raw["label"][:], numbers, *columns, strict=True):
        others = dict(zip(groups, values[len(texts) :], strict=True)) | {"index": number}
        yield Row(name, f"row {number}", tuple(values[: len(texts)]), label, others)


# GLUE (Wang et al., 2019) --------------------------------------------------------------------------------------------

_HIGHEST = 5  # of the numbers of STS-B
_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_MNLI_FILES = {
    "train": "train.tsv",
    "dev": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
_MNLI_HUB_SPLITS = {"dev": "validation_matched", "dev_mismatched": "validation_mismatched", "test": "test_matched"}


def _glue(
    folder: str,
    metrics: tuple[str, ...],
    about: str,
    texts: tuple[str, ...],
    label: str,
    labels: tuple[str, ...] = (),
    class_names: tuple[str, ...] = (),
    hub_columns: tuple[str, ...] = (),
    file_names: Mapping[str, str] = _FILES,
    **options: Any,
) -> Source:
    """Make a task from its folder in the official archive, the columns of its files, and the labels in them.

    If there are no ``labels``, they are numbers; ``class_names`` are the classes if files write them differently, and
    ``hub_columns`` the columns of texts if the hub calls them so. Models are selected by the first metric.
    """
    name, (metric, *others) = folder.lower().replace("-", ""), metrics
    kind = "classification" if labels else "regression"
    return Source(
        Task(name, kind, texts, class_names or labels, metric, about, tuple(others)),
        (folder,),
        {split: ((own,),) for split, own in file_names.items()},
        partial(tabbed_rows, texts=texts, label=label, **options),
        (("nyu-mll/glue", name),),
        partial(hub_rows, hub_columns or texts, ()),
        labels or None,
        _MNLI_HUB_SPLITS if name == "mnli" else {"dev": "validation"},
        within="glue",
    )


def submitted(source: Source, label: float) -> str:
    """Return a prediction as submissions have it: the name of a class, or a number clamped to the range."""
    return source.labels[int(label)] if source.labels else f"{min(max(label, 0), _HIGHEST):.3f}"


_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")
_ACCURACY = ("accuracy",)
_GLUE_TASKS = (
    _glue(
        "CoLA", ("matthews_correlation",), "is it good English?", ("sentence",), "label", _YES_NO,
        ("unacceptable", "acceptable"), header=("source", "label", "star", "sentence"),
    ),
    _glue(
        "SST-2", _ACCURACY, "sentiment of film reviews", ("sentence",), "label", _YES_NO, ("negative", "positive"),
    ),
    _glue(
        "MRPC", ("accuracy", "f1"), "do two news sentences say the same?", ("#1 String", "#2 String"), "Quality",
        _YES_NO, ("not_equivalent", "equivalent"), _PAIR,
    ),
    _glue("STS-B", ("pearson", "spearman"), "similarity of two sentences, 0 to 5", _PAIR, "score"),
    _glue(
        "QQP", ("accuracy", "f1"), "do two questions ask the same?", ("question1", "question2"), "is_duplicate",
        _YES_NO, ("not_duplicate", "duplicate"), index="id",
    ),
    _glue(
        "MNLI", _ACCURACY, "does the premise entail, contradict or leave open?", _PAIR, "gold_label",
        ("entailment", "neutral", "contradiction"), hub_columns=("premise", "hypothesis"), file_names=_MNLI_FILES,
    ),
    _glue("QNLI", _ACCURACY, "does the sentence answer the question?", ("question", "sentence"), "label", _ENTAILMENT),
    _glue("RTE", _ACCURACY, "does the first text entail the second?", _PAIR, "label", _ENTAILMENT),
    _glue(
        "WNLI", _ACCURACY, "is the pronoun resolved correctly?", _PAIR, "label", _YES_NO,
        ("not_entailment", "entailment"),
    ),
)  # fmt: skip
GLUE: dict[str, Source] = {source.task.name: source for source in _GLUE_TASKS}

# Classification: film reviews of IMDB; HANS and PAWS-X, which test models of other tasks ------------------------------


def _imdb_rows(path: Path, split: str) -> Iterator[Row]:
    """Read a file of JSON lines, or the official folders, which have a file for each review."""
    if not path.is_dir():
        yield from table_rows(("text",), "label", path, split)
        return
    for label in ("neg", "pos"):
        for file in sorted((path / label).glob("*.txt")):
            with text_lines(file) as lines:
                yield Row(path, file.name, ("".join(lines),), label)


_HANS = ("entailment", "non-entailment")
_PARAPHRASE = ("not_paraphrase", "paraphrase")
_TEST = (("test.jsonl", "test"),)
_TEXT_TASKS = (
    Source(
        Task("imdb", "classification", ("text",), ("negative", "positive"), "accuracy", "sentiment of long reviews"),
        ("imdb", "aclimdb"), {"train": (("train.jsonl", "train"),), "dev": _TEST, "test": _TEST}, _imdb_rows,
        (("stanfordnlp/imdb",),), partial(hub_rows, ("text",), ()), ("neg", "pos"), {"dev": "test"},
    ),
    Source(
        Task(
            "hans", "classification", _PAIR, _HANS, "accuracy", "does entailment hold where heuristics say so?",
            group_columns=("heuristic",),
            readings=(
                {"entailment": "entailment", "neutral": "non-entailment", "contradiction": "non-entailment"},
                {"entailment": "entailment", "not_entailment": "non-entailment"},
            ),
        ),
        ("hans",), {"train": (("heuristics_train_set.txt",),), "dev": (("heuristics_evaluation_set.txt",),)},
        partial(tabbed_rows, texts=_PAIR, label="gold_label", groups=("heuristic",)), (("jhu-cogsci/hans",),),
        partial(hub_rows, ("premise", "hypothesis"), ("heuristic",)), _HANS,
    ),
    Source(
        Task(
            "pawsx", "classification", _PAIR, _PARAPHRASE, "accuracy", "do two scrambled sentences say the same?",
            other_metrics=("f1",),
            readings=(
                dict(zip(("not_equivalent", "equivalent"), _PARAPHRASE, strict=True)),
                dict(zip(("not_duplicate", "duplicate"), _PARAPHRASE, strict=True)),
            ),
        ),
        ("pawsx",),
        {
            "train": (("train-en.tsv", "en/translated_train.tsv", "en/train.tsv"),),
            "dev": (("dev-en.tsv", "en/dev_2k.tsv"),),
            "test": (("test-en.tsv", "en/test_2k.tsv"),),
        },
        partial(tabbed_rows, texts=_PAIR, label="label", header=(*_PAIR, "label"), tests_have_labels=True),
        (("google-research-datasets/paws-x", "en"),), partial(hub_rows, _PAIR, ()), ("0", "1"),
    ),
)  # fmt: skip

# Multiple choice: SWAG, and the science questions of ARC --------------------------------------------------------------

_LETTERS = tuple(ascii_uppercase[:5])


def _swag_rows(path: Path, split: str) -> Iterator[Row]:
    table = read_table(path)
    wanted = ("sent1", "sent2", *(f"ending{number}" for number in range(4)), *(("label",) if split != "test" else ()))
    for place, values in zip(table.places, table.values(wanted), strict=True):
        yield _question(path, place, dict(zip(wanted, values, strict=True)))


def _arc_rows(path: Path, split: str) -> Iterator[Row]:
    """Read an official file of JSON lines, or a copy as a CSV file without a header.

    Of the copy, questions whose correct choice it lost are left out, with a warning.
    """
    if path.suffix != ".csv":
        table = read_table(path)
        for place, (asked, key) in zip(table.places, table.values(("question", "answerKey")), strict=True):
            choices = {name: [choice[name] for choice in asked["choices"]] for name in ("text", "label")}
            yield _question(path, place, {"question": asked["stem"], "choices": choices, "answerKey": key})
        return
    lost = count = 0
    with text_lines(path) as lines:
        for count, (question, *columns, key) in enumerate(csv.reader(lines, strict=True), start=1):
            texts, letter = [text for text in columns if text], _letter(key, _LETTERS)
            if letter in _LETTERS[: len(texts)]:
                yield Row(path, f"row {count}", (question, texts), letter)
            else:
                lost += 1
    if lost:
        warnings.warn(f"{path}: skipped {lost} of {count} questions, whose choices are not in the file.", stacklevel=2)


def _hub_questions(name: str, raw: Dataset) -> Iterator[Row]:
    return (_question(name, f"row {number}", record) for number, record in enumerate(raw, start=1))


def _question(file: str | Path, place: str, record: Mapping[str, Any]) -> Row:
    """Read a record of either task: of SWAG, the beginning of the second sentence belongs to each ending."""
    if "sent1" in record:
        endings = [f"{record['sent2']} {record[f'ending{number}']}" for number in range(4)]
        return Row(file, place, (record["sent1"], endings), record.get("label"))
    choices = record["choices"]
    label = _letter(record["answerKey"], choices["label"])
    return Row(file, place, (record["question"], choices["text"]), label)


def _letter(key: str, keys: Sequence[str]) -> str:
    """Return the letter of a choice of ARC; some questions number their choices from 1."""
    keys = keys if key in keys else tuple("12345")
    return _LETTERS[keys.index(key)] if key in keys else key


def _arc(name: str, about: str, *sets: str) -> Source:
    """Make a task of one or both sets; the development set of a copy is called test."""
    copies = {"train": ("arc_{}_dev.csv",), "dev": ("arc_{}_test.csv",), "test": ()}
    return Source(
        Task(name, "multiple-choice", ("question", "choices"), _LETTERS, "accuracy", about),
        ("arc", "arcv1feb20182"),
        {
            split: tuple(
                (f"**/ARC-{each}-{split.capitalize()}.jsonl", *(copy.format(each.lower()) for copy in copies[split]))
                for each in sets
            )
            for split in _SPLITS
        },
        _arc_rows,
        tuple(("allenai/ai2_arc", f"ARC-{each}") for each in sets),
        _hub_questions,
    )


_CHOICE_TASKS = (
    Source(
        Task("swag", "multiple-choice", ("question", "choices"), tuple("0123"), "accuracy", "what happens next?"),
        ("swag", "swagaf"),
        {"train": (("train.csv",),), "dev": (("val.csv",),), "test": (("test.csv",),)},
        _swag_rows,
        (("allenai/swag", "regular"),),
        _hub_questions,
    ),
    _arc("arc", "science questions of schools, easy and challenging", "Easy", "Challenge"),
    _arc("arc-easy", "science questions of schools", "Easy"),
    _arc("arc-challenge", "science questions that need more than looking up", "Challenge"),
)

# Tags of words: entities of CoNLL-2003, parts of speech of the Penn Treebank and of Universal Dependencies ------------

# Numbers of the first and the last file of the Wall Street Journal; the sample has wsj_0001 to wsj_0199.
_PTB_SPLITS = {"train": (1, 159), "dev": (160, 179), "test": (180, 199)}


def _tagged_rows(path: Path, split: str, parts: Mapping[str, tuple[int, int]] | None = None) -> Iterator[Row]:
    """Read words, and their tags, from the first and the last column; IOB1 becomes IOB2.

    ``parts``: of a split, only sentences of some files of the Wall Street Journal, which comments name.
    """
    with text_lines(path) as lines:
        for line, words, comments in read_sentences(lines):
            if parts is not None:
                name = next((each.partition("=")[2].strip() for each in comments if each.startswith("file")), "")
                number, (first, last) = name.removeprefix("wsj_"), parts[split]
                if not number.isdecimal() or not first <= int(number) <= last:
                    continue
            yield Row(path, f"line {line}", ([word[0] for word in words],), to_iob2([word[-1] for word in words]))


def _hub_tags(tag_column: str, name: str, raw: Dataset) -> Iterator[Row]:
    """Read sentences, in which tags are numbers, and tokens of several words have the tag "_"."""
    names = raw.features[tag_column].feature.names
    for number, (words, tags) in enumerate(zip(raw[WORDS][:], raw[tag_column][:], strict=True), start=1):
        kept = [at for at, tag in enumerate(tags) if names[tag] != "_"]
        if kept:
            yield Row(name, f"row {number}", ([words[at] for at in kept],), [names[tags[at]] for at in kept])


_ENTITIES = ("O", *(f"{prefix}-{of}" for of in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"))
_PTB_TAGS = (
    *("CC", "CD", "DT", "EX", "FW", "IN", "JJ", "JJR", "JJS", "LS", "MD", "NN", "NNP", "NNPS", "NNS", "PDT", "POS"),
    *("PRP", "PRP$", "RB", "RBR", "RBS", "RP", "SYM", "TO", "UH", "VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "WDT", "WP"),
    *("WP$", "WRB", "#", "$", "''", ",", "-LRB-", "-RRB-", ".", ":", "``"),
)
_UPOS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ"),
    *("SYM", "VERB", "X"),
)
_TAG_TASKS = (
    Source(
        Task(
            "conll2003", "token-classification", (WORDS,), _ENTITIES, "entity_f1", "named entities in news",
            ("entity_precision", "entity_recall", "accuracy"),
        ),
        ("conll2003",),
        {
            "train": (("eng.train", "train.txt"),),
            "dev": (("eng.testa", "valid.txt", "dev.txt"),),
            "test": (("eng.testb", "test.txt"),),
        },
        _tagged_rows, (("eriktks/conll2003",),), partial(_hub_tags, "ner_tags"), revision=_CONVERTED,
    ),
    Source(
        Task(
            "ptb-pos", "token-classification", (WORDS,), _PTB_TAGS, "accuracy",
            "parts of speech, sample of the Penn Treebank", ("f1_macro",),
        ),
        ("ptb",), dict.fromkeys(_SPLITS, (("ptb_nltk_pos.tsv",),)),
        partial(_tagged_rows, parts=_PTB_SPLITS),
    ),
    Source(
        Task(
            "ud", "token-classification", (WORDS,), _UPOS, "accuracy",
            "parts of speech, Universal Dependencies (English EWT, or --data-dir)", ("f1_macro",),
        ),
        ("ud", "ud_englishewt"), {split: ((f"*-ud-{split}.conllu",),) for split in _SPLITS},
        partial(table_rows, (WORDS,), "upos"),
        (("universal-dependencies/universal_dependencies", "en_ewt"),), partial(_hub_tags, "upos"),
        revision=_CONVERTED,
    ),
)  # fmt: skip

# Translation: WMT16, Romanian and Turkish, to and from English --------------------------------------------------------

_LANGUAGES = {"en": "English", "ro": "Romanian", "tr": "Turkish"}


def _hub_wmt(source: str, target: str, name: str, raw: Dataset) -> Iterator[Row]:
    for number, each in enumerate(raw["translation"][:], start=1):
        yield Row(name, f"row {number}", (each[source],), each[target])


def _wmt(source: str, target: str) -> Source:
    metric, *others = Translation.default_metrics
    about = f"translation, {_LANGUAGES[source]} to {_LANGUAGES[target]}, WMT16"
    names = {"train": ("train",), "dev": ("newsdev2016", "dev"), "test": ("newstest2016", "test")}
    both = (source, target)
    return Source(
        Task(f"wmt16-{source}-{target}", Translation.kind, (source,), (), metric, about, tuple(others)),
        (f"{target}{source}", f"{source}{target}"),
        {split: tuple(tuple(f"{name}.{code}" for name in found) for code in both) for split, found in names.items()},
        partial(table_rows, (SOURCE,), TARGET),
        (("wmt/wmt16", "-".join(sorted(both, key=lambda code: code == "en"))),),
        partial(_hub_wmt, source, target),
        within="wmt16",
    )


_TRANSLATION_TASKS = tuple(_wmt(*pair) for other in ("ro", "tr") for pair in (("en", other), (other, "en")))

# Registry -------------------------------------------------------------------------------------------------------------

_OTHERS = (*_TAG_TASKS, *_CHOICE_TASKS, *_TRANSLATION_TASKS, *_TEXT_TASKS)
_SOURCES: dict[str, Source] = GLUE | {source.task.name: source for source in _OTHERS}


def task_names() -> list[str]:
    """Return the names of the tasks of :func:`load_task`."""
    return list(_SOURCES)


def get_task(name: str) -> Task:
    """Return a task by its name; raise AttendropError if there is none."""
    check_known(name, _SOURCES, f"there is no task {name!r}", f"the tasks are {', '.join(_SOURCES)}")
    return _SOURCES[name].task


def task_files(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """Return the local files that :func:`load_task` would read, of all splits; raise the same errors."""
    source = _SOURCES[get_task(name).name]
    folder = source.folder(data_dir)
    if folder is None:
        return []
    return list(dict.fromkeys(file for split in source.file_names for file in source.files(folder, split)))


def load_task(name: str, *, data_dir: str | Path | None = None, splits: Sequence[str] = ("train", "dev")) -> TaskData:
    """Load splits of a named task.

    Args:
        name: Name of the task.
        data_dir: A folder with the official files: it contains the folder of the task (of GLUE, ``glue/RTE`` or
            ``RTE``; ``conll2003``, ``ptb``, ``ud``, ``swag``, ``arc``, ``wmt16/tr-en``), or is that folder.
            By default, ``$ATTENDROP_DATA`` if it has the task, otherwise the hub.
        splits: "dev" also loads, where present, "dev_mismatched" of MNLI (likewise "test_mismatched" with "test").

    Raises:
        AttendropError: The task or a split is unknown, a folder or file is missing, a file is broken, or the hub cannot
            be reached.
    """
    source, found = _SOURCES[get_task(name).name], dict[str, Dataset]()
    for split in splits:
        check_known(
            split, source.file_names, f"{name} has no split {split!r}", f"it has {', '.join(source.file_names)}"
        )
    folder = source.folder(data_dir)
    mismatched = [f"{split}_mismatched" for split in splits if f"{split}_mismatched" in source.file_names]
    for split in dict.fromkeys([*splits, *mismatched]):
        if folder is None:
            found[split] = source.dataset(source.rows_of_hub(split))
            continue
        paths = source.files(folder, split)
        if len(paths) < len(source.file_names[split]):
            if split in mismatched and split not in splits:
                continue
            file = f"file of {name} {split}, such as {source.file_names[split][0][0]!r}"
            raise AttendropError(f"the folder {str(folder)!r} has no {file}.")
        if source.task.type.generates:  # a text and its translation are in the same lines of two files
            paths = [Path(",".join(map(str, paths)))]
        rows = [row for path in paths for row in source.read(path, split)]
        if not rows:
            raise AttendropError(f"{paths[0]} has no row of {name} {split}.")
        found[split] = source.dataset(rows)
    read_once.cache_clear()  # what was read is in data sets
    place = f"Hugging Face hub {source.hub[0][0]}" if folder is None else f"local folder {folder}"
    return TaskData(source.task, found, place)
