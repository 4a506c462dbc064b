"""How many tokens a model's embedding of positions allows."""

from __future__ import annotations

import pytest
from helpers import zoo

from attendrop.model_support.models import position_limit


@pytest.mark.parametrize(
    ("name", "limit"), [("bert", 40), ("roberta", 39), ("bart", 40), ("vit", None), ("llama", None)]
)
def test_rows_that_no_token_takes_do_not_count(name: str, limit: int | None) -> None:
    assert position_limit(zoo.build(name)) == limit
