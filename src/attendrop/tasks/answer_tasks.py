"""Question answering tasks: SQuAD 1.1 and 2.0."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.heads.question_answering import ALWAYS, SOMETIMES
from attendrop.tasks.sources import FolderSource
from attendrop.tasks.text_files import decode


@dataclass(frozen=True)
class Question:
    """A question of a task.

    Attributes:
        question: The question.
        context: The text that may answer it.
        answers: The accepted answers, as SQuAD has them.
    """

    question: str
    context: str
    answers: Mapping[str, list[Any]]


class SquadSource(FolderSource):
    """Files of a question answering task and its data set on the hub."""

    def read_hub(self, raw: Dataset) -> Iterator[Question]:
        """Read questions."""
        for row in raw:
            yield Question(row["question"], row["context"], row["answers"])

    def columns(self, path: Path, rows: Sequence[Question]) -> dict[str, list[Any]]:
        """Convert questions to columns, with the places of answers corrected."""
        return {
            "question": [row.question for row in rows],
            "context": [row.context for row in rows],
            "label": [_placed(row) for row in rows],
        }


def _placed(row: Question) -> dict[str, list[Any]]:
    """Move each answer to its occurrence that is nearest to the place given, which may be off by a character or two."""
    starts = []
    for text, start in zip(row.answers["text"], row.answers["answer_start"], strict=True):
        found = [match.start() for match in re.finditer(f"(?={re.escape(text)})", row.context)]
        starts.append(min(found, key=lambda place: abs(place - start), default=start))
    return {"text": row.answers["text"], "answer_start": starts}


def _rows(path: Path, split: str) -> Iterator[Question]:
    """Yield the questions of an official file."""
    try:
        articles = json.loads(decode(path))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        for paragraph in paragraphs:
            for asked in paragraph["qas"]:
                answers = {
                    "text": [answer["text"] for answer in asked["answers"]],
                    "answer_start": [answer["answer_start"] for answer in asked["answers"]],
                }
                yield Question(asked["question"], paragraph["context"], answers)
    except (ValueError, KeyError, TypeError) as error:
        raise AttendropError(f"{path} is not a file of SQuAD ({error!r}); download it again.") from None


def _source(name: str, version: str, outputs: tuple[str, ...], hub: str, about: str) -> SquadSource:
    task = Task(name, "question-answering", ("question", "context"), outputs, "f1", about, ("exact_match",))
    files = {split: ((f"{split}-v{version}.json",),) for split in ("train", "dev")}
    return SquadSource(task, (name.replace("_", ""), "squad"), files, _rows, ((hub,),))


ANSWERS = (
    _source("squad", "1.1", ALWAYS, "rajpurkar/squad", "where does the text answer the question?"),
    _source("squad_v2", "2.0", SOMETIMES, "rajpurkar/squad_v2", "where, if at all, does it answer the question?"),
)
