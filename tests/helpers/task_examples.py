"""Rows of each kind of task, and tiny models of the families that learn it, for runs of every method.

A new kind of task adds a row to ``EXAMPLES``, and the families that it is the first to need to ``FAMILIES``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from helpers import zoo
from helpers.tiny import WORDS, sentence

_VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", *WORDS]
_SHAPES = {"encoder": "<s> $A </s>", "decoder": "$A", "both": "$A </s>"}
_ENCODERS = ("bert", "deberta-v3", "modernbert", "mpnet", "albert", "roberta", "electra")


def _save_family(row: str, inputs: str, folder: Path) -> None:
    """Save a model of a row of the zoo, without a head unless it is a language model, and a tokenizer of words.

    Its tokenizer puts around a text what that of an ``"encoder"``, of a ``"decoder"`` or of ``"both"`` does.
    """
    entry = zoo.ZOO[row]
    cls = getattr(hf, entry.model)
    config = cls.config_class(**{**entry.options, **dict.fromkeys(entry.dropouts, 0.1), "num_labels": 2})
    torch.manual_seed(1)
    model = cls(config) if entry.task in ("seq2seq", "lm") else hf.AutoModel.from_config(config)
    model.save_pretrained(folder)
    _tokenizer(_SHAPES[inputs]).save_pretrained(folder)


# By name, what saves a tiny random model of the family, as a pre-trained model is saved.
FAMILIES: dict[str, Callable[[Path], None]] = {
    **{name: partial(_save_family, name, "encoder") for name in (*_ENCODERS, "bart")},
    **{name: partial(_save_family, name, "decoder") for name in ("gpt2", "llama")},
    **{name: partial(_save_family, name, "both") for name in ("t5", "marian")},
}


def _tokenizer(shape: str) -> hf.PreTrainedTokenizerFast:
    tokens = Tokenizer(models.WordLevel({word: place for place, word in enumerate(_VOCABULARY)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(word, _VOCABULARY.index(word)) for word in ("<s>", "</s>")]
    tokens.post_processor = processors.TemplateProcessing(single=shape, pair=f"{shape} $B </s>", special_tokens=special)
    words = {"pad": "<pad>", "bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    named: dict[str, Any] = {f"{name}_token": word for name, word in words.items()}
    given = {"model_max_length": 32, "model_input_names": ["input_ids", "attention_mask"], **named}
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokens, **given)


TEXT = "the cat sees a dog"


@dataclass(frozen=True)
class Example:
    """A kind of task in files of JSON lines: what makes the row of a number, who learns it, and options of the run.

    ``usage`` is what the code in the card reads, and the name of what it makes of that.
    """

    row: Callable[[int], dict[str, Any]]
    families: tuple[str, ...]
    texts: tuple[str, ...] = ("text",)
    label: str = "label"
    options: Mapping[str, Any] = field(default_factory=dict)
    usage: tuple[Mapping[str, Any], str] = ({"text": TEXT}, "logits")


def _choice(number: int) -> dict[str, Any]:
    choices = {name: sentence(number + place) for place, name in enumerate("abc"[: 2 + number % 2])}
    return {"text": sentence(number), "a": "", "b": "", "c": "", **choices, "label": "AB"[number % 2]}


def _texts(label: Callable[[int], Any]) -> Callable[[int], dict[str, Any]]:
    return lambda number: {"text": sentence(number), "label": label(number)}


# By kind of task. Kinds whose models differ from those of another in the loss alone have one family of each build.
EXAMPLES: dict[str, Example] = {
    "classification": Example(
        _texts(lambda number: ["no", "yes"][number % 2]), (*_ENCODERS, "gpt2", "llama", "bart", "t5")
    ),
    "regression": Example(
        _texts(lambda number: number % 5 / 2), ("bert", "llama", "bart"), options={"label_type": "number"}
    ),
    "multi-label-classification": Example(
        _texts(lambda number: ["cat", "dog", "bird"][: number % 4]),
        ("bert", "llama", "bart"),
        usage=({"text": TEXT}, "labels"),
    ),
    "token-classification": Example(
        lambda number: {
            "text": sentence(number).split(),
            "label": [["O", "B-PER"][len(word) % 2] for word in sentence(number).split()],
        },
        (*_ENCODERS, "gpt2", "llama", "t5"),
        usage=({"words": TEXT.split()}, "tags"),
    ),
    "multiple-choice": Example(
        _choice,
        _ENCODERS,
        ("text", "a", "b", "c"),
        options={"label_type": "choice"},
        usage=({"question": "what", "choices": ["cat", "a dog"]}, "answer"),
    ),
    "translation": Example(
        _texts(lambda number: sentence(number + 1)),
        ("marian", "bart", "t5"),
        options={"label_type": "text", "task_options": {"max_new_tokens": 3, "num_beams": 1}},
        usage=({"text": TEXT}, "translation"),
    ),
    "entity-spans": Example(
        _texts(lambda number: [[0, len(sentence(number).split()[0]), "PER"]]), ("bert",), usage=({"text": TEXT}, "tags")
    ),
}


def write_rows(path: Path, example: Example, first: int, count: int) -> Path:
    """Write a file of JSON lines with ``count`` rows, from row ``first`` on."""
    rows = [json.dumps(example.row(number)) for number in range(first, first + count)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
