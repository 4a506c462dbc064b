"""Machine translation with an encoder-decoder: generation, and the likelihood of the reference translations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional
from transformers import BatchEncoding, DataCollatorForSeq2Seq, PreTrainedModel

from attendrop.attribution.predictions import IGNORED, TOKENS
from attendrop.errors import AttendropError
from attendrop.methods.core.options import Range, count, option, optional
from attendrop.support.models import position_limit
from attendrop.tasks.table import count_words, read_text
from attendrop.tasks.types.base import Array, Columns, Metric, TaskType, Tokenizer, row_array, truncation

_TEXT = Range("a text", lambda name, value: None if value is None else str(value))
DEFAULT_NEW_TOKENS = 128  # for models whose files do not say how much they generate
# Options of generation that transformers refuses to save where nothing is sampled, and where there is one beam.
_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
_OF_BEAMS = ("early_stopping", "length_penalty")


@dataclass(frozen=True)
class WrittenText:
    """Output for a row."""

    text: str  # what the model wrote; empty if it was not asked to
    log_likelihood: float = 0.0  # of the reference; finite unless the model diverged
    tokens: int = 0  # of the reference


def _of_corpus(name: str) -> Metric:
    """Make a score of sacrebleu, with its default settings, as a fraction."""

    def score(references: Array, outputs: Array) -> float:
        import sacrebleu

        found = getattr(sacrebleu, f"corpus_{name}")([each.text for each in outputs], [list(references)])
        return float(found.score) / 100

    return Metric(score)


def _mean_log_likelihood(references: Array, outputs: Array) -> float:
    return float(sum(each.log_likelihood for each in outputs) / max(1, sum(each.tokens for each in outputs)))


@dataclass(frozen=True)
class Translation(TaskType):
    """Sequence-to-sequence translation. Labels and references are texts, outputs are :class:`WrittenText`.

    The model is evaluated by what it generates. Nothing is dropped or recorded there: it runs as it will be used.

    Raw outputs are numbers, ``(rows, 2 + tokens)``: the log-likelihood of the reference, the number of its tokens, and
    the ids of the generated tokens, padded with -100.

    Attributes:
        num_beams: Number of beams of the beam search; 1 is greedy search. None: as the model's files say.
        max_new_tokens: Number of tokens to generate, at most. None: as the model's files say, otherwise 128.
        source_lang: Code of the language of the texts, for multilingual models, as their tokenizer writes it
            (``tr_TR``, ``tur_Latn``). None: as the tokenizer's files say.
        target_lang: Code of the language to translate to, with which generation begins.
        source_prefix: Text before each text, such as T5's ``"translate English to Romanian: "``.
    """

    num_beams: int | None = option(None, optional(count()))
    max_new_tokens: int | None = option(None, optional(count()))
    source_lang: str | None = option(None, _TEXT)
    target_lang: str | None = option(None, _TEXT)
    source_prefix: str | None = option(None, _TEXT)

    kind = "translation"
    in_sequence = True
    label_type = "text"
    inputs = ("text",)
    most_inputs = 1
    auto_class = "AutoModelForSeq2SeqLM"
    generates = True
    output_kind = TOKENS
    padding = IGNORED
    tokenizer_options: ClassVar = {}  # programs that generate with the saved model pad on the left
    peft_task_type = "SEQ_2_SEQ_LM"
    pipeline_tag = "translation"
    example = """\
inputs = tokenizer($text, truncation=True, max_length=$max_length, return_tensors="pt")
translation = tokenizer.decode(model.generate(**inputs$arguments)[0], skip_special_tokens=True)"""
    default_metrics = ("bleu", "chrf", "neg_log_loss")
    answer_column = "translation"
    attributed = "the log-likelihood of the predicted tokens"
    prediction, label_words = "a translation", "translations"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "bleu": _of_corpus("bleu"),
        "chrf": _of_corpus("chrf"),
        "neg_log_loss": Metric(_mean_log_likelihood, math.inf),
        "perplexity": Metric(lambda *rows: math.exp(min(-_mean_log_likelihood(*rows), 700)), math.inf, selects=False),
    }
    refused: ClassVar = {
        "prune": "layers of constant attention are chosen and measured for encoders with one pass for each row",
        "export": "generation runs the decoder once for each token; load the folder with transformers, or with a "
        "program that reads its files",
        "attend": "the page shows encoders with one pass for each text",
    }

    @classmethod
    def read_names(cls, value: Any) -> list[str]:
        read_text(value)
        return []

    def read_label(self, value: Any, inputs: Sequence[Any] | None = None) -> str:
        return read_text(value)

    def prepare(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        """Set the languages of the tokenizer, and how the model generates, with which both are saved.

        A row has one translation, nothing is sampled, and generation begins with the target language.

        Raises:
            AttendropError: The model generates no text, more is asked for than its positions allow, or a language is
                unknown.
        """
        generation = model.generation_config
        if generation is None:
            raise AttendropError(f"{type(model).__name__} does not generate text; use a model that does.")
        if self.num_beams is not None:
            generation.num_beams = self.num_beams
        if self.max_new_tokens is not None or (generation.max_new_tokens is None and generation.max_length is None):
            generation.max_new_tokens, generation.max_length = self.max_new_tokens or DEFAULT_NEW_TOKENS, None
        without = (*_OF_SAMPLING, *(_OF_BEAMS if generation.num_beams in (None, 1) else ()), "num_return_sequences")
        generation.update(do_sample=False, **dict.fromkeys(without))  # type: ignore[no-untyped-call]
        limit, most = position_limit(model), generation.max_new_tokens
        if limit is not None and most is not None and most >= limit:
            if self.max_new_tokens is not None:
                raise AttendropError(
                    f"max_new_tokens={most} is too much: {type(model).__name__} has {limit} positions."
                )
            generation.max_new_tokens = limit // 2
        tokens: Mapping[str, str] = getattr(tokenizer, "lang_code_to_token", {})  # M2M100's for en is __en__
        for name, code in {"src_lang": self.source_lang, "tgt_lang": self.target_lang}.items():
            if code is None:
                continue
            if not hasattr(tokenizer, name):
                raise AttendropError(
                    f"{type(tokenizer).__name__} has no language codes, but {code!r} is given; omit it, or use the "
                    "tokenizer of a multilingual model."
                )
            unknown = tokenizer.convert_tokens_to_ids(tokens.get(code, code)) in (None, tokenizer.unk_token_id)
            if unknown or (tokens and code not in tokens):
                known = ", ".join(tokens or (each for each in tokenizer.all_special_tokens if "_" in each)) or "none"
                raise AttendropError(f"The tokenizer has no language code {code!r}; it has {known}.")
            setattr(tokenizer, name, code)
            tokenizer.init_kwargs[name] = code  # with which it is also saved
        if self.target_lang is None:
            return
        # Labels of mBART-50, NLLB and M2M100 begin with the language; those of the first mBART end with it, and the
        # model moves it to the start of the decoder's inputs.
        language = tokenizer.convert_tokens_to_ids(tokens.get(self.target_lang, self.target_lang))
        labels = tokenizer(text_target="a")["input_ids"]
        if labels[0] == language:
            generation.forced_bos_token_id = language
        elif labels[-1] == language:
            generation.decoder_start_token_id = language
        else:
            raise AttendropError(f"{type(tokenizer).__name__} adds no code {self.target_lang!r} to labels; omit it.")

    def example_values(self, *, stock: bool) -> dict[str, str]:
        """Return the text, and the options of generation as further arguments in code; stock models have them."""
        new_tokens = self.max_new_tokens or (None if stock else DEFAULT_NEW_TOKENS)
        given = {"num_beams": self.num_beams, "max_new_tokens": new_tokens}
        return {
            "text": "text" if self.source_prefix is None else f"{self.source_prefix!r} + text",
            "arguments": "".join(f", {name}={value}" for name, value in given.items() if value is not None),
        }

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize texts; with labels, add ``references``, the whole texts, and ``target_ids``, their tokens.

        Raises:
            AttendropError: The language of labels is not known, or the model does not read them.
        """
        limits, prefix = truncation(max_length), self.source_prefix or ""
        encoded: BatchEncoding = tokenizer([prefix + text for text in columns["text"]], **limits)
        if "label" in columns:
            called = type(tokenizer).__name__
            if called == "FSMTTokenizer":  # its model's decoder would read the source
                raise AttendropError("FSMT makes no inputs of labels, and can only predict; train Marian.")
            if self.target_lang is None and getattr(tokenizer, "tgt_lang", "") is None:  # it would be the source's
                raise AttendropError(
                    f"{called} has language codes, and its files name no target; set target_lang, and source_lang, "
                    "such as --task-set target_lang=CODE."
                )
            encoded["references"] = list(columns["label"])
            encoded["target_ids"] = tokenizer(text_target=list(columns["label"]), **limits)["input_ids"]
        return encoded

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[list[int]]:
        known = encoded.get("target_ids")
        return list(tokenizer(text_target=list(labels))["input_ids"] if known is None else known)

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Pad labels with -100; without labels, the collator of transformers says that they are None."""
        collate: Any = DataCollatorForSeq2Seq(tokenizer)
        return lambda rows: {name: values for name, values in collate(rows).items() if values is not None}

    def raw_outputs(self, model: Any, batch: Mapping[str, Any], outputs: Any) -> Tensor:
        """Generate a translation; without labels, its likelihood is 0 of 0 tokens."""
        generated: Tensor = model.generate(**{name: values for name, values in batch.items() if name != "labels"})
        likelihoods = torch.zeros(len(generated), 2, device=generated.device)
        if outputs is not None:
            labels, logits = batch["labels"], outputs.logits.float().transpose(1, 2)
            losses = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
            likelihoods = torch.stack([-losses.sum(1), (labels != IGNORED).sum(1).float()], dim=1)
        return torch.cat([likelihoods, generated], dim=1)

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> Array:
        """Decode the generated tokens."""
        found = []
        for likelihood, tokens, *ids in raw.tolist():
            text = tokenizer.decode([int(token) for token in ids if token != IGNORED], skip_special_tokens=True)
            found.append(WrittenText(str(text), likelihood, int(tokens)))
        return row_array(found)

    def references(self, encoded: Mapping[str, Any]) -> Array:
        return row_array(encoded["references" if "references" in encoded else "labels"][:])

    def decode(self, outputs: Array) -> list[str]:
        return [each.text for each in outputs]

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        words = list(map(count_words, rows["label"][:]))
        return {"words": {"mean": float(np.mean(words)), "max": max(words)}}
