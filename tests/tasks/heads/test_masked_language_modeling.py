"""Masked language modeling: rows, outputs against each row alone, filled masks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny
from transformers import AutoModelForMaskedLM, AutoTokenizer, BartConfig, BertTokenizer, GPT2Config

from attendrop.errors import AttendropError
from attendrop.runs.prediction_passes import predict_outputs
from attendrop.tasks.base import Task
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.heads.masked_language_modeling import (
    MaskedLanguageModeling,
    TokenMasks,
    fill,
    shown_token,
    token_rows,
    unmasked,
)
from attendrop.tasks.heads.registry import head_of_model
from attendrop.tasks.tokenization import encode_columns

KIND = "masked-language-modeling"
TASK = Task("files", KIND, ("text",), (), "neg_log_loss", "", ("perplexity", "accuracy"), (), {"mask_probability": 0.3})
ROWS = {"text": ["the cat sees a dog", "bird", "zebra", "a red and blue bird hears the dog"]}
KNOWN = [0, 1, 3]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tiny.save_tiny_bert(tmp_path_factory.mktemp("bert"))
    torch.manual_seed(0)
    return AutoModelForMaskedLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def outputs_of(loaded: tuple[Any, Any], encoded: dict[str, Any]) -> Any:
    return predict_outputs(*loaded, TASK.head, encoded, 3, "cpu")


def test_outputs_are_those_of_each_row_alone(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    encoded = encode_columns(ROWS, TASK, tokenizer, 32)
    whole = [unmasked(*row) for row in zip(encoded["input_ids"], encoded["labels"], strict=True)]
    assert whole == tokenizer([ROWS["text"][row] for row in KNOWN])["input_ids"]
    outputs, references = outputs_of(loaded, encoded), TASK.head.references(encoded)
    for ids, labels, output, hidden in zip(encoded["input_ids"], encoded["labels"], outputs, references, strict=True):
        with torch.no_grad():
            likelihoods = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        places = [place for place, label in enumerate(labels) if label != -100]
        assert places and [labels[place] for place in places] == hidden.tolist()
        expected = sum(float(likelihoods[place, labels[place]]) for place in places)
        assert output.log_likelihood == pytest.approx(expected, rel=1e-4) and output.tokens == len(places)
        assert output.ids == tuple(likelihoods[places].argmax(-1).tolist())
    right = np.concatenate([output.ids for output in outputs]) == np.concatenate(references)
    assert TASK.head.metrics["accuracy"].score(references, outputs) == pytest.approx(right.mean())


def test_training_rows_are_masked_anew_in_each_epoch(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1]
    encoded = encode_columns(ROWS, TASK, tokenizer, 32)
    rows = [{name: encoded[name][row] for name in ("input_ids", "attention_mask", "labels")} for row in range(3)]
    collate = TASK.head.training_collator(TASK.head.collator(tokenizer), tokenizer, seed=3)
    batches = []
    for epoch in (0, 1, 0):
        collate.epoch = epoch
        batches.append(collate(rows))
    first, second, again = (batch["labels"] for batch in batches)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert ((first != -100).sum(1) > 0).all() and (first[batches[0]["attention_mask"] == 0] == -100).all()
    reversed_ = collate(rows[::-1])  # neither the order of the rows nor their padding counts
    assert torch.equal(reversed_["labels"], first.flip(0))
    assert torch.equal(collate(rows[1:2])["labels"][0], first[1, :3])
    other_seed = TASK.head.training_collator(TASK.head.collator(tokenizer), tokenizer, seed=4)
    assert not torch.equal(other_seed(rows)["labels"], first)


@pytest.fixture
def pieces(tmp_path: Path) -> BertTokenizer:
    """A tokenizer whose words have several tokens."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\n##s\n")
    return BertTokenizer(vocab=str(tmp_path / "vocab.txt"))


def test_whole_words_are_hidden_in_scored_and_in_training_rows(pieces: BertTokenizer) -> None:
    head = MaskedLanguageModeling(mask_probability=0.4, whole_words=True)
    encoded = head.tokenize({"text": ["cats " * n for n in range(1, 40)]}, pieces, None)
    collate = head.training_collator(head.collator(pieces), pieces, seed=0)
    rows = [{name: encoded[name][row] for name in ("input_ids", "words", "labels")} for row in range(39)]
    for labels in (*encoded["labels"], *collate(rows)["labels"].tolist()):
        hidden = [label != -100 for label in labels[1:]]  # "cat", "##s", "cat" ..., and then "[SEP]" and padding
        assert [*hidden[::2]][: len(hidden) // 2] == hidden[1::2] and any(hidden)


def test_own_masks_of_texts_are_filled(loaded: tuple[Any, Any], caplog: pytest.LogCaptureFixture) -> None:
    model, tokenizer = loaded
    texts = ["the [MASK] sees a [MASK]", "bird", "[MASK]"]
    columns = TASK.head.without_answers({"text": texts, "index": [0, 1, 2]})
    outputs = outputs_of(loaded, encode_columns(columns, TASK, tokenizer, 7))
    rows = TASK.head.prediction_rows(outputs, probabilities=False)
    with torch.no_grad():
        likely = model(**tokenizer(texts[0], return_tensors="pt")).logits[0].softmax(-1)
    best = tokenizer.convert_ids_to_tokens(likely[[2, 5]].argmax(-1).tolist())
    assert rows[0]["tokens"] == best and rows[0]["filled"] == f"the {best[0]} sees a {best[1]}"
    assert rows[0]["probabilities"] == pytest.approx(likely[[2, 5]].amax(-1).tolist(), abs=1e-5)
    assert rows[1] == {"filled": "bird", "tokens": [], "probabilities": []}
    cut = outputs_of(loaded, encode_columns(columns, TASK, tokenizer, 5))[0]
    assert cut.written == (best_of_cut := (cut.written[0], None)) and cut.text == f"the {best_of_cut[0]} sees a [MASK]"
    encode_columns(TASK.head.without_answers(ROWS), TASK, tokenizer, 8)
    assert "No text of" in caplog.text and "has a mask to fill: write [MASK] where" in caplog.text


def test_empty_lines_of_a_corpus_are_left_out_and_labels_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("the cat\n\n \na dog\n")
    data = load_files(train_file=tmp_path / "corpus.txt", text_columns=["text"], label_type="mlm")
    assert data.task.kind == KIND and not data.skipped
    assert data.splits["train"]["text"][:] == ["the cat", "a dog"] and data.splits["train"]["index"][:] == [0, 3]
    (tmp_path / "rows.jsonl").write_text('{"text": "a cat", "label": "x"}\n')
    with pytest.raises(AttendropError, match="trained on texts alone, and 'label' is the label column; omit it"):
        load_files(train_file=tmp_path / "rows.jsonl", text_columns=["text"], label_column="label", label_type="mlm")


def test_models_without_masks_are_refused() -> None:
    for config in (GPT2Config(), BartConfig()):
        with pytest.raises(AttendropError, match=f"'{config.model_type}' are no masked language models"):
            MaskedLanguageModeling().configure(config)
    bart = BartConfig(architectures=["BartForConditionalGeneration"])
    assert not MaskedLanguageModeling.recognizes(bart) and head_of_model(bart).kind == "translation"


# Masks ---------------------------------------------------------------------------------------------------------------

LONG = list(range(5, 21)) * 500  # token ids of the words, 0 to 4 are special


def test_of_the_chosen_tokens_eight_in_ten_are_masked_and_one_is_random(tokenizer: Any) -> None:
    ids, labels = map(np.array, TokenMasks(tokenizer, 0.4).mask(LONG, "0"))
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


def test_each_text_is_a_row_as_the_tokenizer_makes_it(tokenizer: Any) -> None:
    for length in (None, 5):
        limits = {} if length is None else {"truncation": True, "max_length": length}
        rows = token_rows(TEXTS, tokenizer, length, pack=False)
        assert [row.ids for row in rows] == tokenizer(TEXTS, **limits)["input_ids"]
        assert [row.cut for row in rows] == [length == 5, False, False, length == 5]


def test_packed_texts_fill_rows(tokenizer: Any) -> None:
    assert [tokenizer.decode(row.ids) for row in token_rows(TEXTS, tokenizer, 7, pack=True)] == [
        "[CLS] the cat sees a dog [SEP]",
        "[CLS] [SEP] bird [SEP] a red [SEP]",
        "[CLS] and blue bird [SEP]",
    ]
    assert token_rows(["", " "], tokenizer, 7, pack=True) == []


def test_words_are_counted_within_a_row(pieces: BertTokenizer) -> None:
    packed = token_rows(["cats cat", "cats"], pieces, 6, pack=True)
    tokens = [pieces.convert_ids_to_tokens(row.ids[1:-1]) for row in packed]
    assert tokens == [["cat", "##s", "cat", "[SEP]"], ["cat", "##s"]]
    assert [row.words[1:-1] for row in packed] == [[0, 0, 1, 2], [0, 0]]
    assert shown_token(6, pieces) == "##s" and shown_token(5, pieces) == "cat"


def test_masks_are_filled_in_their_order() -> None:
    assert fill("The [MASK] [MASK], see?", ["cat", "##s"], "[MASK]") == "The cats, see?"
    assert fill("<mask>! <mask>", ["Cats", None], "<mask>") == "Cats! <mask>"
