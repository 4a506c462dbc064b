"""The report on the data before training, and the warnings of a model that has learnt nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from datasets import Dataset
from helpers import tiny
from tokenizers import Tokenizer, models, pre_tokenizers

from attendrop.errors import AttendropError
from attendrop.runs.data import Parts, data_report, encode_parts, report_warnings
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.types.base import TaskType
from attendrop.tasks.types.classification import Classification

YES_NO = Classification(("no", "yes"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> hf.PreTrainedTokenizerBase:
    return hf.AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path_factory.mktemp("model")))


def report_of(
    tokenizer: hf.PreTrainedTokenizerBase,
    train: list[tuple[str, Any]],
    dev: list[tuple[str, Any]],
    task_type: TaskType = YES_NO,
    max_length: int = 6,
) -> dict[str, Any]:
    task = files_task(["text"], task_type)
    splits = {name: as_dataset(task, rows) for name, rows in {"train": train, "dev": dev}.items()}
    data, parts = TaskData(task, splits, "here"), Parts(splits["train"], None, {"dev": splits["dev"]})
    config = tiny.config(Path(), max_length=max_length, method="finetune")
    return data_report(data, parts, encode_parts(config, task, parts, tokenizer), tokenizer, max_length)


def as_dataset(task: Task, rows: list[tuple[str, Any]]) -> Dataset:
    labels = [task.type.read_label(label) for _, label in rows]
    return Dataset.from_dict({"text": [text for text, _ in rows], "label": labels})


TRAIN = [
    ("the cat sees a dog", "no"),  # seven tokens with [CLS] and [SEP]: cut
    ("the cat sees a", "yes"),  # six: just fits
    ("the dog", "yes"),
    ("the dog", "yes"),
    ("a bird", "yes"),
    ("a bird", "no"),
    ("zzz qqq", "no"),
]
DEV = [("the dog", "no"), ("near", "yes"), ("the dog", "no"), ("xxx", "no")]


def test_every_part_is_counted(tokenizer: hf.PreTrainedTokenizerBase) -> None:
    report = report_of(tokenizer, TRAIN, DEV)
    parts = report["parts"]
    assert parts["train"] == {
        "rows": 7, "classes": {"no": 3, "yes": 4}, "truncated": 1, "unknown": 1, "duplicates": 2,
    }  # fmt: skip
    assert parts["dev"] == {
        "rows": 4, "classes": {"no": 3, "yes": 1}, "truncated": 0, "unknown": 1, "duplicates": 1, "in_train": 2,
    }  # fmt: skip

    assert list(report_warnings(report, YES_NO)) == [
        "2 of 4 rows of dev (50.0 %) have a text that is in train, too: the score on them is optimistic.",
        "1 text of train has several labels, in 2 rows, such as 'a bird': 'no', 'yes'.",
        "2 rows of train repeat the text of another row.",
        "1 of 7 rows of train have no token that the model knows.",
        "1 of 4 rows of dev have no token that the model knows.",
    ]


def test_a_text_is_cut_where_the_model_ends(tokenizer: hf.PreTrainedTokenizerBase) -> None:
    long = [(" ".join(["the cat"] * 20), "no"), ("a dog", "yes")]  # of a model of 32 tokens
    assert report_of(tokenizer, long, DEV, max_length=128)["parts"]["train"]["truncated"] == 1


@pytest.mark.parametrize("part", ["train", "dev"])
def test_a_part_without_a_known_token_is_refused(tokenizer: hf.PreTrainedTokenizerBase, part: str) -> None:
    rows = {"train": TRAIN, "dev": DEV} | {part: [("xxx", "no"), ("zzz qqq", "yes")]}
    with pytest.raises(AttendropError, match=f"None of the 2 rows of {part} has a token that the model knows"):
        report_of(tokenizer, **rows)


def test_a_space_is_no_token_that_a_model_knows(tmp_path: Path) -> None:
    """SentencePiece writes one before a word that it does not know, as all of another script are."""
    tokens = Tokenizer(models.Unigram([("<pad>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁cat", -2.0)], unk_id=1))
    tokens.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", unk_token="<unk>")
    train = [("东京 cat", "no"), ("东京", "yes"), ("สวัสดี ครับ", "no")]
    assert report_of(tokenizer, train, train[:1])["parts"]["train"]["unknown"] == 2


def test_classes_that_differ_in_case_only_are_pointed_out(tokenizer: hf.PreTrainedTokenizerBase) -> None:
    task_type = Classification(("Pos", "pos", "neg"))
    report = report_of(tokenizer, [("a", "Pos"), ("the", "pos")], [("dog", "neg")], task_type)
    assert list(report_warnings(report, task_type)) == [
        "Classes that differ only in case or spaces: 'Pos' and 'pos'.",
        "No row of train has one of these classes, which cannot be learnt: 'neg'.",
        "These classes occur once, in a row that is trained on, so that no score is of them: 'Pos', 'pos'.",
    ]


def test_training_texts_that_resemble_each_other_are_told(tokenizer: hf.PreTrainedTokenizerBase) -> None:
    def warned(train: list[tuple[str, Any]], task_type: Classification = YES_NO) -> list[str]:
        report = report_of(tokenizer, train, train[:1], task_type)
        assert report["likeness"] is not None
        return [warning for warning in report_warnings(report, task_type) if "--ood" in warning]

    places = ("sea", "hill", "lake", "town")
    alike = [(f"the cat sees a dog near the {place}", "no") for place in places]
    varied = [(text, "no") for text in ("the cat sees", "a bird near you", "two dogs ran home", "no rain fell")]
    others = [(text, "yes") for text in ("it is late", "we have time", "she came by", "where were they")]
    assert warned(alike + others)[0].endswith("--ood measures this.") and not warned(varied + others)
    # With few rows of many classes, as in the study, also what the study found.
    many = Classification(tuple(f"intent {n}" for n in range(20)))
    rows = [(f"the w{n} w{n}x w{n}y {place}", f"intent {n}") for n in range(20) for place in places]
    assert "does-it-help" in warned(rows, many)[0]
