"""Tiny random BERT with its own vocabulary, and small files to train it on, for tests of whole runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from attendrop.runs.config import RunConfig

WORDS = [
    *("the", "a", "cat", "dog", "bird", "sees", "hears", "likes"),
    *("good", "bad", "red", "blue", "near", "far", "not", "and"),
]


def save_tiny_bert(folder: Path, **options: Any) -> Path:
    """Save a random BERT, of two layers if not given, and its tokenizer, as a pre-trained model without a head."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    hf.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=32).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = hf.BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **(sizes | options))
    torch.manual_seed(1)
    hf.BertModel(config).save_pretrained(folder)
    return folder


def save_tiny_gpt2(folder: Path, **options: Any) -> Path:
    """Save a random GPT-2 of two layers, with a byte-level vocabulary, as a classifier of two classes."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "pad_token_id": 0}
    return _save_byte_level(folder, hf.GPT2ForSequenceClassification, hf.GPT2Config, sizes | options)


def save_tiny_llama(folder: Path) -> Path:
    """Save a random Llama of two layers, with a byte-level vocabulary, as a language model."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 64, "pad_token_id": 0}
    return _save_byte_level(folder, hf.LlamaForCausalLM, hf.LlamaConfig, sizes)


def _save_byte_level(folder: Path, cls: Any, config_cls: Any, sizes: dict[str, Any]) -> Path:
    """Save a model and a tokenizer of bytes and common pairs of them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, special_tokens=["<end>"])
    tokens.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    special = {"eos_token": "<end>", "pad_token": "<end>"}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=tokens, model_max_length=32, **special)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    cls(config_cls(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return folder


def sentence(number: int) -> str:
    """Make a sentence of 3 to 8 words, a different one for each number."""
    length = 3 + number % 6
    return " ".join(WORDS[(number * 7 + place * (1 + number % 5)) % len(WORDS)] for place in range(length))


def write_csv(path: Path, labels: list[Any], first: int = 0) -> Path:
    """Write a file of sentence1, sentence2 and label with a row for each label, from sentence ``first`` on."""
    rows = [f"{sentence(number)},{sentence(number + 3)},{label}" for number, label in enumerate(labels, first)]
    path.write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n", encoding="utf-8")
    return path


def write_data(folder: Path) -> tuple[Path, Path]:
    """Write a training and a development file of two classes."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_csv(folder / "train.csv", ["no", "yes"] * 20), write_csv(folder / "dev.csv", ["no", "yes"] * 6, 40)


def config(folder: Path, output: str = "run", **options: Any) -> RunConfig:
    """Make the options of a run of two short epochs on the files of :func:`write_data`, all below ``folder``."""
    places = {"model": "model", "output_dir": output, "train_file": "train.csv", "eval_file": "dev.csv"}
    chosen: dict[str, Any] = {name: str(folder / place) for name, place in places.items()}
    chosen |= {"text_columns": ("sentence1", "sentence2"), "label_column": "label", "max_length": 24, "device": "cpu"}
    fraction = None if options.get("protocol") == "paper" else 0.1
    chosen |= {"epochs": 2, "selection_fraction": fraction, "refit": False, "batch_size": 8, "learning_rate": 1e-3}
    return RunConfig(**(chosen | options))


@contextmanager
def kept_checkpoints() -> Iterator[None]:
    """Let runs that finish keep their checkpoints, as if they had died just before the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attendrop.runs.run_folder.delete_checkpoints", lambda place: None)
        yield


def unfinished(run: Path) -> Path:
    """Make a finished run one that died just before its end; return where it is then."""
    (run / "metrics.json").unlink()
    return run.rename(run.with_name(f".{run.name}.partial"))


def read_metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def scores_of(metrics: dict[str, Any] | None) -> dict[str, Any]:
    """What must be equal in runs that are the same."""
    names = ("method", "seed", "selection_score", "score", "all_scores", "best_epoch", "steps")
    losses = [(epoch["train_loss"], epoch["selection"], epoch["dropped"]) for epoch in metrics["history"]]
    return {name: metrics[name] for name in names} | {"losses": losses}


def weights_of(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()
