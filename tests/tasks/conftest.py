"""Fixture of the tests of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """A fast tokenizer of the words of ``tiny.WORDS``, with the special tokens of BERT."""
    from helpers import tiny  # here: what every conftest imports delays the process that starts the others
    from transformers import AutoTokenizer

    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tiny.save_tiny_bert(tmp_path_factory.mktemp("words"))
    )
    return found
