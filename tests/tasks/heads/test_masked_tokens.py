"""Random masks of tokens: which are chosen, what becomes of them, and what they depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny
from transformers import BertTokenizer

from attendrop.tasks.heads.masked_language_modeling import TokenMasks, fill, shown_token, token_rows, unmasked

Array = np.ndarray[Any, np.dtype[Any]]
LONG = list(range(5, 21)) * 500  # token ids of the words, 0 to 4 are special


def masked(masks: TokenMasks, ids: list[int], key: str = "0", words: list[int] | None = None) -> tuple[Array, Array]:
    found, labels = masks.mask(ids, key, words)
    return np.array(found), np.array(labels)


def test_of_the_chosen_tokens_eight_in_ten_are_masked_and_one_is_random(tokenizer: Any) -> None:
    ids, labels = masked(TokenMasks(tokenizer, 0.4), LONG)
    chosen = labels != -100
    assert chosen.mean() == pytest.approx(0.4, abs=0.02)  # four standard deviations
    assert (labels[chosen] == np.array(LONG)[chosen]).all() and (ids[~chosen] == np.array(LONG)[~chosen]).all()
    assert (ids[chosen] == tokenizer.mask_token_id).mean() == pytest.approx(0.8, abs=0.05)
    kept = 0.1 + 0.1 / len(tiny.WORDS)  # a random token may be the same
    assert (ids[chosen] == labels[chosen]).mean() == pytest.approx(kept, abs=0.04)
    assert set(ids[chosen]) == {tokenizer.mask_token_id, *range(5, 21)}


def test_special_tokens_are_never_chosen_and_one_other_always_is(tokenizer: Any) -> None:
    rows = tokenizer(["the [MASK] zebra cat", "cat", "zebra"])["input_ids"]  # which does not know a zebra
    masks = TokenMasks(tokenizer, 0.15)
    for number in range(50):
        labels = [masks.mask(row, str(number))[1] for row in rows]
        assert [label for label in labels[0] if label != -100] in ([5], [7], [5, 7])
        assert labels[1:] == [[-100, 7, -100], [-100] * 3]
    assert [masks.any_to_choose(row) for row in rows] == [True, True, False]


def test_masks_follow_from_the_key_and_the_row_alone(tokenizer: Any) -> None:
    first, second = TokenMasks(tokenizer, 0.15), TokenMasks(tokenizer, 0.15)
    assert first.mask(LONG, "7/0") == second.mask(LONG, "7/0")
    assert first.mask(LONG, "7/0") != first.mask(LONG, "7/1") != first.mask(LONG, "8/1")
    # Pinned: another version of numpy must not change the scores of a model.
    ids, labels = TokenMasks(tokenizer, 0.3).mask(list(range(5, 21)), "7/0")
    assert ids == [*range(5, 11), 19, 12, 13, 14, 4, 16, 17, 18, 4, 20]
    assert [place for place, label in enumerate(labels) if label != -100] == [6, 10, 14]
    ids, labels = first.mask(LONG, "7/0")
    assert unmasked(ids, labels) == LONG


# Rows ----------------------------------------------------------------------------------------------------------------

TEXTS = ["the cat sees a dog", "", "bird", "a red and blue bird"]


def decoded(tokenizer: Any, texts: list[str], length: int | None, *, pack: bool) -> list[str]:
    return [tokenizer.decode(row.ids) for row in token_rows(texts, tokenizer, length, pack=pack)]


def test_each_text_is_a_row_as_the_tokenizer_makes_it(tokenizer: Any) -> None:
    for length in (None, 5):
        limits = {} if length is None else {"truncation": True, "max_length": length}
        rows = token_rows(TEXTS, tokenizer, length, pack=False)
        assert [row.ids for row in rows] == tokenizer(TEXTS, **limits)["input_ids"]
        assert [row.cut for row in rows] == [length == 5, False, False, length == 5]


def test_packed_texts_fill_rows(tokenizer: Any) -> None:
    assert decoded(tokenizer, TEXTS, 7, pack=True) == [
        "[CLS] the cat sees a dog [SEP]",
        "[CLS] [SEP] bird [SEP] a red [SEP]",
        "[CLS] and blue bird [SEP]",
    ]
    assert decoded(tokenizer, ["", " "], 7, pack=True) == []


def test_words_are_counted_within_a_row(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\n##s\n")
    tokenizer = BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    packed = token_rows(["cats cat", "cats"], tokenizer, 6, pack=True)
    assert [tokenizer.convert_ids_to_tokens(row.ids[1:-1]) for row in packed] == [
        ["cat", "##s", "cat", "[SEP]"],
        ["cat", "##s"],
    ]
    assert [row.words[1:-1] for row in packed] == [[0, 0, 1, 2], [0, 0]]
    assert shown_token(6, tokenizer) == "##s" and shown_token(5, tokenizer) == "cat"


def test_masks_are_filled_in_their_order() -> None:
    assert fill("The [MASK] [MASK], see?", ["cat", "##s"], "[MASK]") == "The cats, see?"
    assert fill("<mask>! <mask>", ["Cats", None], "<mask>") == "Cats! <mask>"
