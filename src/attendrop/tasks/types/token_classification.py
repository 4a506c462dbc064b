"""Token classification: a tag for each word of a text, such as its part of speech or the entity that it is in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from datasets import Dataset
from scipy.special import softmax
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import f1_score
from tokenizers import normalizers
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.pre_tokenizers import Sequence as Sequential
from transformers import BatchEncoding, DataCollatorForTokenClassification, PreTrainedConfig

from attendrop.attribution.predictions import IGNORED, TOKENS
from attendrop.errors import AttendropError
from attendrop.tasks.entities import OUTSIDE, are_entity_tags, read_spans, span_tags, tagged_spans, words_of
from attendrop.tasks.table import INPUTS, BadValue, Table, listed, read_text, written
from attendrop.tasks.types.base import Answer, Array, Columns, Metric, TaskType, Tokenizer, row_array, truncation

# Entry of a model's configuration whose labels are spans.
SPANS = "attendrop_entity_spans"
# Position of words without a token, and tag id of words without a prediction.
NO_TOKEN = -1
# Logits of such words.
_ABSENT = np.float32(-1e30)


class TokenClassification(TaskType):
    """A tag for each word.

    The first token of a word predicts its tag. Labels are lists of tag ids, one for each word, targets the same at the
    first tokens and -100 elsewhere. Outputs and references are arrays of objects, with the logits ``(words, tags)`` and
    the tag ids ``(words,)`` of each row. Words without a token, mostly truncated ones, have logits of -1e30: their
    prediction is "O" where tags mark entities, otherwise none, which is wrong.

    Tags of entities are in IOB2, see :func:`attendrop.tasks.entities.as_iob2`, or have other prefixes.
    """

    kind = "token-classification"
    in_sequence = True
    label_type = "tags"
    label_noun = ("tag", "tag", "tags")
    output_kind = TOKENS
    inputs: ClassVar[tuple[str, ...]] = ("tokens",)
    most_inputs = 1
    auto_class = "AutoModelForTokenClassification"
    collator_class = DataCollatorForTokenClassification
    peft_task_type = "TOKEN_CLS"
    pipeline_tag = "token-classification"
    example = """\
inputs = tokenizer(words, is_split_into_words=True, truncation=True, max_length=$max_length, return_tensors="pt")
best = model(**inputs).logits[0].argmax(-1)
first = {word: token for token, word in reversed(list(enumerate(inputs.word_ids()))) if word is not None}
tags = [model.config.id2label[int(best[first[word]])] for word in sorted(first)]"""
    metric_aliases: ClassVar = {"f1": "entity_f1", "precision": "entity_precision", "recall": "entity_recall"}
    prediction, separator = "{} tags of words", " "
    answer_column = "tags"
    has_probabilities = True
    keeps_unknown = True
    baselines = ("majority",)
    # Positions of tokens are counted from the start.
    tokenizer_options: ClassVar = {"add_prefix_space": True, "padding_side": "right"}
    attributed = "the log-likelihood of the predicted tags"

    @cached_property
    def _entity_types(self) -> tuple[str, ...]:
        """Types of the entities that the tags mark; none if they do not."""
        if not are_entity_tags(self.label_names):
            return ()
        return tuple(dict.fromkeys(name[2:] for name in self.label_names if name != OUTSIDE))

    @classmethod
    def read_inputs(cls, *texts: Any) -> list[Any]:
        """Read lists of words, also as JSON, and texts with spaces between words."""
        return [read_list(text, "word") for text in texts]

    @classmethod
    def read_names(cls, value: Any) -> list[str]:
        """Read lists of tags, also as JSON, and texts with spaces between tags."""
        return read_list(value, "tag")

    @classmethod
    def in_order(cls, names: Collection[str]) -> list[str]:
        """Sort tags of entities by type and prefix, after "O"."""
        by_type = are_entity_tags(names)
        return sorted(names, key=lambda tag: (tag != OUTSIDE, tag[2:], tag) if by_type else (tag,))

    def read_label(self, value: Any, inputs: Sequence[Any] | None = None) -> list[int]:
        found: list[int] = super().read_label(value)
        if inputs is not None and len(inputs[0]) != len(found):
            raise BadValue(f"{len(inputs[0])} words, but {len(found)} tags; give one for each word")
        return found

    def configure(self, config: PreTrainedConfig) -> None:
        super().configure(config)
        vars(config).pop(SPANS, None)  # of a pre-trained model whose labels were spans
        if self.label_type == EntitySpans.label_type:
            setattr(config, SPANS, True)

    def load_tokenizer(self, place: str) -> Any:
        """Load the tokenizer; a byte-level one shall read each word as after a space, as in a text."""
        tokenizer = super().load_tokenizer(place)
        backend: Any = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        divide = backend and backend.pre_tokenizer
        if isinstance(divide, ByteLevel):  # where no class of transformers reads the option, as for ModernBERT
            divide.add_prefix_space = True
            return tokenizer
        # Llama 3's, and others that divide words before: the option would put a space before each part of a word, and
        # does where a class reads it, as that of Qwen.
        all_parts: Any = divide if isinstance(divide, Sequential) else ()
        parts = [part for part in all_parts if isinstance(part, ByteLevel)]
        if parts := [part for part in parts if not (part.add_prefix_space and part.use_regex)]:
            for part in parts:
                part.add_prefix_space = False
            given = backend.normalizer
            if given is None or not given.normalize_str("a").startswith(" "):  # as in the tokenizer of a run
                before = [] if given is None else [given]
                backend.normalizer = normalizers.Sequence([*before, normalizers.Prepend(" ")])
        return tokenizer

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize words; add ``word_starts``, the first token of each (-1: truncated), and ``word_labels``."""
        if not tokenizer.is_fast:
            raise AttendropError(
                f"{type(tokenizer).__name__} does not tell which tokens are of which word, so words cannot be tagged; "
                "use a model with a fast tokenizer."
            )
        words = list(columns["tokens"])
        encoded: BatchEncoding = tokenizer(words, is_split_into_words=True, **truncation(max_length))
        starts = []
        for row, each in enumerate(words):
            first = {word: token for token, word in reversed(list(enumerate(encoded.word_ids(row))))}
            starts.append([first.get(word, NO_TOKEN) for word in range(len(each))])
        encoded["word_starts"] = starts
        if "label" in columns:
            encoded["word_labels"] = columns["label"]
        return encoded

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[list[int]]:
        """Put the tag of each word at its first token, if the model knows it, and -100 elsewhere."""
        found = []
        for tags, starts, ids in zip(labels, encoded["word_starts"], encoded["input_ids"], strict=True):
            row = [IGNORED] * len(ids)
            for tag, start in zip(tags, starts, strict=True):
                if start != NO_TOKEN and tag < len(self.label_names):
                    row[start] = int(tag)
            found.append(row)
        return found

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> Array:
        """Take the logits at the first token of each word; without these, at the tokens that have a label."""
        starts = encoded["word_starts"][:] if "word_starts" in encoded else [
            np.flatnonzero(np.asarray(row) != IGNORED) for row in encoded["labels"]
        ]  # fmt: skip
        rows = [(logits, np.asarray(row, dtype=int)) for logits, row in zip(raw, starts, strict=True)]
        return row_array([np.where((row == NO_TOKEN)[:, None], _ABSENT, logits[row]) for logits, row in rows])

    def references(self, encoded: Mapping[str, Any]) -> Array:
        labels = encoded["word_labels" if "word_labels" in encoded else "labels"][:]
        return row_array([row[row != IGNORED] for row in (np.asarray(row, dtype=int) for row in labels)])

    def decode(self, outputs: Array) -> list[list[int]]:
        """Return the tag ids of the largest logits; -1 for truncated words."""
        return [np.where((row == _ABSENT).all(axis=1), NO_TOKEN, row.argmax(axis=1)).tolist() for row in outputs]

    def prediction_rows(self, outputs: Array, columns: Columns | None = None, *, probabilities: bool) -> list[Answer]:
        """Return ``tags``, None for truncated words; on request also ``probability_TAG`` of each tag."""
        rows = []
        for tags, logits in zip(self.decode(outputs), outputs, strict=True):
            row: dict[str, Any] = {"tags": [None if tag == NO_TOKEN else self.label_names[tag] for tag in tags]}
            if probabilities:
                known = (logits != _ABSENT).any(axis=1)
                shares = np.full(logits.shape, None, dtype=object)
                shares[known] = np.round(softmax(logits[known].astype(np.float64), axis=1), 6)
                row |= {f"probability_{name}": of.tolist() for name, of in zip(self.label_names, shares.T, strict=True)}
            rows.append(row)
        return rows

    @property
    def default_metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """Entity F1 first where tags mark entities, otherwise accuracy."""
        of_entities = ("entity_f1", "entity_precision", "entity_recall") if self._entity_types else ()
        return (*of_entities, "accuracy", "f1_macro")

    @property
    def fitted_at(self) -> tuple[str, float]:  # type: ignore[override]
        return (self.default_metrics[0], 0.9)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Scores of words, and of entities; a word without a prediction is "O" where tags mark entities."""
        absent = self.label_ids.get(OUTSIDE, NO_TOKEN) if self._entity_types else NO_TOKEN

        def predicted(outputs: Array) -> list[Array]:
            rows = (np.array(row, dtype=int) for row in self.decode(outputs))
            return [np.where(row == NO_TOKEN, absent, row) for row in rows]

        def f1_macro(gold: Array, outputs: Array) -> float:
            tags, found = np.concatenate(list(gold)), np.concatenate(predicted(outputs))
            occurring = np.setdiff1d(np.union1d(tags, found), [NO_TOKEN])
            return float(f1_score(tags, found, labels=occurring, average="macro", zero_division=0.0))

        def counts(gold: Array, outputs: Array) -> Array:
            """Count the entities found of each sentence, those of gold, and those predicted, ``(sentences, 3)``."""
            names = np.array([*self.all_names, OUTSIDE])  # the last is of words without a prediction
            pairs = zip(gold, predicted(outputs), strict=True)
            both = [[entities(tuple(names[row].tolist())) for row in rows] for rows in pairs]
            return np.array([(len(own & other), len(own), len(other)) for own, other in both])

        # An entity is found if its type, its first and its last word are right (Tjong Kim Sang and De Meulder, 2003).
        # A score over all types that is undefined is 0.
        scores: dict[str, Callable[[Array], float]] = {
            "entity_precision": lambda sums: float(sums[0] / sums[2]) if sums[2] else 0.0,
            "entity_recall": lambda sums: float(sums[0] / sums[1]) if sums[1] else 0.0,
            "entity_f1": lambda sums: float(2 * sums[0] / (sums[1] + sums[2])) if sums[0] else 0.0,
        }

        def right_words(gold: Array, outputs: Array) -> Array:
            pairs = zip(gold, predicted(outputs), strict=True)
            return np.array([(np.sum(tags == row), len(tags)) for tags, row in pairs])

        return {
            "accuracy": Metric(of_sums=(right_words, lambda sums: float(sums[0] / sums[1]))),
            "f1_macro": Metric(f1_macro),
            **{name: Metric(of_sums=(counts, score)) for name, score in scores.items() if self._entity_types},
        }

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        return [(" ".join(words),) for words in rows["tokens"][:]]

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        labels = rows["label"][:]
        found: dict[str, Any] = {"words": sum(map(len, labels))}
        if self.label_type == "tags":  # both tags of each type of spans are known, and one may be in no row
            found |= super().describe_labels(rows)
        if self._entity_types:
            begun = Counter(of for row in labels for of, *_ in entities(tuple(self.all_names[tag] for tag in row)))
            found["entities"] = {name: begun[name] for name in self._entity_types}
        return found


class EntitySpans(TokenClassification):
    """Entities of a text, given as spans of characters with a type each, and predicted as such.

    Labels are read by :func:`attendrop.tasks.entities.read_spans`, and become a tag of IOB2 for each word of the text
    (:func:`attendrop.tasks.entities.words_of`); from there on, all is as with tags.
    """

    kind = "entity-spans"
    label_type = "spans"
    inputs = ("text", "tokens")  # both of one text column
    prediction = "entities, by {} tags of words"
    answer_column = "entities"
    has_probabilities = False
    example = f"""\
import re
words = re.findall(r"\\w+|[^\\w\\s]", $texts)  # attendrop.load(folder).predict divides all scripts, and returns spans
{TokenClassification.example}"""

    @classmethod
    def read_inputs(cls, *texts: Any) -> list[Any]:
        """Read a text, and divide it into words."""
        text = read_text(texts[0])
        return [text, [text[start:end] for start, end in words_of(text)]]

    @classmethod
    def read_names(cls, value: Any) -> list[str]:
        """Return the tags that words of these spans may have."""
        return [f"{prefix}-{kind}" for _, _, kind in read_spans(value) for prefix in "BI"]

    @classmethod
    def from_labels(cls, train: Table, column: str) -> Self:
        """Make the kind with both tags of each type: an entity of several words may be in other rows."""
        kinds, problem = set[str](), "none has a span"
        for (text, _), value in train.values([INPUTS, column]):
            try:
                span_tags(text, spans := read_spans(value, text))
                kinds |= {kind for _, _, kind in spans}
            except BadValue as bad:  # which is reported when the row's label is read
                problem = str(bad)
        if not kinds:
            raise AttendropError(f"{train.path} has no row with spans that can be read: {problem}.")
        return cls((OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(kinds) for prefix in "BI")))

    def read_label(self, value: Any, inputs: Sequence[Any] | None = None) -> list[int]:
        assert inputs is not None
        return list(self.label_of(span_tags(inputs[0], read_spans(value, inputs[0]))))

    def prediction_rows(self, outputs: Array, columns: Columns | None = None, *, probabilities: bool) -> list[Answer]:
        """Return ``entities``: spans with ``start``, ``end``, ``label`` and ``text``; tags where no texts are known."""
        rows = super().prediction_rows(outputs, columns, probabilities=False)
        if columns is None:
            return rows
        tags = (tuple(tag or OUTSIDE for tag in row["tags"]) for row in rows)
        pairs = zip(columns["text"], tags, strict=True)
        return [{"entities": tagged_spans(text, entities(each))} for text, each in pairs]


@lru_cache(maxsize=100_000)
def entities(tags: tuple[str, ...]) -> frozenset[tuple[str, int, int]]:
    """Return the entities of a sentence: type, first and last word; remembered, for the resamples of a bootstrap."""
    return frozenset(get_entities(list(tags)))


def read_list(value: Any, what: str) -> list[str]:
    """Read words or tags, a list or a text with spaces between them; raise BadValue for none, and for an empty one."""
    found = listed(value)
    if found is None and isinstance(value, str) and not re.fullmatch(r"""(?s)\[\s*["'].*["']\s*\]""", value.strip()):
        found = value.split()  # what is no list with an error in it
    if not found:
        raise BadValue(f"there is no {what}; give a list of {what}s, or {what}s with spaces between them")
    items = list(map(written, found))
    for number, item in enumerate(items, start=1):
        if not item:
            raise BadValue(f"{what} {number} of {len(items)} is empty")
    return items
