"""Sentence vectors of a frozen encoder: the mean of its tokens, without padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import tiny, zoo
from transformers import AutoTokenizer

from attendrop.runs.prediction_passes import frozen_features
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.heads.classification import Classification
from attendrop.tasks.tokenization import encode_columns

YES_NO = Classification(("no", "yes"))
FIRST = [tiny.sentence(number) for number in range(12)]
SECOND = [tiny.sentence(number + 3) for number in range(12)]


@pytest.mark.parametrize(("name", "texts"), [("bert", (FIRST,)), ("bert", (FIRST, SECOND)), ("bart-class", (FIRST,))])
def test_features_are_the_mean_of_the_encoder_s_tokens(name: str, texts: tuple[list[str], ...], tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path))
    model = zoo.build(name, dropout=0.5).train()
    columns = dict(zip(("text", "text_pair"), texts, strict=False))
    encoded = encode_columns(columns, files_task(list(columns), YES_NO), tokenizer, 24)
    features = frozen_features(model, tokenizer, YES_NO, encoded, 5, "cpu")
    encoder = model.get_encoder() if name == "bart-class" else model.base_model
    for row, vector in zip(zip(*texts, strict=True), features, strict=True):
        read = tokenizer(*row, truncation=True, max_length=24, return_tensors="pt")
        if name == "bart-class":
            del read["token_type_ids"]
        with torch.no_grad():
            mean = encoder(**read).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-5)


def test_a_row_without_tokens_has_no_direction(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path))
    encoded = {"input_ids": [[5, 6], []], "attention_mask": [[1, 1], []], "length": [2, 0]}
    features = frozen_features(zoo.build("bert"), tokenizer, YES_NO, encoded, 5, "cpu")
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), [1, 0], atol=1e-6)
