"""Tiny random translators with their own vocabulary, and the texts of a toy language to train them on."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = {"one": "un", "two": "doi", "three": "trei", "cat": "pisica", "dog": "caine", "and": "si", "big": "mare"}


def save_tiny_marian(folder: Path, *, size: int = 16, init_std: float = 0.02, positions: int = 32) -> Path:
    """Save a random Marian of two layers in the encoder and one in the decoder, with a vocabulary of words."""
    tokenizer = word_tokenizer()
    sizes = {"d_model": size, "encoder_layers": 2, "decoder_layers": 1, "max_position_embeddings": positions}
    sizes |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 2 * size for side in ("encoder", "decoder")}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    others: dict[str, Any] = {"dropout": 0.0, "scale_embedding": True, "init_std": init_std}
    config = hf.MarianConfig(vocab_size=len(tokenizer), **sizes, **tokens, **others)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    hf.MarianMTModel(config).save_pretrained(folder)
    return folder


def save_tiny_t5(folder: Path) -> Path:
    """Save a random T5 of two layers, with a vocabulary of words."""
    tokenizer = word_tokenizer()
    config = hf.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    hf.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def word_tokenizer() -> hf.PreTrainedTokenizerFast:
    """Make a tokenizer of the words of both languages."""
    vocabulary = ["<pad>", "</s>", "<unk>", *WORDS, *WORDS.values()]
    tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=32,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def pair(number: int) -> tuple[str, str]:
    """Make a text of one to four words and its translation, word by word."""
    draw = random.Random(number)
    words = draw.choices(list(WORDS), k=1 + number % 4)
    return " ".join(words), " ".join(WORDS[word] for word in words)


def write_pairs(folder: Path, name: str, numbers: Iterable[int]) -> str:
    """Write parallel text files; returns their names as ``--train-file`` takes them."""
    texts = [pair(number) for number in numbers]
    for side, language in enumerate(("en", "ro")):
        (folder / f"{name}.{language}").write_text("".join(f"{text[side]}\n" for text in texts))
    return f"{folder / name}.en,{folder / name}.ro"
