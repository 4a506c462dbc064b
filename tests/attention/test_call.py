"""Where the tokens of a call are: the first of each sequence, and queries that are not padding."""

import pytest
import torch
from torch import Tensor

from attendrop.attention.edits import AttentionCall
from attendrop.attention.layers import AttentionLayer

CPU = torch.device("cpu")


def call_of(valid: Tensor | None, kind: str = "encoder", size: int = 5, keys: int | None = None) -> AttentionCall:
    return AttentionCall(AttentionLayer("layer", kind, 0), (2, 1, size, keys or size), valid, CPU)


LENGTHS = torch.tensor([5, 3])[:, None, None, None]
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
RIGHT = torch.arange(5) < LENGTHS
LEFT = torch.arange(5) >= 5 - LENGTHS


@pytest.mark.parametrize(
    ("valid", "kind", "expected"),
    [
        (None, "encoder", [[0, 0], [0, 0]]),
        (RIGHT, "encoder", [[0, 0], [0, 0]]),
        (RIGHT & CAUSAL, "decoder", [[0, 0], [0, 0]]),
        (LEFT, "encoder", [[0, 0], [2, 2]]),
        (LEFT & CAUSAL, "decoder", [[0, 0], [2, 2]]),
        (LEFT, "cross", [[0, 0], [0, 2]]),
    ],
)
def test_origins(valid: Tensor | None, kind: str, expected: list[list[int]]) -> None:
    assert call_of(valid, kind).origins().tolist() == expected


@pytest.mark.parametrize(("queries", "first"), [(4, 1), (3, 0), (1, 0)])
def test_queries_that_follow_a_cache_begin_after_it(queries: int, first: int) -> None:
    valid = (LEFT & CAUSAL)[..., -queries:, :]
    assert call_of(valid, "decoder", queries, 5).origins().tolist() == [[0, 0], [first, 2]]


def test_valid_queries_are_those_that_someone_may_attend_to() -> None:
    assert call_of(None).valid_queries() is None
    assert call_of(RIGHT, "cross").valid_queries() is None
    for valid in (RIGHT, RIGHT & CAUSAL):
        found = call_of(valid).valid_queries()
        assert found.squeeze().tolist() == [[True] * 5, [True] * 3 + [False] * 2]
