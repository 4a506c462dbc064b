"""Named tasks: how their rows are read, from official files or from the hub, and the registry of them."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError, check_known
from attendrop.tasks.base import Row, Source, TabbedFile, Task, TaskData, hub_rows
from attendrop.tasks.custom_files import load_files as load_files  # beside load_task, for programs of one's own
from attendrop.tasks.table import SOURCE, TARGET, WORDS, Sentence, read_sentences, read_table, text_lines
from attendrop.tasks.types.translation import Translation
from attendrop.tasks.values import read_choices

# Where the hub keeps, as Parquet files, the data of a script, which the package datasets no longer runs.
_CONVERTED = "refs/convert/parquet"
_SPLITS = ("train", "dev", "test")


def _files(read: Callable[[Path], Iterable[Row]]) -> Callable[[Sequence[Path], str], Iterator[Row]]:
    """Make a function that reads the rows of several files."""
    return lambda paths, split: (row for path in paths for row in read(path))


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
    file: TabbedFile,
    labels: tuple[str, ...],
    hub_columns: tuple[str, ...],
    class_names: tuple[str, ...] = (),
    file_names: Mapping[str, str] = _FILES,
) -> Source:
    """Make a task from its folder in the official archive, the columns of its files, and the labels in them.

    If there are no ``labels``, they are numbers from 0 to 5; ``class_names`` are the classes if files write them
    differently. Models are selected by the first metric.
    """
    name, (metric, *others) = folder.lower().replace("-", ""), metrics
    kind = "classification" if labels else "regression"
    return Source(
        Task(name, kind, file.texts, class_names or labels, metric, about, tuple(others)),
        (folder,),
        {split: ((own,),) for split, own in file_names.items()},
        file.read if labels else replace(file, read_label=_score).read,
        (("nyu-mll/glue", name),),
        partial(hub_rows, hub_columns, ()),
        labels or None,
        _MNLI_HUB_SPLITS if name == "mnli" else {"dev": "validation"},
        within="glue",
    )


def submitted(source: Source, label: float) -> str:
    """Return a prediction as submissions have it: the name of a class, or a number clamped to the range."""
    return source.labels[int(label)] if source.labels else f"{min(max(label, 0), _HIGHEST):.3f}"


def _score(label: str, place: str) -> float:
    """Read a score of STS-B; raise AttendropError if it is no number, or out of range."""
    try:
        score = float(label)
    except ValueError:
        score = math.nan
    if not 0 <= score <= _HIGHEST:
        raise AttendropError(f"{place}: the score {label!r} is not a number from 0 to {_HIGHEST}.")
    return score


_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
_ACCURACY = ("accuracy",)
_GLUE_TASKS = (
    _glue(
        "CoLA", ("matthews_correlation",), "is it good English?",
        TabbedFile(("sentence",), "label", header=("source", "label", "star", "sentence")), _YES_NO, ("sentence",),
        ("unacceptable", "acceptable"),
    ),
    _glue(
        "SST-2", _ACCURACY, "sentiment of film reviews", TabbedFile(("sentence",), "label"), _YES_NO, ("sentence",),
        ("negative", "positive"),
    ),
    _glue(
        "MRPC", ("accuracy", "f1"), "do two news sentences say the same?",
        TabbedFile(("#1 String", "#2 String"), "Quality"), _YES_NO, _PAIR, ("not_equivalent", "equivalent"),
    ),
    _glue(
        "STS-B", ("pearson", "spearman"), "similarity of two sentences, 0 to 5", TabbedFile(_PAIR, "score"), (), _PAIR,
    ),
    _glue(
        "QQP", ("accuracy", "f1"), "do two questions ask the same?", TabbedFile(_QUESTIONS, "is_duplicate", index="id"),
        _YES_NO, _QUESTIONS, ("not_duplicate", "duplicate"),
    ),
    _glue(
        "MNLI", _ACCURACY, "does the premise entail, contradict or leave open?", TabbedFile(_PAIR, "gold_label"), _NLI,
        ("premise", "hypothesis"), file_names=_MNLI_FILES,
    ),
    _glue(
        "QNLI", _ACCURACY, "does the sentence answer the question?", TabbedFile(("question", "sentence"), "label"),
        _ENTAILMENT, ("question", "sentence"),
    ),
    _glue(
        "RTE", _ACCURACY, "does the first text entail the second?", TabbedFile(_PAIR, "label"), _ENTAILMENT, _PAIR,
    ),
    _glue(
        "WNLI", _ACCURACY, "is the pronoun resolved correctly?", TabbedFile(_PAIR, "label"), _YES_NO, _PAIR,
        ("not_entailment", "entailment"),
    ),
)  # fmt: skip
GLUE: dict[str, Source] = {source.task.name: source for source in _GLUE_TASKS}

# Classification: film reviews of IMDB; HANS and PAWS-X, which test models of other tasks ------------------------------


def _imdb_rows(path: Path) -> Iterator[Row]:
    """Read a file of JSON lines, or the official folders, which have a file for each review."""
    if path.is_dir():
        for label in ("neg", "pos"):
            for file in sorted((path / label).glob("*.txt")):
                with text_lines(file) as lines:
                    yield Row(path, file.name, ("".join(lines),), label)
        return
    table = read_table(path)
    for place, (text, label) in zip(table.places, table.values(("text", "label")), strict=True):
        yield Row(path, place, (text,), str(label))


_HANS = ("entailment", "non-entailment")
_PARAPHRASE = ("not_paraphrase", "paraphrase")
_TEST = (("test.jsonl", "test"),)
_TEXT_TASKS = (
    Source(
        Task("imdb", "classification", ("text",), ("negative", "positive"), "accuracy", "sentiment of long reviews"),
        ("imdb", "aclimdb"), {"train": (("train.jsonl", "train"),), "dev": _TEST, "test": _TEST}, _files(_imdb_rows),
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
        TabbedFile(_PAIR, "gold_label", groups=("heuristic",)).read, (("jhu-cogsci/hans",),),
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
        TabbedFile(_PAIR, "label", header=(*_PAIR, "label"), tests_have_labels=True).read,
        (("google-research-datasets/paws-x", "en"),), partial(hub_rows, _PAIR, ()), ("0", "1"),
    ),
)  # fmt: skip

# Multiple choice: SWAG, and the science questions of ARC --------------------------------------------------------------

_LETTERS = tuple(ascii_uppercase[:5])


def _swag_rows(paths: Sequence[Path], split: str) -> Iterator[Row]:
    table = read_table(paths[0])
    wanted = ("sent1", "sent2", *(f"ending{number}" for number in range(4)), *(("label",) if split != "test" else ()))
    for place, values in zip(table.places, table.values(wanted), strict=True):
        yield _question(paths[0], place, dict(zip(wanted, values, strict=True)))


def _arc_rows(path: Path) -> Iterator[Row]:
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
            texts, letter = read_choices(columns), _letter(key, _LETTERS)
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
        _files(_arc_rows),
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


def _conll_rows(path: Path) -> Iterator[Row]:
    with text_lines(path) as lines:
        yield from (_tagged(path, sentence) for sentence in read_sentences(lines))


def _tagged(path: Path, sentence: Sentence) -> Row:
    """Read the words, and their tags, from the first and the last column."""
    words = ([word[0] for word in sentence.words],)
    return Row(path, f"line {sentence.line}", words, [word[-1] for word in sentence.words])


def _ptb_rows(paths: Sequence[Path], split: str) -> Iterator[Row]:
    """Read the sentences of a split: those of its files of the Wall Street Journal, which comments name."""
    first, last = _PTB_SPLITS[split]
    with text_lines(paths[0]) as lines:
        for sentence in read_sentences(lines):
            name = next((text.partition("=")[2].strip() for text in sentence.comments if text.startswith("file")), "")
            number = name.removeprefix("wsj_")
            if number.isdecimal() and first <= int(number) <= last:
                yield _tagged(paths[0], sentence)


def _ud_rows(path: Path) -> Iterator[Row]:
    table = read_table(path)
    for place, (words, tags) in zip(table.places, table.values((WORDS, "upos")), strict=True):
        yield Row(path, place, (words,), tags)


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
        _files(_conll_rows), (("eriktks/conll2003",),), partial(_hub_tags, "ner_tags"), revision=_CONVERTED,
    ),
    Source(
        Task(
            "ptb-pos", "token-classification", (WORDS,), _PTB_TAGS, "accuracy",
            "parts of speech, sample of the Penn Treebank", ("f1_macro",),
        ),
        ("ptb",), dict.fromkeys(_SPLITS, (("ptb_nltk_pos.tsv",),)), _ptb_rows,
    ),
    Source(
        Task(
            "ud", "token-classification", (WORDS,), _UPOS, "accuracy",
            "parts of speech, Universal Dependencies (English EWT, or --data-dir)", ("f1_macro",),
        ),
        ("ud", "ud_englishewt"), {split: ((f"*-ud-{split}.conllu",),) for split in _SPLITS}, _files(_ud_rows),
        (("universal-dependencies/universal_dependencies", "en_ewt"),), partial(_hub_tags, "upos"),
        revision=_CONVERTED,
    ),
)  # fmt: skip

# Translation: WMT16, Romanian and Turkish, to and from English --------------------------------------------------------

_LANGUAGES = {"en": "English", "ro": "Romanian", "tr": "Turkish"}


def _wmt_rows(paths: Sequence[Path], split: str) -> Iterator[Row]:
    """Read two parallel files, but for pairs with an empty text; the index counts all pairs."""
    table = read_table(",".join(map(str, paths)))
    return _pairs(table.path, table.values((SOURCE, TARGET)))


def _hub_wmt(source: str, target: str, name: str, raw: Dataset) -> Iterator[Row]:
    return _pairs(name, ((each[source], each[target]) for each in raw["translation"][:]))


def _pairs(file: str | Path, pairs: Iterable[tuple[str, str]]) -> Iterator[Row]:
    for index, (text, translation) in enumerate(pairs):
        if text.strip() and translation.strip():
            yield Row(file, f"line {index + 1}", (text,), translation, {"index": index})


def _wmt(source: str, target: str) -> Source:
    metric, *others = Translation.default_metrics
    about = f"translation, {_LANGUAGES[source]} to {_LANGUAGES[target]}, WMT16"
    names = {"train": ("train",), "dev": ("newsdev2016", "dev"), "test": ("newstest2016", "test")}
    both = (source, target)
    return Source(
        Task(f"wmt16-{source}-{target}", Translation.kind, (source,), (), metric, about, tuple(others)),
        (f"{target}{source}", f"{source}{target}"),
        {split: tuple(tuple(f"{name}.{code}" for name in found) for code in both) for split, found in names.items()},
        _wmt_rows,
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
    return _source(name).task


def _source(name: str) -> Source:
    check_known(name, _SOURCES, f"there is no task {name!r}", f"the tasks are {', '.join(_SOURCES)}")
    return _SOURCES[name]


def task_files(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """Return the local files that :func:`load_task` would read; raise the same errors."""
    return _source(name).files(data_dir)


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
    return _source(name).load(data_dir, splits)
