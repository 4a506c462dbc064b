"""Maps of texts are those of the stock model, and survive the compact form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny

from attendrop import ADDrop, Vanilla
from attendrop.errors import AttendropError
from attendrop.reports.attention_drops import DropMoment
from attendrop.reports.attention_maps import DropSettings, TextMaps, text_maps, token_texts
from attendrop.tasks.types.classification import Classification, Regression

TEXT = "the cat sees not the red bird"


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of two classes, with random weights so large that attention is far from uniform."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gpt2":
        tiny.save_tiny_gpt2(folder)
    else:
        tiny.save_tiny_bert(folder)
    load = hf.AutoModelForSequenceClassification.from_pretrained
    torch.manual_seed(0)
    model = load(folder, num_labels=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, **options: Any) -> Any:
    return hf.AutoModelForSequenceClassification.from_pretrained(folder, **options)


def maps_of(folder: Path, model: Any = None, **settings: Any) -> TextMaps:
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = load(folder) if model is None else model
    return text_maps(model, tokenizer, Classification(("no", "yes")), dict(tokenizer(TEXT)), **settings)


def stock(folder: Path) -> tuple[list[torch.Tensor], list[torch.Tensor], int]:
    """Weights, gradients of the predicted logit with respect to them, and the prediction, by transformers alone."""
    model = load(folder, attn_implementation="eager")
    inputs = hf.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    found = model(**inputs, output_attentions=True)
    best = int(found.logits.argmax())
    gradients = torch.autograd.grad(found.logits[0, best], found.attentions)
    return [each[0].detach() for each in found.attentions], [each[0] for each in gradients], best


def test_weights_and_attributions_are_those_of_the_stock_model(folder: Path) -> None:
    maps, (weights, gradients, best) = maps_of(folder), stock(folder)
    assert maps.prediction["label"] == ("no", "yes")[best]
    assert len(maps.layers) == len(weights) == 2
    for layer, weight, gradient in zip(maps.layers.values(), weights, gradients, strict=True):
        np.testing.assert_allclose(layer.attention, weight.numpy(), atol=1e-5)
        np.testing.assert_allclose(layer.attribution, gradient.numpy(), atol=1e-5)
        assert layer.dropped is None
        causal = "gpt2" in load(folder).config.model_type
        expected = np.tri(len(maps.tokens), dtype=bool) if causal else np.ones((len(maps.tokens),) * 2, dtype=bool)
        assert np.array_equal(layer.possible, expected)
    ((key, layer),) = maps_of(folder, attribution="integrated_gradient", layers="1").layers.items()
    assert key == list(maps.layers)[1]
    assert not np.allclose(layer.attribution, maps.layers[key].attribution)
    with pytest.raises(AttendropError, match="'saliency'"):
        maps_of(folder, attribution="saliency")


def test_ad_drop_drops_the_highest_attributions_of_each_row(folder: Path) -> None:
    drops = DropSettings(ADDrop(p=0.3, q=1.0, layers="all"), DropMoment())
    model = load(folder)
    model.train()
    maps = maps_of(folder, model, drops=drops)
    assert model.training
    shares = []
    for layer in maps.layers.values():
        assert not (layer.dropped & ~layer.possible).any()
        for head in range(len(layer.attribution)):
            for attribution, dropped, possible in zip(
                layer.attribution[head], layer.dropped[head], layer.possible, strict=True
            ):
                kept = possible & ~dropped
                if dropped.any() and kept.any():
                    assert attribution[dropped].min() > attribution[kept].max()
        shares.append(layer.dropped.mean())
    assert max(shares) > 0.1
    only_first = DropSettings(Vanilla(p=0.5, layers="first"), DropMoment())
    first, second = maps_of(folder, drops=only_first).layers.values()
    assert (first.dropped.any(), second.dropped.any()) == (True, False)


def test_a_label_that_is_given_is_kept_and_without_one_regression_is_attributed_to_the_prediction(folder: Path) -> None:
    model = load(folder, num_labels=1, problem_type="regression", ignore_mismatched_sizes=True)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    row = dict(tokenizer(TEXT))
    (own, below) = (text_maps(model, tokenizer, Regression(), {**row, **more}) for more in ({}, {"labels": -1e3}))
    inputs = tokenizer(TEXT, return_tensors="pt")
    stock = load(folder, num_labels=1, ignore_mismatched_sizes=True, attn_implementation="eager")
    stock.load_state_dict(model.state_dict())
    found = stock(**inputs, output_attentions=True)
    gradients = torch.autograd.grad(found.logits.sum(), found.attentions)
    assert own.prediction["score"] == pytest.approx(found.logits.item(), abs=1e-5)
    for layer, gradient in zip(own.layers.values(), gradients, strict=True):
        np.testing.assert_allclose(layer.attribution, 2 * gradient[0].numpy(), atol=1e-4)
    first, second = (next(iter(each.layers.values())).attribution for each in (own, below))
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] < -0.99


# --- Tokens as text


def test_pieces_of_wordpiece_keep_their_mark(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "un", "##seen", ","]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = hf.BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    expected = ["[CLS]", "un", "##seen", "cat", ",", "[UNK]", "[SEP]"]
    assert token_texts(tokenizer, tokenizer("unseen cat, zebra")["input_ids"]) == expected


def test_tokens_of_bytes_have_no_marks_of_words_but_parts_of_characters_are_told_apart(tmp_path: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(tiny.save_tiny_gpt2(tmp_path))
    expected = ["the", "cat", "Ġ", "(", "x", ")", "Ġ", "Ã", "©", "<end>"]
    assert token_texts(tokenizer, tokenizer("the cat (x) é<end>")["input_ids"]) == expected
