"""Vanilla dropout: which scores and weights are dropped."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention
from helpers.weighted import weighted

from attendrop import Vanilla, regularize
from attendrop.randomness.keyed_random import SampleKey, sample_mask

CPU = torch.device("cpu")


@pytest.mark.parametrize("where", ["scores", "weights"])
def test_the_attention_is_that_of_the_formula(where: str) -> None:
    """Dropout of weights takes the place of the model's own."""
    own = {"attention_probs_dropout_prob": 0.5 if where == "weights" else 0.0}
    model, batch = zoo.build("bert", "eager", dtype=torch.float64, **own), zoo.batch_of("bert", (6, 4))
    with regularize(model, Vanilla(p=0.4, where=where), seed=5) as reg:
        loss = reg.loss(batch)
    model.eval()
    origins, keys = torch.zeros(2, 2, dtype=torch.long), ("encoder.0", "encoder.1")
    drops = {key: sample_mask(0.4, SampleKey(5, 0, 0, 2), key, (2, 2, 6, 6), origins, CPU) for key in keys}
    if where == "weights":
        expected = weighted(model, batch, {key: ~drop / 0.6 for key, drop in drops.items()}).loss
    else:
        with EagerAttention([*drops.values()]).in_place_of_stock(model):
            expected = model(**batch).loss
    torch.testing.assert_close(loss, expected)
