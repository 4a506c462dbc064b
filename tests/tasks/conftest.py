"""Fixture of the tests of tasks."""

from __future__ import annotations

import pytest
from helpers import tiny
from transformers import AutoTokenizer, PreTrainedTokenizerBase


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """A fast tokenizer of the words of ``tiny.WORDS``, with the special tokens of BERT."""
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tiny.save_tiny_bert(tmp_path_factory.mktemp("words"))
    )
    return found
