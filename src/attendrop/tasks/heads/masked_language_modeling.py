"""Masked language modeling: prediction of masked tokens, for pre-training on unlabelled texts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, ClassVar, Self

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import BatchEncoding, DataCollatorForTokenClassification, PreTrainedConfig, PreTrainedModel

from attendrop.attribution.label_positions import IGNORED
from attendrop.attribution.predictions import TOKENS
from attendrop.errors import AttendropError
from attendrop.methods.core.options import SWITCH, option, unit_interval
from attendrop.tasks.heads.base import Array, Columns, Head, Metric, Tokenizer, row_array
from attendrop.tasks.heads.written_text import LIKELIHOOD_METRICS, WrittenText, word_counts, word_line
from attendrop.tasks.long_texts import special_tokens
from attendrop.tasks.table import Table
from attendrop.tasks.values import text_problem

logger = logging.getLogger(__name__)
# Names of the column of texts where these are packed, and where their masks are to be filled.
_PACKED, _TO_FILL = "packed_text", "masked_text"
# Key of the masks of rows that are scored, the same in all runs.
_SCORED = "scored"


def _accuracy(references: Array, outputs: Array) -> float:
    """Compute the fraction of hidden tokens that are the most likely ones."""
    return float(np.mean(np.concatenate([each.ids for each in outputs]) == np.concatenate(references)))


@dataclass(frozen=True)
class PredictedTokens(WrittenText):
    """Output for a row: its text with its own masks filled, or the likelihood of tokens that were hidden at random."""

    ids: tuple[int, ...] = ()  # the most likely token at each masked position
    written: tuple[str | None, ...] = ()  # these as they are written; None for a mask beyond the maximum length
    probabilities: tuple[float | None, ...] = ()  # of each of these


@dataclass(frozen=True)
class MaskedLanguageModeling(Head):
    """Head that predicts hidden tokens of a text (Devlin et al., 2019). There are no labels in the data.

    Rows are encoded with masks that depend on their tokens alone, on which all models are scored. In training, each
    epoch has different masks. Raw outputs are, for each hidden token of a row, its log-likelihood, the most likely
    token and the probability of that, ``(rows, tokens, 3)``, padded with -100. References are the ids of the hidden
    tokens of each row.

    Attributes:
        mask_probability: Probability that a token, or word, is hidden; at least one of each row is.
        whole_words: Whether all tokens of a word are hidden together.
        pack: Whether training texts are joined, with a separator between them, and cut into rows of the maximum length.
            Otherwise each is a row, truncated if it is too long. Texts are scored one by one in any case.
    """

    mask_probability: float = option(0.15, unit_interval(one=True))
    whole_words: bool = option(False, SWITCH)
    pack: bool = option(False, SWITCH)

    kind = "masked-language-modeling"
    in_sequence = True
    label_type = "mlm"
    output_kind = TOKENS
    inputs = ("text",)
    most_inputs = 1
    needs_labels = False
    auto_class = "AutoModelForMaskedLM"
    pipeline_tag = "fill-mask"
    example = """\
inputs = tokenizer(text, truncation=True, max_length=$max_length, return_tensors="pt")  # with {tokenizer.mask_token}
best = model(**inputs).logits.argmax(-1)[inputs["input_ids"] == tokenizer.mask_token_id]
tokens = tokenizer.convert_ids_to_tokens(best.tolist())"""
    default_metrics = ("neg_log_loss", "perplexity", "accuracy")
    metrics: ClassVar[Mapping[str, Metric]] = {**LIKELIHOOD_METRICS, "accuracy": Metric(_accuracy)}
    metric_aliases: ClassVar = {"loss": "neg_log_loss"}
    answer_column = "filled"
    pretrained = True
    padding = IGNORED
    rewarded_by_loss = True
    reads_labels = True
    training_columns = ("words",)
    predicts = "masked tokens"
    refused: ClassVar = {
        "prune": "layers of constant attention are measured on labels; train the folder on a task, and prune that run",
        "export": "what is exported predicts labels; train the folder on a task, and export that run",
        "attend": "the page shows models with one prediction for each text or word",
    }

    @classmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Accept encoders with a masked language model's head; transformers lists some encoder-decoders, too."""
        return not config.is_encoder_decoder and super().recognizes(config)

    def configure(self, config: PreTrainedConfig) -> None:
        if self._class_name(config) is None or config.is_encoder_decoder:
            raise AttendropError(
                f"Models of the family {config.model_type!r} are no masked language models; use an encoder, such as "
                "BERT, RoBERTa, ELECTRA or ModernBERT."
            )
        super().configure(config)

    def prepare(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        """Check that tokens can be masked."""
        if tokenizer.mask_token is None:
            raise AttendropError(
                f"{type(tokenizer).__name__} has no mask token, so nothing can be masked; use an encoder such as BERT, "
                "RoBERTa or ELECTRA with its own tokenizer."
            )
        if self.whole_words and not tokenizer.is_fast:
            raise AttendropError(
                f"{type(tokenizer).__name__} does not tell which tokens are of which word; omit whole_words."
            )

    @staticmethod
    def text_problem(value: Any, column: int = 0) -> str | None:
        """Accept texts, and empty ones, as between the paragraphs of a corpus."""
        return None if _is_blank(value) else text_problem(value)

    @classmethod
    def leaves_out(cls, texts: Sequence[Any]) -> bool:
        return _is_blank(texts[0])

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Accept anything; :meth:`from_labels` refuses labels altogether."""
        return None

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head; labels are refused."""
        if tables:
            raise AttendropError(
                f"Masked language models are trained on texts alone, and {column!r} is the label column; omit it, or "
                "give a file of texts."
            )
        return cls()

    def without_answers(self, columns: Columns) -> dict[str, Any]:
        """Return the rows with their own masks to fill; no further tokens are hidden."""
        return {_TO_FILL if name == "text" else name: values for name, values in columns.items()}

    def training_rows(self, rows: Dataset) -> Dataset:
        """Name the texts as those to pack, if they are packed."""
        return rows.rename_column("text", _PACKED) if self.pack else rows

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize and mask texts; add ``labels``, and ``cut``, whether a text was cut off, unless they are packed.

        Texts without a token to hide are left out. Texts with masks to fill are not changed: ``labels`` are at their
        masks.
        """
        if _TO_FILL in columns:
            return _with_masks(columns[_TO_FILL], tokenizer, max_length)
        pack = _PACKED in columns
        rows = token_rows(columns[_PACKED if pack else "text"], tokenizer, max_length, pack=pack)
        masks = TokenMasks(tokenizer, self.mask_probability)
        rows = [row for row in rows if masks.any_to_choose(row.ids)]
        masked = [masks.mask(row.ids, _SCORED, row.words if self.whole_words else None) for row in rows]
        found: dict[str, list[Any]] = {
            "input_ids": [ids for ids, _ in masked],
            "attention_mask": [[1] * len(ids) for ids, _ in masked],
            "labels": [labels for _, labels in masked],
        }
        if self.whole_words:
            found["words"] = [row.words for row in rows]
        if not pack:
            found["cut"] = [row.cut for row in rows]
        return BatchEncoding(found)

    def input_report(
        self, rows: Dataset, encoded: Mapping[str, Any], tokenizer: Tokenizer, limit: int
    ) -> dict[str, int]:
        """Count the texts that were cut off, and those that were left out; of packed texts, neither is known."""
        if "cut" not in encoded:
            return {"truncated": 0, "unknown": 0}
        return {"truncated": sum(encoded["cut"][:]), "unknown": len(rows) - len(encoded["cut"])}

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[list[int]]:
        return list(encoded["labels"])

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Pad labels with -100; words are for training only."""
        pad = DataCollatorForTokenClassification(tokenizer)
        return lambda rows: pad([{name: row[name] for name in row if name != "words"} for row in rows])

    def training_collator(
        self, collate: Callable[[list[Any]], Any], tokenizer: Tokenizer, seed: int
    ) -> MaskingCollator:
        return MaskingCollator(collate, TokenMasks(tokenizer, self.mask_probability), seed)

    def raw_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], outputs: Any) -> Tensor:
        """Compute the likelihoods of hidden tokens, and the most likely ones, from the logits of all positions."""
        hidden = batch["labels"] != IGNORED
        likelihoods = outputs.logits[hidden].float().log_softmax(-1)
        best, ids = likelihoods.max(-1)
        of_labels = likelihoods.gather(-1, batch["labels"][hidden][:, None]).squeeze(-1)
        found = torch.stack([of_labels, ids.float(), best.exp()], dim=-1)
        rows = torch.split(found, hidden.sum(1).tolist())
        return pad_sequence(list(rows), batch_first=True, padding_value=IGNORED)

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> Array:
        """Collect the predicted tokens of each row; fill in the masks of texts that have their own."""
        rows = [row[row[:, 1] != IGNORED].astype(float) for row in raw]
        if "texts" not in encoded:
            return row_array([PredictedTokens("", float(row[:, 0].sum()), len(row), _ids(row)) for row in rows])
        return row_array([_filled(text, row, tokenizer) for text, row in zip(encoded["texts"][:], rows, strict=True)])

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Make an array of the ids of the hidden tokens of each row."""
        return row_array([np.array([token for token in row if token != IGNORED], dtype=int) for row in labels])

    def decode(self, outputs: Array) -> list[list[int]]:
        return [list(each.ids) for each in outputs]

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return the ``filled`` text, and for each of its masks the ``tokens`` and their ``probabilities``."""
        return [
            {"filled": each.text, "tokens": list(each.written), "probabilities": list(each.probabilities)}
            for each in outputs
        ]

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        return word_counts(rows["text"][:])

    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        return word_line("words", parts)


@dataclass
class MaskingCollator:
    """Collator that masks training rows anew in each epoch, which the trainer sets.

    Masks depend on the seed, the epoch and the row alone, so that a run which is resumed continues exactly.
    """

    pad: Callable[[list[Any]], Any]
    masks: TokenMasks
    seed: int
    epoch: int = 0

    def __call__(self, rows: list[Any]) -> Any:
        masked = []
        for row in rows:
            before = unmasked(row["input_ids"], row["labels"])
            ids, labels = self.masks.mask(before, f"{self.seed}/{self.epoch}", row.get("words"))
            masked.append({**row, "input_ids": ids, "labels": labels})
        return self.pad(masked)


def _is_blank(text: Any) -> bool:
    return isinstance(text, str) and not text.strip()


def _with_masks(texts: Sequence[str], tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
    """Tokenize texts that have masks to fill, with labels at these."""
    mask = tokenizer.mask_token
    if not any(mask in text for text in texts):
        logger.warning("No text of %d has a mask to fill: write %s where a token is to be predicted.", len(texts), mask)
    encoded: BatchEncoding = tokenizer(list(texts), truncation=max_length is not None, max_length=max_length)
    encoded["labels"] = [
        [token if token == tokenizer.mask_token_id else IGNORED for token in row] for row in encoded["input_ids"]
    ]
    encoded["texts"] = list(texts)
    return encoded


def _ids(row: Array) -> tuple[int, ...]:
    return tuple(row[:, 1].astype(int).tolist())


def _filled(text: str, row: Array, tokenizer: Tokenizer) -> PredictedTokens:
    """Fill the masks of a text with predicted tokens, raw outputs of the text."""
    ids = _ids(row)
    beyond = text.count(tokenizer.mask_token) - len(ids)
    written = (*(shown_token(token, tokenizer) for token in ids), *[None] * beyond)
    probabilities = (*(round(float(each), 6) for each in row[:, 2]), *[None] * beyond)
    filled = fill(text, written, tokenizer.mask_token)
    return PredictedTokens(filled, ids=ids, written=written, probabilities=probabilities)


# Rows of tokens, which are hidden, and what fills them in ------------------------------------------------------------


@dataclass(frozen=True)
class TokenRow:
    """Ids of tokens, special ones included; the word of each, from 0; and whether the text was cut off."""

    ids: list[int]
    words: list[int]
    cut: bool


def token_rows(texts: Sequence[str], tokenizer: Tokenizer, max_length: int | None, *, pack: bool) -> list[TokenRow]:
    """Tokenize texts, each to a row; if a tokenizer does not identify words (it is not fast), each token is one.

    ``max_length`` is in tokens, including special tokens; None is no limit. With ``pack``, the texts are joined, with
    the tokenizer's separator between them if it has one, and cut into rows of this length.
    """
    before, after = special_tokens(tokenizer)
    frame = tokenizer("a")["input_ids"]
    first, last = frame[:before], frame[len(frame) - after :]
    streams = list(_tokens(texts, tokenizer))
    if pack:
        separator = [] if tokenizer.sep_token_id is None else [(tokenizer.sep_token_id, True)]
        joined = chain.from_iterable([*separator, *tokens] for tokens in streams if tokens)
        streams = [list(joined)[len(separator) :]]
    found = []
    for tokens in streams:
        size = len(tokens) if max_length is None else max_length - before - after
        for start in range(0, len(tokens), max(1, size)) if pack else (0,):
            kept = tokens[start : start + size]
            words = list(accumulate((begins for _, begins in kept[1:]), initial=0))[: len(kept)]
            ids = [*first, *(token for token, _ in kept), *last]
            found.append(TokenRow(ids, [0] * before + words + [0] * after, not pack and len(tokens) > size))
    return found


def _tokens(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[tuple[int, bool]]]:
    """Yield the tokens of each text: their ids, and whether each begins a word."""
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)
    for row, ids in enumerate(encoded["input_ids"]):
        words = encoded.word_ids(row) if encoded.is_fast else range(len(ids))
        yield [(token, word != before) for token, word, before in zip(ids, words, [None, *words], strict=False)]


# Of the chosen tokens, the fractions that become the mask token and a random one; the others stay as they are.
_MASKED, _REPLACED = 0.8, 0.1


class TokenMasks:
    """Chooses tokens to predict, and changes most of them: 80 % to the mask token, 10 % to a random token.

    The choice depends on a key and the row's own tokens only, not on padding, the other rows or the place of the row in
    a file. Rows with the same tokens are masked alike. Special tokens, among them unknown ones, are neither chosen nor
    drawn. Each token, or word, is chosen with ``probability``; at least one is.
    """

    def __init__(self, tokenizer: Tokenizer, probability: float) -> None:
        self.probability = probability
        self.mask_token: int = tokenizer.mask_token_id
        self._special = np.array(tokenizer.all_special_ids)
        self._vocabulary = np.setdiff1d(list(tokenizer.get_vocab().values()), self._special)

    def any_to_choose(self, ids: Sequence[int]) -> bool:
        """Return whether a row has a token that is not special."""
        return not np.isin(ids, self._special).all()

    def mask(self, ids: Sequence[int], key: str, words: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Mask a row without padding; ``words``, the word of each token, chooses whole words.

        Returns:
            The ids with masks, and the labels: the ids of the chosen tokens, and -100 elsewhere.
        """
        row = np.asarray(ids, dtype=np.int64)
        digest = hashlib.blake2b(key.encode() + row.astype("<i8").tobytes(), digest_size=16).digest()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        candidates = ~np.isin(row, self._special)
        units = np.arange(len(row)) if words is None else np.asarray(words)
        draws = random.random(int(units.max(initial=0)) + 1)[units]
        least = draws[candidates].min(initial=1)  # one at least is chosen
        chosen = candidates & ((draws < self.probability) | (draws == least))
        kinds, others = random.random(len(row)), random.choice(self._vocabulary, len(row))
        masked = np.where(chosen & (kinds < _MASKED), self.mask_token, row)
        masked = np.where(chosen & (kinds >= _MASKED) & (kinds < _MASKED + _REPLACED), others, masked)
        return masked.tolist(), np.where(chosen, row, IGNORED).tolist()


def unmasked(ids: Sequence[int], labels: Sequence[int]) -> list[int]:
    """Return the token ids of a row before it was masked."""
    return np.where(np.asarray(labels) == IGNORED, ids, labels).tolist()  # type: ignore[no-any-return]


# Begins a token of WordPiece that continues a word.
_CONTINUES = "##"


def shown_token(token: int, tokenizer: Tokenizer) -> str:
    """Write a token without the spaces around it; the marker of one that continues a word is kept."""
    name = str(tokenizer.convert_ids_to_tokens(token))
    return name if name.startswith(_CONTINUES) else str(tokenizer.decode([token])).strip()


def fill(text: str, tokens: Sequence[str | None], mask: str) -> str:
    """Replace the masks of a text, in their order, by tokens; None leaves a mask as it is."""
    filled, *others = text.split(mask)
    for token, following in zip(tokens, others, strict=True):
        if token is not None and token.startswith(_CONTINUES):
            filled = filled.rstrip() + token.removeprefix(_CONTINUES) + following
        else:
            filled += (mask if token is None else token) + following
    return filled
