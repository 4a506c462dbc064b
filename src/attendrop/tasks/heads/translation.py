"""Machine translation with an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel

from attendrop.errors import AttendropError
from attendrop.methods.core.options import Range, option
from attendrop.tasks.heads.base import Array, Columns, Metric, Tokenizer, truncation
from attendrop.tasks.heads.written_text import LIKELIHOOD_METRICS, WritingHead, log_likelihoods

_TEXT = Range("a text", lambda name, value: None if value is None else str(value))


def _of_corpus(name: str) -> Callable[[Array, Array], float]:
    """Make a score of sacrebleu, with its default settings, as a fraction."""

    def score(references: Array, outputs: Array) -> float:
        import sacrebleu

        found = getattr(sacrebleu, name)([each.text for each in outputs], [list(references)])
        return float(found.score) / 100

    return score


@dataclass(frozen=True)
class Translation(WritingHead):
    """Head for sequence-to-sequence translation.

    The model is evaluated by what it generates. Nothing is dropped or recorded there: it runs as it will be used.

    Attributes:
        source_lang: Code of the language of the texts, for multilingual models, as their tokenizer writes it
            (``tr_TR``, ``tur_Latn``). None: as the tokenizer's files say.
        target_lang: Code of the language to translate to, with which generation begins.
        source_prefix: Text before each text, such as T5's ``"translate English to Romanian: "``.
    """

    source_lang: str | None = option(None, _TEXT)
    target_lang: str | None = option(None, _TEXT)
    source_prefix: str | None = option(None, _TEXT)

    kind = "translation"
    in_sequence = True
    label_type = "text"
    inputs = ("text",)
    auto_class = "AutoModelForSeq2SeqLM"
    peft_task_type = "SEQ_2_SEQ_LM"
    pipeline_tag = "translation"
    example = """\
inputs = tokenizer($text, truncation=True, max_length=$max_length, return_tensors="pt")
translation = tokenizer.decode(model.generate(**inputs$arguments)[0], skip_special_tokens=True)"""
    default_metrics = ("bleu", "chrf", "neg_log_loss")
    metric_aliases: ClassVar = {"loss": "neg_log_loss", "chrf2": "chrf"}
    answer_column = "translation"
    predicts = "a translation"
    labels_are = "translations"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "bleu": Metric(_of_corpus("corpus_bleu")),
        "chrf": Metric(_of_corpus("corpus_chrf")),
        **LIKELIHOOD_METRICS,
    }
    refused: ClassVar = {
        "prune": "layers of constant attention are chosen and measured for encoders with one pass for each row",
        "export": "generation runs the decoder once for each token; load the folder with transformers, or with a "
        "program that reads its files",
        "attend": "the page shows encoders with one pass for each text",
    }

    def prepare(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        """Set the languages of the tokenizer, the token with which generation begins, and the options of generation."""
        super().prepare(model, tokenizer)
        given = {"src_lang": self.source_lang, "tgt_lang": self.target_lang}
        for name, code in given.items():
            if code is not None:
                _set_language(tokenizer, name, code)
        if self.target_lang is not None:
            _begin_with(model, tokenizer, self.target_lang)

    def example_values(self, *, stock: bool) -> dict[str, str]:
        text = "text" if self.source_prefix is None else f"{self.source_prefix!r} + text"
        return super().example_values(stock=stock) | {"text": text}

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize texts; with labels, add ``references``, and ``target_ids``, their tokens."""
        limits = truncation(max_length)
        prefix = self.source_prefix or ""
        encoded: BatchEncoding = tokenizer([prefix + text for text in columns["text"]], **limits)
        if "label" in columns:
            encoded["references"] = list(columns["label"])
            encoded["target_ids"] = tokenizer(text_target=list(columns["label"]), **limits)["input_ids"]
        return encoded

    def lengths(self, encoded: Mapping[str, Any]) -> list[int]:
        texts = encoded["input_ids"]
        return [max(map(len, pair)) for pair in zip(texts, encoded.get("target_ids", texts), strict=True)]

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[list[int]]:
        known = encoded.get("target_ids")
        return list(tokenizer(text_target=list(labels))["input_ids"] if known is None else known)

    def generate(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        found: Tensor = model.generate(**{name: values for name, values in batch.items() if name != "labels"})
        return found

    def raw_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], outputs: Any) -> Tensor:
        likelihoods = log_likelihoods(outputs.logits, batch["labels"])
        return torch.cat([likelihoods, self.generate(model, batch)], dim=1)


def _set_language(tokenizer: Tokenizer, name: str, code: str) -> None:
    """Set ``src_lang`` or ``tgt_lang`` of a tokenizer, with which it is also saved."""
    if not hasattr(tokenizer, name):
        raise AttendropError(
            f"{type(tokenizer).__name__} has no language codes, but {code!r} is given; omit it, or use the tokenizer "
            "of a multilingual model."
        )
    if tokenizer.convert_tokens_to_ids(code) in (None, tokenizer.unk_token_id):
        known = [token for token in tokenizer.all_special_tokens if "_" in token]
        raise AttendropError(f"The tokenizer has no language code {code!r}; it has {', '.join(known) or 'none'}.")
    setattr(tokenizer, name, code)
    tokenizer.init_kwargs[name] = code


def _begin_with(model: Any, tokenizer: Tokenizer, code: str) -> None:
    """Make generation begin with a language: as the first token, or where labels end with it, as the decoder's start.

    Labels of mBART-50, NLLB and M2M100 begin with the language; those of the first mBART end with it, and the model
    moves it to the start of the decoder's inputs.
    """
    language, labels = tokenizer.convert_tokens_to_ids(code), tokenizer(text_target="a")["input_ids"]
    if labels[0] == language:
        model.generation_config.forced_bos_token_id = language
    elif labels[-1] == language:
        model.generation_config.decoder_start_token_id = language
    else:
        raise AttendropError(f"{type(tokenizer).__name__} adds no language code {code!r} to labels; omit it.")
