"""Token classification: a tag for each word of a text, such as its part of speech or the entity that it is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from datasets import Dataset

from attendrop.argument_checks import did_you_mean
from attendrop.attribution.predictions import TOKENS
from attendrop.errors import AttendropError
from attendrop.tasks.bad_rows import COUNT_AS_WRONG
from attendrop.tasks.entity_tags import OUTSIDE, are_entity_tags, entities, entity_type, to_iob2
from attendrop.tasks.heads.base import Head, saved_classes
from attendrop.tasks.heads.output_scorer import Array, Metric
from attendrop.tasks.heads.row_encoder import Columns
from attendrop.tasks.heads.tag_metrics import tag_metrics
from attendrop.tasks.table import Table
from attendrop.tasks.token_columns import TokenColumn, spread
from attendrop.tasks.word_lists import (
    IGNORED,
    NO_TOKEN,
    first_tokens,
    flat,
    joined_logits,
    json_list,
    labelled,
    list_problem,
    logits_at,
    read_list,
    row_array,
)

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedConfig, PreTrainedTokenizerBase

# Up to this many tags are listed; for more, only the smallest and the largest number of words are shown.
_LISTED_TAGS = 12


class TokenClassification(Head):
    """Head that predicts a tag for each word.

    The first token of a word predicts its tag. Labels are lists of tag ids, one for each word, targets the same at the
    first tokens and -100 elsewhere. Outputs and references are arrays of objects, with the logits ``(words, tags)`` and
    the tag ids ``(words,)`` of each row. Words without a token, mostly truncated ones, have logits of minus infinity:
    their prediction is "O" where tags mark entities, otherwise none, which is wrong.

    Tags of entities are read as IOB1 or IOB2, and written as IOB2; tags with other prefixes stay as they are.
    """

    kind = "token-classification"
    in_sequence = True
    label_type = "tags"
    output_kind = TOKENS
    inputs = ("tokens",)
    most_inputs = 1
    auto_class = "AutoModelForTokenClassification"
    peft_task_type = "TOKEN_CLS"
    pipeline_tag = "token-classification"
    metric_aliases: ClassVar = {
        "f1": "entity_f1",
        "precision": "entity_precision",
        "recall": "entity_recall",
        "macro_f1": "f1_macro",
    }
    answer_column = "tags"
    has_probabilities = True
    keeps_unknown = True
    baselines = ("majority",)
    tokenizer_options: ClassVar = {"add_prefix_space": True}  # without it, byte-level tokenizers refuse words
    attributed = "the log-likelihood of the predicted tags"

    # In words -------------------------------------------------------------------------------------------------------

    @property
    def predicts(self) -> str:
        """Number of tags, in words."""
        return f"{len(self.label_names)} tags of words"

    @property
    def answers(self) -> tuple[str, ...]:
        """The types of entities, or the tags, if there are not many."""
        return self._entity_types or (self.label_names if len(self.label_names) <= _LISTED_TAGS else (self.predicts,))

    @cached_property
    def _entity_types(self) -> tuple[str, ...]:
        """Types of the entities that the tags mark; none if they do not."""
        if not are_entity_tags(self.label_names):
            return ()
        return tuple(dict.fromkeys(entity_type(name) for name in self.label_names if name != OUTSIDE))

    # The model ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        """Make the head with the model's tags."""
        return cls(saved_classes(config))

    def usage(self, num_texts: int, max_length: int, *, stock: bool = True) -> str:
        """Return Python code that tags a list of words."""
        return f"""{self.loading(stock=stock)}
inputs = tokenizer(words, is_split_into_words=True, truncation=True, max_length={max_length}, return_tensors="pt")
best = model(**inputs).logits[0].argmax(-1)
first = {{word: token for token, word in reversed(list(enumerate(inputs.word_ids()))) if word is not None}}
tags = [model.config.id2label[int(best[first[word]])] for word in sorted(first)]"""

    # Labels and texts of custom files -------------------------------------------------------------------------------

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        """Accept lists, also as JSON in CSV files."""
        return any(isinstance(text, list) or (isinstance(text, str) and json_list(text) is not None) for text in texts)

    @staticmethod
    def text_problem(value: Any, column: int = 0) -> str | None:
        """Accept lists of words, also as JSON, and texts with spaces between words."""
        return list_problem(read_list(value), "word")

    @classmethod
    def read_texts(cls, texts: Sequence[Any]) -> list[Any]:
        """Return the words."""
        return [read_list(text) or [] for text in texts]

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Accept lists of tags, also as JSON, and texts with spaces between tags."""
        return list_problem(read_list(value), "tag")

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head whose tags are those of "train" (otherwise "dev"): "O" first, then by type and prefix."""
        source = tables.get("train") or tables["dev"]
        rows = [read_list(value) or [] for value in source.column(column)]
        rows = [to_iob2(row) for row in rows] if are_entity_tags(chain(*rows)) else rows
        names = set(chain(*rows))
        if "train" in tables and len(names) < 2:
            raise AttendropError(f"{source.path} has only one tag, {next(iter(names))!r}; training needs at least two.")
        key = _entity_order if are_entity_tags(names) else str
        return cls(tuple(sorted(names, key=key)))

    def label_problem(self, value: Any) -> str | None:
        """Refuse tags that are not among those of training."""
        unknown = self.unknown_labels(value)
        if not unknown:
            return None
        hint = did_you_mean(unknown[0], self.label_names) or f"; the tags are {', '.join(self.label_names)}"
        return f"the tag {unknown[0]!r} is not among those of training {COUNT_AS_WRONG}{hint.removesuffix('.')}"

    def unknown_labels(self, value: Any) -> list[str]:
        """Return the tags that are none of the head's."""
        return [tag for tag in self._tags(value) if tag not in self._ids]

    def row_problem(self, inputs: Sequence[Any], label: Any) -> str | None:
        """Refuse another number of tags than words."""
        words, tags = len(inputs[0]), len(self._tags(label))
        return None if words == tags else f"{words} words, but {tags} tags; give one for each word"

    def read_labels(self, values: Sequence[Any]) -> list[list[int]]:
        """Convert tags to their ids."""
        return [[self._ids[tag] for tag in self._tags(value)] for value in values]

    def _tags(self, value: Any) -> list[str]:
        tags = read_list(value) or []
        return to_iob2(tags) if self._entity_types else tags

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.all_names)}

    # Encoding -------------------------------------------------------------------------------------------------------

    def tokenize(self, columns: Columns, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> BatchEncoding:
        """Tokenize words; add ``word_starts``, the first token of each (-1: truncated), and ``word_labels``."""
        if not tokenizer.is_fast:
            raise AttendropError(
                f"{type(tokenizer).__name__} does not tell which tokens are of which word, so words cannot be tagged; "
                "use a model with a fast tokenizer."
            )
        limits: dict[str, Any] = (
            {"verbose": False} if max_length is None else {"truncation": True, "max_length": max_length}
        )
        encoded: BatchEncoding = tokenizer(list(columns["tokens"]), is_split_into_words=True, **limits)
        encoded["word_starts"] = [
            first_tokens(encoded.word_ids(row), len(words)) for row, words in enumerate(columns["tokens"])
        ]
        if "label" in columns:
            encoded["word_labels"] = columns["label"]
        return encoded

    def align(
        self,
        token_columns: Sequence[TokenColumn],
        columns: Columns,
        encoded: BatchEncoding,
        tokenizer: PreTrainedTokenizerBase,
    ) -> dict[str, list[Any]]:
        """Give each token the entries of its word, see :func:`attendrop.tasks.token_columns.spread`.

        Raises:
            AttendropError: A row has more or fewer entries than words.
        """
        words = [encoded.word_ids(row) for row in range(len(columns["tokens"]))]
        return spread(token_columns, columns, words, [len(row) for row in columns["tokens"]])

    def targets(
        self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: PreTrainedTokenizerBase
    ) -> list[list[int]]:
        """Put the tag of each word at its first token, if the model knows it, and -100 elsewhere."""
        found = []
        for tags, starts, ids in zip(labels, encoded["word_starts"], encoded["input_ids"], strict=True):
            row = [IGNORED] * len(ids)
            for tag, start in zip(tags, starts, strict=True):
                if start != NO_TOKEN and tag < len(self.label_names):
                    row[start] = int(tag)
            found.append(row)
        return found

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[Any]], Any]:
        """Pad labels with -100."""
        from transformers import DataCollatorForTokenClassification

        return DataCollatorForTokenClassification(tokenizer)

    # Outputs --------------------------------------------------------------------------------------------------------

    def concatenate(self, parts: Sequence[Any]) -> Array:
        """Concatenate the logits of batches, padded to the longest."""
        return joined_logits(parts)

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Array:
        """Return the logits of the words of each row."""
        starts = encoded["word_starts"][:] if "word_starts" in encoded else map(labelled, encoded["labels"])
        return row_array(
            [logits_at(logits, np.asarray(row, dtype=int)) for logits, row in zip(raw, starts, strict=True)]
        )

    def references(self, encoded: Mapping[str, Any]) -> Array:
        """Return the tag ids of the words of each row."""
        if "word_labels" in encoded:
            return self.label_array(encoded["word_labels"][:])
        return self.label_array([row[labelled(row)] for row in encoded["labels"]])

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Make an array of each row's tag ids."""
        return row_array([np.asarray(row, dtype=int) for row in labels])

    def finite(self, outputs: Array) -> Array:
        """Accept minus infinity, the logits of truncated words."""
        return np.array([not (np.isnan(row).any() or np.isposinf(row).any()) for row in outputs])

    def decode(self, outputs: Array) -> list[list[int]]:
        """Return the tag ids of the largest logits; -1 for truncated words."""
        return [np.where(np.isneginf(row).all(axis=1), NO_TOKEN, row.argmax(axis=1)).tolist() for row in outputs]

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return ``tags``, None for truncated words; on request also ``probability_TAG`` of each tag."""
        return [
            {"tags": [None if tag == NO_TOKEN else self.label_names[tag] for tag in tags]}
            | (self._probabilities(row) if probabilities else {})
            for tags, row in zip(self.decode(outputs), outputs, strict=True)
        ]

    def _probabilities(self, logits: Array) -> dict[str, list[float | None]]:
        """Return the probability of each tag, by word; None for truncated words."""
        known = np.isfinite(logits).any(axis=1)
        exp = np.exp(logits[known] - logits[known].max(axis=1, keepdims=True), dtype=np.float64)
        softmax = np.full(logits.shape, None, dtype=object)
        softmax[known] = np.round(exp / exp.sum(axis=1, keepdims=True), 6)
        return {f"probability_{name}": softmax[:, number].tolist() for number, name in enumerate(self.label_names)}

    # Scores ---------------------------------------------------------------------------------------------------------

    @property
    def default_metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """Entity F1 first where tags mark entities, otherwise accuracy."""
        of_entities = ("entity_f1", "entity_precision", "entity_recall") if self._entity_types else ()
        return (*of_entities, "accuracy", "f1_macro")

    @property
    def fitted_at(self) -> tuple[str, float]:  # type: ignore[override]
        """Entity F1 or accuracy of the training rows."""
        return ("entity_f1" if self._entity_types else "accuracy", 0.9)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Scores of all words, and of entities where tags mark them."""
        return tag_metrics(self.label_names, self.unknown_names, self.decode)

    def constant_answer(self, train: Array, references: Array) -> tuple[str, Array]:
        """Return the most common tag of the words in training."""
        most = int(np.bincount(flat(train)).argmax())
        logits = np.eye(len(self.label_names))[most]
        return self.label_names[most], row_array([np.tile(logits, (len(row), 1)) for row in references])

    def predicted_counts(self, outputs: Array) -> dict[str, int]:
        """Count the words with each tag."""
        counts = Counter(chain(*self.decode(outputs)))
        return {name: counts[number] for number, name in enumerate(self.label_names) if counts[number]}

    # Reports on data ------------------------------------------------------------------------------------------------

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        """Return the words of each row, with spaces between them."""
        return [(" ".join(words),) for words in rows["tokens"][:]]

    def shown_label(self, label: Any) -> str:
        """Return the tags of a row."""
        return " ".join(self.all_names[tag] for tag in label)

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        """Count the words with each tag, and the entities of each type."""
        labels = rows["label"][:]
        counts = Counter(chain(*labels))
        found: dict[str, Any] = {"words": sum(counts.values())}
        found["tags"] = {name: counts[number] for number, name in enumerate(self.label_names)}
        if self._entity_types:
            begun = Counter(of for row in labels for of, *_ in entities(tuple(self.all_names[tag] for tag in row)))
            found["entities"] = {name: begun[name] for name in self._entity_types}
        return found

    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        """Show the number of words; and of entities of each type, or of words with each tag if there are not many."""
        lines = [["words", *(str(part["words"]) for part in parts)]]
        shown = "entities" if self._entity_types else "tags"
        names = self._entity_types or self.label_names
        if len(names) <= _LISTED_TAGS:
            return lines + [[f"  {name}", *(str(part[shown][name]) for part in parts)] for name in names]
        counts = [part[shown].values() for part in parts]
        return [*lines, [f"  {shown}", *(f"{min(of)} to {max(of)} of each" for of in counts)]]

    def label_warnings(self, train: Mapping[str, Any]) -> list[str]:
        """Warn of tags without words."""
        missing = [repr(name) for name, count in train["tags"].items() if count == 0]
        if not missing:
            return []
        return [f"No word of train has one of these tags, which cannot be learnt: {', '.join(missing)}."]


def _entity_order(name: str) -> tuple[bool, str, str]:
    return name != OUTSIDE, entity_type(name), name
