"""Types of tokens, and tokens as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers as hf
from helpers import tiny
from tokenizers import Tokenizer, models, pre_tokenizers

from attendrop.reports.token_types import TokenTypes


def types(tokenizer: Any, text: str, pair: str | None = None) -> list[tuple[str, str]]:
    found, ids = TokenTypes(tokenizer), tokenizer(text, pair)["input_ids"]
    return list(zip(found.texts(ids), found.of(ids), strict=True))


def test_wordpiece_marks_what_continues_a_word(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "un", "##seen", ",", "$"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = hf.BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    assert types(tokenizer, "unseen cat, zebra", "$") == [
        ("[CLS]", "special"), ("un", "word"), ("##seen", "word piece"), ("cat", "word"), (",", "punctuation"),
        ("[UNK]", "word"), ("[SEP]", "special"), ("$", "punctuation"), ("[SEP]", "special"),
    ]  # fmt: skip


def test_byte_level_vocabularies_mark_what_begins_a_word(tmp_path: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(tiny.save_tiny_gpt2(tmp_path))
    assert types(tokenizer, "the cat (xy) é<end>") == [
        ("the", "word"), ("cat", "word"), ("Ġ", "word"), ("(", "punctuation"), ("x", "word"), ("y", "word piece"),
        (")", "punctuation"), ("Ġ", "word"), ("Ã", "word piece"), ("©", "word piece"), ("<end>", "special"),
    ]  # fmt: skip


def test_tokens_of_number_signs_do_not_mark_pieces(tmp_path: Path) -> None:
    """The vocabularies of GPT-2 and RoBERTa have ``####``, which begins as the pieces of WordPiece do."""
    tokenizer = hf.AutoTokenizer.from_pretrained(tiny.save_tiny_gpt2(tmp_path))
    tokenizer.add_tokens(["####"])
    assert types(tokenizer, "the catx####")[1:] == [
        ("cat", "word"), ("x", "word piece"), ("####", "punctuation"),
    ]  # fmt: skip


def test_a_vocabulary_without_marks_has_no_pieces() -> None:
    tokens = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "!": 2}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="<unk>")
    assert [kind for _, kind in types(tokenizer, "a a !")] == ["word", "word", "punctuation"]
