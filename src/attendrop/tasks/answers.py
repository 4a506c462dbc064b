"""Answers in a text: as they are written in files, as spans of tokens, and as they are scored."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attendrop.tasks.values import is_missing

# Offsets of a token that is not of the text.
NOT_TEXT = [-1, -1]


@dataclass(frozen=True)
class SpanAnswer:
    """The best answer to a question.

    Attributes:
        text: The answer.
        start: Its first character in the text.
        score: Its score: the sum of two logits.
        none_score: Score of there being no answer.
    """

    text: str
    start: int
    score: float
    none_score: float

    @property
    def scores(self) -> tuple[float, float]:
        """Both scores."""
        return self.score, self.none_score


def read_answers(value: Any) -> dict[str, list[Any]] | None:
    """Read the accepted answers to a question, as ``text`` and ``answer_start``, which may be empty: not given.

    Args:
        value: A text; a list of texts; or both lists by name, as SQuAD has them. Lists and names may be JSON. Nothing
            means that there is no answer.

    Returns:
        The answers; None if the value has another form.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError):  # an answer that begins with a bracket
            value = json.loads(value)
    if is_missing(value):
        value = ""
    if isinstance(value, str):
        value = [value] if value.strip() else []
    found = value if isinstance(value, Mapping) else {"text": value}
    texts, starts = found.get("text"), found.get("answer_start") or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        return None
    if not (isinstance(starts, list) and all(isinstance(start, int) for start in starts)):
        return None
    return {"text": texts, "answer_start": starts} if len(starts) in (0, len(texts)) else None


def misplaced(answers: Mapping[str, list[Any]], context: str) -> str | None:
    """Describe which answer is not in a text, or not where it says, or return None."""
    starts = answers["answer_start"] or [context.find(text) for text in answers["text"]]
    for text, start in zip(answers["text"], starts, strict=True):
        if start < 0 or context[start : start + len(text)] != text:
            where = f" at character {start}" if answers["answer_start"] else ""
            return f"the answer {text!r} is not in the context{where}"
    return None


def answer_tokens(answers: Mapping[str, list[Any]], context: str, offsets: Sequence[Sequence[int]]) -> list[int]:
    """Return the first and the last token of the first answer in a window; ``[0, 0]`` if it is not all there.

    Args:
        answers: The answers.
        context: The text.
        offsets: Of each token of the window, its first character in the text and the one after its last;
            ``NOT_TEXT`` for other tokens.
    """
    if not answers["text"]:
        return [0, 0]
    start = (answers["answer_start"] or [context.find(answers["text"][0])])[0]
    end = start + len(answers["text"][0])
    inside = [token for token, (first, last) in enumerate(offsets) if last > start and 0 <= first < end]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return [0, 0]
    return [inside[0], inside[-1]]


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=100_000)
def answer_scores(answer: str, accepted: tuple[str, ...]) -> tuple[float, float]:
    """Return the exact match and the F1 of an answer with the nearest of those accepted, as SQuAD defines them.

    Args:
        answer: The answer; empty: none.
        accepted: The accepted answers; none: there is no answer.
    """
    given = _words(answer)
    matches, f1s = zip(*(_scores(given, _words(each)) for each in accepted or ("",)), strict=True)
    return max(matches), max(f1s)


def _words(answer: str) -> list[str]:
    """Return the words that SQuAD compares: in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def _scores(given: list[str], wanted: list[str]) -> tuple[float, float]:
    match = float(given == wanted)
    if not given or not wanted:
        return match, match
    return match, 2 * sum((Counter(given) & Counter(wanted)).values()) / (len(given) + len(wanted))
