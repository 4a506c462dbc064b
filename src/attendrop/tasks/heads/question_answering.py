"""Extractive question answering: the span of a text that answers a question."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from datasets import Dataset
from transformers import BatchEncoding, PreTrainedConfig

from attendrop.attribution.predictions import MOST_ANSWER_TOKENS, SPAN, best_spans
from attendrop.errors import AttendropError
from attendrop.model_support.batches import ANSWER_MASK
from attendrop.tasks.heads.base import Array, Columns, Head, Metric, Tokenizer, row_array
from attendrop.tasks.long_texts import DOCUMENT, document_slices
from attendrop.tasks.table import Table
from attendrop.tasks.values import is_answer, read_answers

# Offsets of a token that is not part of the text.
NOT_TEXT = [-1, -1]
# Names of the model's outputs: if each question has an answer in its text, and if some have none.
ALWAYS, SOMETIMES = ("start", "end"), ("start or none", "end or none")
# Parts of the maximum length: at most a third is the question, and a quarter of the text is repeated in the next
# window.
_QUESTION, _OVERLAP = 3, 4


class QuestionAnswering(Head):
    """Head that predicts the first and the last token of the answer.

    Long texts are read in windows that overlap, each an encoded row; the outputs of all windows of a question become
    its one :class:`SpanAnswer`. Labels are the accepted answers, ``text`` and ``answer_start``; targets the two tokens
    in a window, both 0 where it has no answer. References are the texts of the answers.
    """

    kind = "question-answering"
    label_type = "answer"
    output_kind = SPAN
    inputs = ("question", "context")
    least_inputs = 2
    auto_class = "AutoModelForQuestionAnswering"
    peft_task_type = "QUESTION_ANS"
    pipeline_tag = "question-answering"
    example = """\
limits = {"truncation": "only_second", "max_length": $max_length}
inputs = tokenizer(question, context, **limits, return_offsets_mapping=True, return_tensors="pt")
offsets = inputs.pop("offset_mapping")[0]
of_text = torch.tensor([text == 1 for text in inputs.sequence_ids()])
outputs = model(**inputs)
start, end = (each[0].masked_fill(~of_text, -torch.inf) for each in (outputs.start_logits, outputs.end_logits))
spans = torch.ones(len(start), len(start)).triu().tril($gap).bool()
first, last = divmod(int((start[:, None] + end).where(spans, -torch.inf).argmax()), len(start))
answer = context[offsets[first][0] : offsets[last][1]].strip()"""
    default_metrics = ("f1", "exact_match")
    metric_aliases: ClassVar = {"em": "exact_match"}
    fitted_at = ("f1", 0.9)
    answer_column = "answer"
    reference_column = "answers"
    refused: ClassVar = {"attend": "it shows one sequence of tokens, and texts are read in windows"}
    # Questions that are too long are cut at their end, and windows are in the order of the text.
    tokenizer_options: ClassVar = {"padding_side": "right", "truncation_side": "right"}
    predicts = "an answer in a text"
    labels_are = "answers in texts"

    @property
    def answers(self) -> tuple[str, ...]:
        return ("a part of the text", "none") if self._may_be_none else ("a part of the text",)

    @property
    def _may_be_none(self) -> bool:
        return self.label_names == SOMETIMES

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        """Make the head; a model that does not say that there may be no answer always gives one."""
        found = super().from_config(config)
        return found if found.label_names == SOMETIMES else cls(ALWAYS)

    def example_values(self, *, stock: bool) -> dict[str, str]:
        return {"gap": str(MOST_ANSWER_TOKENS - 1)}

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        return len(texts) == 2 and all(isinstance(text, str) for text in texts)

    @classmethod
    def may_label(cls, label: Any) -> bool:
        """Accept answers as SQuAD has them; others need to be asked for."""
        return is_answer(label)

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Accept a text, a list of texts, and answers as SQuAD has them; nothing means no answer."""
        if read_answers(value) is not None:
            return None
        return f"{value!r} is neither an answer, a list of answers, nor an object with 'text' and 'answer_start'"

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head; a row without an answer tells that there may be none."""
        found = [read_answers(value) for table in tables.values() for value in table.column(column)]
        return cls(ALWAYS if all(answers and answers["text"] for answers in found) else SOMETIMES)

    def row_problem(self, inputs: Sequence[Any], label: Any) -> str | None:
        return misplaced(read_answers(label) or {"text": [], "answer_start": []}, inputs[1])

    def read_labels(self, values: Sequence[Any]) -> list[Any]:
        return [read_answers(value) for value in values]

    def length_limit(self, tokenizer: Tokenizer, max_length: int, columns: Collection[str]) -> int:
        """Lower ``max_length`` as others do; also refuse one with which windows would overlap wholly."""
        limit = super().length_limit(tokenizer, max_length, columns)
        if limit - tokenizer.num_special_tokens_to_add(pair=True) - limit // _QUESTION <= limit // _OVERLAP:
            raise AttendropError(f"a maximum length of {limit} leaves no room for the text after a question; raise it.")
        return limit

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize windows; each has its ``document``, ``offsets`` and, if known, ``answers``.

        The first window of a text has its ``context``, the others an empty one.

        Methods read ``answer_mask``, see :func:`attendrop.attribution.predictions.answer_tokens`: the tokens of the
        text, and the first token, with which models say that there is no answer, if there may be none.
        """
        if not tokenizer.is_fast:
            raise AttendropError(
                f"{type(tokenizer).__name__} does not tell where tokens are in a text, so answers cannot be found; use "
                "a model with a fast tokenizer."
            )
        questions, contexts, limits = list(columns["question"]), list(columns["context"]), {}
        if max_length is not None:
            questions = _shortened(questions, tokenizer, max_length // _QUESTION)
            limits = {"truncation": "only_second", "max_length": max_length, "stride": max_length // _OVERLAP}
            limits["return_overflowing_tokens"] = True
        encoded: BatchEncoding = tokenizer(questions, contexts, return_offsets_mapping=True, verbose=False, **limits)
        rows = list(encoded.pop("overflow_to_sample_mapping", range(len(questions))))
        encoded["offsets"] = [
            [list(span) if text == 1 else NOT_TEXT for span, text in zip(spans, encoded.sequence_ids(row), strict=True)]
            for row, spans in enumerate(encoded.pop("offset_mapping"))
        ]
        encoded[ANSWER_MASK] = [
            [int(first >= 0 or (self._may_be_none and token == 0)) for token, (first, _) in enumerate(offsets)]
            for offsets in encoded["offsets"]
        ]
        encoded[DOCUMENT] = rows
        # Not in all windows of a long text: they would take the square of its length.
        encoded["context"] = [contexts[row] if row != before else "" for before, row in pairwise([None, *rows])]
        if "label" in columns:
            encoded["answers"] = [columns["label"][row] for row in rows]
        return encoded

    def input_report(
        self, rows: Dataset, encoded: Mapping[str, Any], tokenizer: Tokenizer, limit: int
    ) -> dict[str, int]:
        """Count no text as truncated: they are read in windows."""
        return {"truncated": 0, "unknown": self.unknown_rows(encoded, tokenizer)}

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[list[int]]:
        contexts: Iterable[str] = accumulate(encoded["context"], lambda before, own: own or before)
        return list(map(answer_tokens, labels, contexts, encoded["offsets"]))

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Pad windows, and name the two targets as models do."""
        pad = super().collator(tokenizer)

        def collate(rows: list[Any]) -> Any:
            batch = pad([{name: value for name, value in row.items() if name != "labels"} for row in rows])
            if "labels" in rows[0]:
                spans = batch["input_ids"].new_tensor([row["labels"] for row in rows])
                batch["start_positions"], batch["end_positions"] = spans.unbind(1)
            return batch

        return collate

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> Array:
        contexts, offsets = encoded["context"][:], encoded["offsets"][:]
        raw = np.asarray(raw, dtype=np.float64)
        found = [_best_answer(contexts[each.start], offsets[each], raw[each]) for each in document_slices(encoded)]
        return row_array(found)

    def label_array(self, labels: Sequence[Any]) -> Array:
        return row_array([tuple(label["text"]) for label in labels])

    def _is_none(self, answer: SpanAnswer) -> bool:
        return self._may_be_none and answer.none_score > answer.score

    def decode(self, outputs: Array) -> list[Any]:
        """Return the answers as labels: no answer where that scores higher and is possible."""
        given = [[] if self._is_none(answer) else [answer] for answer in outputs]
        return [{"text": [a.text for a in row], "answer_start": [a.start for a in row]} for row in given]

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return ``answer``, empty for none, its ``start``, and ``score``, by how much it exceeds that of no answer."""
        return [
            ({"answer": "", "start": None} if self._is_none(answer) else {"answer": answer.text, "start": answer.start})
            | {"score": round(answer.score - answer.none_score, 4)}
            for answer in outputs
        ]

    def _scores(self, labels: Array, outputs: Array) -> Array:
        """Compute the exact match and the F1 of each row, ``(rows, 2)``."""
        given = ("" if self._is_none(answer) else answer.text for answer in outputs)
        return np.asarray(list(map(answer_scores, given, labels)))

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {
            "exact_match": Metric.counting(lambda labels, outputs: self._scores(labels, outputs)[:, 0] == 1),
            "f1": Metric(lambda labels, outputs: float(np.mean(self._scores(labels, outputs)[:, 1]))),
        }

    def shown_label(self, label: Any) -> str:
        return label["text"][0] if label["text"] else "no answer"

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        answered = sum(bool(label["text"]) for label in rows["label"][:])
        return {"answers": {"with": answered, "without": len(rows) - answered}}

    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        titles = {"with": "with an answer", "without": "without"}
        return [[f"  {title}", *(str(part["answers"][name]) for part in parts)] for name, title in titles.items()]


def _shortened(questions: list[str], tokenizer: Tokenizer, most: int) -> list[str]:
    offsets = tokenizer(
        questions, add_special_tokens=False, truncation=True, max_length=most, return_offsets_mapping=True
    )["offset_mapping"]
    return [question[: spans[-1][1] if spans else None] for question, spans in zip(questions, offsets, strict=True)]


def _best_answer(context: str, windows: Sequence[Sequence[Sequence[int]]], logits: Array) -> SpanAnswer:
    of_text = torch.zeros(logits.shape[:2], dtype=torch.bool)
    for window, offsets in enumerate(windows):
        of_text[window, : len(offsets)] = torch.tensor([first >= 0 for first, _ in offsets])
    none_score = float(logits[:, 0].sum(-1).min())
    if not of_text.any():
        return SpanAnswer("", 0, none_score, none_score)
    start, end = torch.from_numpy(logits).unbind(-1)
    scores, starts, ends = best_spans(start, end, of_text)
    best = int(scores.argmax())
    first, last = windows[best][int(starts[best])][0], windows[best][int(ends[best])][1]
    found = context[first:last]  # with the space before a word, where a tokenizer counts it to the word
    return SpanAnswer(found.strip(), first + len(found) - len(found.lstrip()), float(scores[best]), none_score)


# Answers as files write them, as spans of tokens, and their scores ---------------------------------------------------


@dataclass(frozen=True)
class SpanAnswer:
    """The best answer to a question."""

    text: str
    start: int  # its first character in the text
    score: float  # the sum of two logits
    none_score: float  # of there being no answer

    @property
    def scores(self) -> tuple[float, float]:
        return self.score, self.none_score


def misplaced(answers: Mapping[str, list[Any]], context: str) -> str | None:
    """Describe which answer is not in a text, or not at the place given, or return None."""
    starts = answers["answer_start"] or [context.find(text) for text in answers["text"]]
    for text, start in zip(answers["text"], starts, strict=True):
        if start < 0 or context[start : start + len(text)] != text:
            where = f" at character {start}" if answers["answer_start"] else ""
            return f"the answer {text!r} is not in the context{where}"
    return None


def answer_tokens(answers: Mapping[str, list[Any]], context: str, offsets: Sequence[Sequence[int]]) -> list[int]:
    """Return the first and the last token of the first answer in a window; ``[0, 0]`` if it is not wholly there.

    ``offsets`` has, of each token of the window, its first character in the text and the one after its last;
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
    """Return the exact match and the F1 of an answer, empty for none, with the nearest of those accepted, as SQuAD."""
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
