"""Tiny files in the place of the data that recipes and documents name."""

from __future__ import annotations

import json
from pathlib import Path

from attendrop.tasks.registry import GLUE, Source, submitted
from helpers.tiny import sentence

TRAIN_ROWS, OTHER_ROWS = 60, 12


def write_stand_ins(folder: Path) -> Path:
    """Write the files below ``folder``, laid out like ``$ATTENDROP_DATA``."""
    for source in GLUE.values():
        for split, ((name,),) in source.file_names.items():
            if not split.startswith("test"):
                _write(folder / "glue" / source.folders[0] / name, _glue_file(source, *_numbers(split)))
    for name in ("train", "test"):
        numbers = range(*_numbers(name))
        records = [json.dumps({"text": sentence(number), "label": ("neg", "pos")[number % 2]}) for number in numbers]
        _write(folder / "imdb" / f"{name}.jsonl", "\n".join(records))
        rows = [f"{sentence(number)},{('lost', 'stolen', 'late')[number % 3]}" for number in numbers]
        intents = "\n".join(["text,category", *rows])
        _write(folder / "banking77" / f"{name}.csv", intents)
        # The first of the files that benchmarks/alike_rows.py and demonstration_draws.py make.
        for place in {"train": ("nearest/5/1", "20-classes/1"), "test": ("20-classes/1-test",)}[name]:
            _write(folder / "banking77" / f"{place}.csv", intents)
        _write(folder / "1" / f"{name}.csv", intents.replace("text,category", "message,topic"))
        pairs = [f"{sentence(number)},{sentence(number + 3)},{number % 2}" for number in numbers]
        _write(folder / "paraphrases" / f"{name}.csv", "\n".join(["text,text_pair,label", *pairs]))
    _write_tags(folder)
    _write_questions(folder)
    _write_pairs(folder)
    return folder


def _write_tags(folder: Path) -> None:
    """Write sentences with entities, and with parts of speech in a file for each sentence of the treebank."""
    for name, split in {"eng.train": "train", "eng.testa": "dev"}.items():
        sentences = (_lines(number, " NN O ", ("I-PER", "O")) for number in range(*_numbers(split)))
        _write(folder / "conll2003" / name, "\n".join(sentences))
    files = [*range(1, TRAIN_ROWS + 1), *range(160, 160 + OTHER_ROWS)]
    sentences = (f"# file = wsj_{number:04}\n{_lines(number, chr(9), ('NN', 'VB'))}" for number in files)
    _write(folder / "ptb" / "ptb_nltk_pos.tsv", "\n".join(sentences))


def _lines(number: int, between: str, tags: tuple[str, str]) -> str:
    words = enumerate(sentence(number).split())
    return "".join(f"{word}{between}{tags[place % 2]}\n" for place, word in words)


def _write_pairs(folder: Path) -> None:
    """Write pairs of texts that a model of another task is evaluated on, and texts with their translations."""
    numbers = range(OTHER_ROWS)
    lines = [f"{sentence(number)}\t{sentence(number + 3)}\t{number % 2}" for number in numbers]
    _write(folder / "pawsx" / "dev-en.tsv", "\n".join(lines))
    header = "gold_label\tsentence1\tsentence2\theuristic"
    labels = ("entailment", "non-entailment")
    lines = [f"{labels[number % 2]}\t{sentence(number)}\t{sentence(number + 3)}\tsubsequence" for number in numbers]
    _write(folder / "hans" / "heuristics_evaluation_set.txt", "\n".join([header, *lines]))
    for name, split in {"train": "train", "newsdev2016": "dev"}.items():
        for code, first in {"ro": 0, "en": 3}.items():
            texts = [sentence(number + first) for number in range(*_numbers(split))]
            _write(folder / "wmt16" / "ro-en" / f"{name}.{code}", "\n".join(texts))


def _write_questions(folder: Path) -> None:
    """Write questions with four choices: of SWAG, and of a copy of ARC."""
    header = ",".join(["sent1", "sent2", *(f"ending{number}" for number in range(4)), "label"])
    for arc, swag, split in (("dev", "train", "train"), ("test", "val", "dev")):
        numbers = range(*_numbers(split))
        texts = {number: ",".join(sentence(number + place) for place in range(5)) for number in numbers}
        rows = [f"{texts[number]},{'ABCD'[number % 4]}" for number in numbers]
        _write(folder / "arc" / f"arc_easy_{arc}.csv", "\n".join(rows))
        rows = [f"{texts[number]},{sentence(number + 5)},{number % 4}" for number in numbers]
        _write(folder / "swag" / f"{swag}.csv", "\n".join([header, *rows]))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _numbers(split: str) -> tuple[int, int]:
    """Numbers of the first sentence and of that after the last."""
    return (0, TRAIN_ROWS) if split == "train" else (TRAIN_ROWS, TRAIN_ROWS + OTHER_ROWS)


def _glue_file(source: Source, first: int, end: int) -> str:
    *texts, label = source.columns
    header = source.read_file.keywords.get("header")  # of the reader of its files
    lines = [] if header else ["\t".join(source.columns)]
    for number in range(first, end):
        fields = {name: sentence(number + 3 * place) for place, name in enumerate(texts)}
        fields[label] = submitted(source, number % len(source.labels or range(6)))
        lines.append("\t".join(fields.get(name, "-") for name in header or source.columns))
    return "\n".join(lines)
