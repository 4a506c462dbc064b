"""Named tasks: how their rows are read, from official files or from the hub, and the registry of them."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError, check_known
from attendrop.support.files import first_line
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.custom_files import load_files as load_files  # beside load_task, for programs of one's own
from attendrop.tasks.entities import to_iob2
from attendrop.tasks.table import (
    SOURCE,
    TAGS,
    TARGET,
    WORDS,
    BadValue,
    Table,
    read_hub,
    read_once,
    read_sentences,
    read_table,
    tables_of,
    text_lines,
)
from attendrop.tasks.types.classification import Classification, MultipleChoice, Regression
from attendrop.tasks.types.token_classification import TokenClassification
from attendrop.tasks.types.translation import Translation
from attendrop.wording import counted

_BROKEN_SHARE = 0.001  # only QQP has broken rows, about 20 in 360,000
_CONVERTED = "refs/convert/parquet"  # where the hub keeps data of scripts, which the package datasets no longer runs
_SPLITS = ("train", "dev", "test")
_NUMBER = "idx"  # column of the numbers of rows, as the hub has it


@dataclass(frozen=True)
class Source:
    """Files of a task in a folder of its own, and its data sets on the hub."""

    task: Task
    folders: tuple[str, ...]  # names of its folder, in lower case without dashes; in messages, the first one
    # By split, for each of its files: the possible names or patterns, of which the first that exists is read.
    file_names: Mapping[str, tuple[tuple[str, ...], ...]]
    columns: tuple[str, ...]  # of the texts, and last that of the labels
    # Reads the columns of a split from a file, or from two parallel ones.
    read_file: Callable[[Path, str], Iterable[Table]] = lambda path, split: [read_table(path)]
    # Makes the inputs and the label of a row from the values of its columns; None: it is no row.
    read_row: Callable[..., tuple[Sequence[Any], Any] | None] = lambda *values: (values[:-1], values[-1])
    # Names of the data sets on the hub, each with that of its configuration if it has several; none: not there.
    hub: tuple[tuple[str, ...], ...] = ()
    hub_columns: tuple[str, ...] = ()  # where the names are others, and likewise those of the splits
    hub_splits: Mapping[str, str] = field(default_factory=lambda: {"dev": "validation"})
    # How files write the classes, in the order of ``task.label_names``; none: as in files of one's own.
    labels: tuple[str, ...] = ()
    revision: str | None = None  # on the hub
    within: str | None = None  # folder of a group of tasks, which may hold the task's folder

    def folder(self, data_dir: str | Path | None) -> Path | None:
        """Find the task's folder in ``data_dir``, or as it, otherwise in ``$ATTENDROP_DATA``; None if that has none."""
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
        if not data_dir:
            return None
        files = [name for split in self.file_names.values() for names in split for name in names]
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

    def tables_of_hub(self, split: str) -> list[Table]:
        """Read a split from the hub; raise AttendropError if it is not there, or cannot be loaded."""
        if not self.hub:
            raise AttendropError(
                f"{self.task.name} is not in a local folder, and not on the hub; name the folder that holds "
                f"'{self.folders[0]}' with --data-dir or ATTENDROP_DATA."
            )
        options: dict[str, Any] = {} if self.revision is None else {"revision": self.revision}
        wanted = (*(self.hub_columns or self.columns), *self.task.group_columns, _NUMBER)
        only, tables = {name.partition(".")[0] for name in wanted}, list[Table]()
        for names in self.hub:
            try:
                tables += read_hub(names, self.hub_splits.get(split, split), only=only, **options)
            except Exception as error:  # the hub's client and its HTTP library raise many classes
                raise AttendropError(
                    f"{self.task.name} is not in a local folder, and loading {names[0]} from the hub failed "
                    f"({type(error).__name__}: {first_line(error)}); name a folder of its files with --data-dir or "
                    "ATTENDROP_DATA."
                ) from error
        return tables

    def dataset(self, tables: Iterable[Table], columns: tuple[str, ...], split: str) -> Dataset:
        """Make a data set of tables, without empty translations; refuse wrong labels, but for missing ones of tests."""
        task_type, is_test, number, rows = self.task.type, split.startswith("test"), -1, list[dict[str, Any]]()
        classes = (self.task.label_names, self.labels) if self.labels else ()  # the hub has the names
        ids = {label: place for names in classes for place, label in enumerate(names)}
        for table in tables:
            missing = int(is_test and columns[-1] not in table.columns)
            values = table.values(columns[: len(columns) - missing])
            numbers = table.column(_NUMBER) if _NUMBER in table.columns else [None] * len(table)
            groups = table.values(self.task.group_columns)
            for place, own, given, group in zip(table.places, values, numbers, groups, strict=True):
                if (row := self.read_row(*own, *[None] * missing)) is None:
                    continue
                (inputs, label), number = row, number + 1
                if task_type.generates and not (inputs[0].strip() and label.strip()):
                    continue
                found = dict(zip(task_type.inputs, inputs, strict=False))
                if label is not None and not (is_test and label == -1):
                    try:
                        if isinstance(label, str) and ids and label not in ids:
                            raise BadValue(f"the label {label!r} is not one of {', '.join(self.labels)}")
                        found["label"] = ids.get(label, label) if ids else task_type.read_label(label, inputs)
                    except BadValue as problem:
                        raise AttendropError(f"{table.path}, {place}: {problem}.") from None
                found |= dict(zip(self.task.group_columns, group, strict=True))
                rows.append(found | {"index": int(given) if str(given).isdecimal() else number})
        return Dataset.from_list(rows)


def read_tabbed(
    path: Path,
    split: str,
    *,
    columns: tuple[str, ...],
    header: tuple[str, ...] = (),
    index: str = "index",
    groups: tuple[str, ...] = (),
    tests_have_labels: bool = False,
) -> Iterator[Table]:
    """Read a file with tabs and without quoting; columns are found by name.

    Rows with a wrong number of fields, an empty text or an empty label are skipped with a warning if they are at most
    one in a thousand. More of them is an error, as is one in a file without labels: a submission needs every row.

    ``header`` is for files that have no header line; ``index`` has the numbers of rows, if it is there.
    """
    labelled = tests_have_labels or not split.startswith("test")
    columns = columns if labelled else columns[:-1]
    with text_lines(path) as text:
        lines = [line.removesuffix("\n").removesuffix("\r").split("\t") for line in text]
    has_header = not header or set(columns) <= set(lines[0])
    names = lines[0] if has_header else list(header)
    for column in (*columns, *groups):
        check_known(column, names, f"{path} has no column {column!r}", f"its header is {', '.join(map(repr, names))}")
    kept = [*columns, *groups, *([index] if index in names else [])]
    places, rows, broken = [names.index(name) for name in kept], list[tuple[int, int, list[Any]]](), list[str]()
    for line, values in enumerate(lines[has_header:], start=1 + has_header):
        if len(values) != len(names):
            broken.append(f"line {line}: {counted(len(values), 'field')} instead of {len(names)}")
        elif labelled and not all(values[place].strip() for place in places[: len(columns)]):
            broken.append(f"line {line}: an empty text or label")
        else:
            rows.append((len(rows), line, [values[place] for place in places]))
    count = len(rows) + len(broken)
    if not count:
        raise AttendropError(f"{path} has no rows.")
    if broken and (not labelled or len(broken) > count * _BROKEN_SHARE):
        raise AttendropError(f"{path}, {broken[0]}; {len(broken)} of {count} rows are broken; download the file again.")
    if broken:
        said = f"{path}: skipped {len(broken)} broken rows of {count}, the first at {broken[0]}."
        warnings.warn(said, stacklevel=5)
    yield from tables_of(path, [*columns, *groups, *([_NUMBER] if index in names else [])], rows)


# GLUE (Wang et al., 2019) --------------------------------------------------------------------------------------------

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
    hub_texts: tuple[str, ...] = (),
    file_names: Mapping[str, str] = _FILES,
    **options: Any,
) -> Source:
    """Make a task from its folder in the official archive, the columns of its files, and the labels in them.

    If there are no ``labels``, they are numbers; ``class_names`` are the classes if files write them differently, and
    ``hub_texts`` the columns of texts if the hub calls them so. Models are selected by the first metric.
    """
    name, (metric, *others) = folder.lower().replace("-", ""), metrics
    task_type = Classification(class_names or labels) if labels else Regression()
    return Source(
        Task(name, task_type, texts, metric, about, tuple(others)),
        (folder,),
        {split: ((own,),) for split, own in file_names.items()},
        (*texts, label),
        partial(read_tabbed, columns=(*texts, label), **options),
        hub=(("nyu-mll/glue", name),),
        hub_columns=(*(hub_texts or texts), "label"),
        hub_splits=_MNLI_HUB_SPLITS if name == "mnli" else {"dev": "validation"},
        labels=labels,
        within="glue",
    )


def submitted(source: Source, label: float) -> str:
    """Return a prediction as submissions have it: the name of a class, or a number clamped to the range."""
    return source.labels[int(label)] if source.labels else f"{min(max(label, 0), 5):.3f}"  # of STS-B


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
        ("entailment", "neutral", "contradiction"), hub_texts=("premise", "hypothesis"), file_names=_MNLI_FILES,
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


def _read_imdb(path: Path, split: str) -> Iterator[Table]:
    """Read a file of JSON lines, or the official folders, which have a file for each review."""
    if not path.is_dir():
        yield read_table(path)
        return
    rows = list[tuple[int, int, list[Any]]]()
    for label in ("neg", "pos"):
        for file in sorted((path / label).glob("*.txt")):
            with text_lines(file) as lines:
                rows.append((len(rows), len(rows) + 1, ["".join(lines), label]))
    yield from tables_of(path, ("text", "label"), rows, unit="review")


_HANS = ("entailment", "non-entailment")
_PARAPHRASE = ("not_paraphrase", "paraphrase")
_TEST = (("test.jsonl", "test"),)
_TEXT_TASKS = (
    Source(
        Task("imdb", Classification(("negative", "positive")), ("text",), "accuracy", "sentiment of long reviews"),
        ("imdb", "aclimdb"), {"train": (("train.jsonl", "train"),), "dev": _TEST, "test": _TEST}, ("text", "label"),
        _read_imdb, hub=(("stanfordnlp/imdb",),), hub_splits={"dev": "test"}, labels=("neg", "pos"),
    ),
    Source(
        Task(
            "hans", Classification(_HANS), _PAIR, "accuracy", "does entailment hold where heuristics say so?",
            group_columns=("heuristic",),
            readings=(
                {"entailment": "entailment", "neutral": "non-entailment", "contradiction": "non-entailment"},
                {"entailment": "entailment", "not_entailment": "non-entailment"},
            ),
        ),
        ("hans",), {"train": (("heuristics_train_set.txt",),), "dev": (("heuristics_evaluation_set.txt",),)},
        (*_PAIR, "gold_label"), partial(read_tabbed, columns=(*_PAIR, "gold_label"), groups=("heuristic",)),
        hub=(("jhu-cogsci/hans",),), hub_columns=("premise", "hypothesis", "label"), labels=_HANS,
    ),
    Source(
        Task(
            "pawsx", Classification(_PARAPHRASE), _PAIR, "accuracy", "do two scrambled sentences say the same?",
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
        (*_PAIR, "label"),
        partial(read_tabbed, columns=(*_PAIR, "label"), header=(*_PAIR, "label"), tests_have_labels=True),
        hub=(("google-research-datasets/paws-x", "en"),), labels=("0", "1"),
    ),
)  # fmt: skip

# Multiple choice: SWAG, and the science questions of ARC --------------------------------------------------------------

_LETTERS = tuple(ascii_uppercase[:5])
_ARC_COLUMNS = ("question.stem", "question.choices", "answerKey")


def _arc_row(question: str, choices: Any, key: str) -> tuple[tuple[str, list[str]], str]:
    """Return a question with its choices, and the letter of the correct one; some questions number them from 1."""
    if isinstance(choices, list):  # as the files have them
        choices = {name: [choice[name] for choice in choices] for name in ("text", "label")}
    keys = choices["label"] if key in choices["label"] else list("12345")
    return (question, choices["text"]), _LETTERS[keys.index(key)] if key in keys else key


def _read_arc(path: Path, split: str) -> Iterator[Table]:
    """Read an official file of JSON lines, or a copy as CSV without header, whose questions may lack their answer."""
    if path.suffix != ".csv":
        yield read_table(path)
        return
    rows, line = list[tuple[int, int, list[Any]]](), 0
    with text_lines(path) as lines:
        for line, (question, *columns, key) in enumerate(csv.reader(lines, strict=True), start=1):
            texts = list(filter(None, columns))
            choices = {"text": texts, "label": list(_LETTERS[: len(texts)])}
            if _arc_row(question, choices, key)[1] in choices["label"]:
                rows.append((len(rows), line, [question, choices, key]))
    if lost := line - len(rows):
        warnings.warn(f"{path}: skipped {lost} of {line} questions, whose choices are not in the file.", stacklevel=2)
    yield from tables_of(path, _ARC_COLUMNS, rows, unit="row")


def _arc(name: str, about: str, *sets: str) -> Source:
    """Make a task of one or both sets; the development set of a copy is called test."""
    copies = {"train": ("arc_{}_dev.csv",), "dev": ("arc_{}_test.csv",), "test": ()}
    files = {
        split: tuple(
            (f"**/ARC-{each}-{split.capitalize()}.jsonl", *(copy.format(each.lower()) for copy in copies[split]))
            for each in sets
        )
        for split in _SPLITS
    }
    return Source(
        Task(name, MultipleChoice(_LETTERS), ("question", "choices"), "accuracy", about),
        ("arc", "arcv1feb20182"), files, _ARC_COLUMNS, _read_arc, _arc_row,
        tuple(("allenai/ai2_arc", f"ARC-{each}") for each in sets), ("question", "choices", "answerKey"),
    )  # fmt: skip


_CHOICE_TASKS = (
    Source(
        Task("swag", MultipleChoice(tuple("0123")), ("question", "choices"), "accuracy", "what happens next?"),
        ("swag", "swagaf"),
        {"train": (("train.csv",),), "dev": (("val.csv",),), "test": (("test.csv",),)},
        ("sent1", "sent2", *(f"ending{number}" for number in range(4)), "label"),
        # The beginning of the second sentence belongs to each ending.
        read_row=lambda first, second, *ends: ((first, [f"{second} {end}" for end in ends[:-1]]), ends[-1]),
        hub=(("allenai/swag", "regular"),),
    ),
    _arc("arc", "science questions of schools, easy and challenging", "Easy", "Challenge"),
    _arc("arc-easy", "science questions of schools", "Easy"),
    _arc("arc-challenge", "science questions that need more than looking up", "Challenge"),
)

# Tags of words: entities of CoNLL-2003, parts of speech of the Penn Treebank and of Universal Dependencies ------------


def _read_tagged(path: Path, split: str, parts: Mapping[str, tuple[int, int]] | None = None) -> Iterator[Table]:
    """Read words, and their tags, from the first and the last column.

    ``parts``: the sentences of a split are those of some files of the Wall Street Journal, which comments name, from
    the first to the last number, such as wsj_0001.
    """
    rows = list[tuple[int, int, list[Any]]]()
    with text_lines(path) as lines:
        for line, words, comments in read_sentences(lines):
            if parts is not None:
                name = next((each.partition("=")[2].strip() for each in comments if each.startswith("file")), "")
                number, (first, last) = name.removeprefix("wsj_"), parts[split]
                if not number.isdecimal() or not first <= int(number) <= last:
                    continue
            rows.append((len(rows), line, [[word[0] for word in words], [word[-1] for word in words]]))
    yield from tables_of(path, (WORDS, TAGS), rows)


def _tagged_row(words: Sequence[str], tags: Sequence[str]) -> tuple[tuple[list[str]], list[str]] | None:
    """Return words with their tags, of which IOB1 becomes IOB2, without tokens of several words, whose tag is "_"."""
    kept = [(word, tag) for word, tag in zip(words, tags, strict=True) if tag != "_"]
    return (([word for word, _ in kept],), to_iob2([tag for _, tag in kept])) if kept else None


_ENTITIES = ("O", *(f"{prefix}-{of}" for of in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"))
_PTB_TAGS = (
    "CC CD DT EX FW IN JJ JJR JJS LS MD NN NNP NNPS NNS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD VBG VBN VBP "
    "VBZ WDT WP WP$ WRB # $ '' , -LRB- -RRB- . : ``"
)
_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
_TAG_TASKS = (
    Source(
        Task(
            "conll2003", TokenClassification(_ENTITIES), (WORDS,), "entity_f1", "named entities in news",
            ("entity_precision", "entity_recall", "accuracy"),
        ),
        ("conll2003",),
        {
            "train": (("eng.train", "train.txt"),),
            "dev": (("eng.testa", "valid.txt", "dev.txt"),),
            "test": (("eng.testb", "test.txt"),),
        },
        (WORDS, TAGS), _read_tagged, _tagged_row, (("eriktks/conll2003",),), (WORDS, "ner_tags"), revision=_CONVERTED,
    ),
    Source(
        Task(
            "ptb-pos", TokenClassification(tuple(_PTB_TAGS.split())), (WORDS,), "accuracy",
            "parts of speech, sample of the Penn Treebank", ("f1_macro",),
        ),
        ("ptb",), dict.fromkeys(_SPLITS, (("ptb_nltk_pos.tsv",),)), (WORDS, TAGS),
        partial(_read_tagged, parts={"train": (1, 159), "dev": (160, 179), "test": (180, 199)}), _tagged_row,
    ),
    Source(
        Task(
            "ud", TokenClassification(tuple(_UPOS.split())), (WORDS,), "accuracy",
            "parts of speech, Universal Dependencies (English EWT, or --data-dir)", ("f1_macro",),
        ),
        ("ud", "ud_englishewt"), {split: ((f"*-ud-{split}.conllu",),) for split in _SPLITS}, (WORDS, "upos"),
        read_row=_tagged_row, hub=(("universal-dependencies/universal_dependencies", "en_ewt"),), revision=_CONVERTED,
    ),
)  # fmt: skip

# Translation: WMT16, Romanian and Turkish, to and from English --------------------------------------------------------

_LANGUAGES = {"en": "English", "ro": "Romanian", "tr": "Turkish"}


def _wmt(source: str, target: str) -> Source:
    metric, *others = Translation.default_metrics
    about = f"translation, {_LANGUAGES[source]} to {_LANGUAGES[target]}, WMT16"
    names = {"train": ("train",), "dev": ("newsdev2016", "dev"), "test": ("newstest2016", "test")}
    both = (source, target)
    return Source(
        Task(f"wmt16-{source}-{target}", Translation(), (source,), metric, about, tuple(others)),
        (f"{target}{source}", f"{source}{target}"),
        {split: tuple(tuple(f"{name}.{code}" for name in found) for code in both) for split, found in names.items()},
        (SOURCE, TARGET), hub=(("wmt/wmt16", "-".join(sorted(both, key=lambda code: code == "en"))),),
        hub_columns=(f"translation.{source}", f"translation.{target}"), within="wmt16",
    )  # fmt: skip


_TRANSLATION_TASKS = tuple(_wmt(*pair) for other in ("ro", "tr") for pair in (("en", other), (other, "en")))

# Registry -------------------------------------------------------------------------------------------------------------

_SOURCES: dict[str, Source] = GLUE | {
    source.task.name: source for source in (*_TAG_TASKS, *_CHOICE_TASKS, *_TRANSLATION_TASKS, *_TEXT_TASKS)
}


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
        data_dir: A folder with the official files: it contains the folder of the task (such as ``glue/RTE`` or ``RTE``,
            ``ud``, ``wmt16/tr-en``), or is it. By default, ``$ATTENDROP_DATA`` if it has the task, otherwise the hub.
        splits: "dev" also loads, where present, "dev_mismatched" of MNLI (likewise "test_mismatched" with "test").

    Raises:
        AttendropError: The task or a split is unknown, a folder or file is missing, a file is broken, or the hub cannot
            be reached.
    """
    source, found = _SOURCES[get_task(name).name], dict[str, Dataset]()
    names = source.file_names
    for split in splits:
        check_known(split, names, f"{name} has no split {split!r}", f"it has {', '.join(names)}")
    folder = source.folder(data_dir)
    mismatched = [f"{split}_mismatched" for split in splits if f"{split}_mismatched" in names]
    for split in dict.fromkeys([*splits, *mismatched]):
        if folder is None:
            found[split] = source.dataset(source.tables_of_hub(split), source.hub_columns or source.columns, split)
            continue
        paths = source.files(folder, split)
        if len(paths) < len(names[split]):
            if split in mismatched and split not in splits:
                continue
            file = f"file of {name} {split}, such as {names[split][0][0]!r}"
            raise AttendropError(f"the folder {str(folder)!r} has no {file}.")
        if source.task.type.generates:  # a text and its translation are in the same lines of two files
            paths = [Path(",".join(map(str, paths)))]
        tables = (table for path in paths for table in source.read_file(path, split))
        found[split] = source.dataset(tables, source.columns, split)
        if not len(found[split]):
            raise AttendropError(f"{paths[0]} has no row of {name} {split}.")
    read_once.cache_clear()  # what was read is in data sets
    place = f"Hugging Face hub {source.hub[0][0]}" if folder is None else f"local folder {folder}"
    return TaskData(source.task, found, place)
