"""Only one package knows how transformers dispatches attention, and how its projections are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attendrop

SOURCE = Path(attendrop.__file__).parent
WORDS = (
    "AttentionInterface",
    "AttentionMaskInterface",
    "ALL_ATTENTION_FUNCTIONS",
    "_attn_implementation",
    "_gradient_checkpointing_func",
    "Conv1D",
)


@pytest.mark.parametrize("word", WORDS)
def test_what_transformers_calls_things_is_known_in_one_package(word: str) -> None:
    found = {
        path.relative_to(SOURCE).parts[0]
        for path in SOURCE.rglob("*.py")
        if re.search(rf"\b{word}", path.read_text("utf-8"))
    }
    assert found == {"attention"}
