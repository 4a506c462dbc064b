"""Vanilla dropout, of scores and of weights."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from torch import Tensor

from attendrop import Vanilla, regularize
from attendrop.randomness.keyed_random import SampleKey, sample_mask


@pytest.mark.parametrize("where", ["scores", "weights"])
def test_the_attention_is_that_of_the_formula(where: str) -> None:
    """One layer by hand, element by element, with the mask that the draws give."""
    model = zoo.build("bert", dtype=torch.float64, num_hidden_layers=1, dropout=0.2)
    batch = zoo.batch_of("bert", (6, 4))
    seen: dict[str, Tensor] = {}
    attention = model.bert.encoder.layer[0].attention
    attention.self.query.register_forward_hook(lambda _, __, out: seen.update(query=out))
    attention.self.key.register_forward_hook(lambda _, __, out: seen.update(key=out))
    attention.self.value.register_forward_hook(lambda _, __, out: seen.update(value=out))
    attention.output.dense.register_forward_pre_hook(lambda _, args: seen.update(output=args[0]))
    with regularize(model, Vanilla(p=0.4, where=where), seed=5) as reg:
        if where == "scores":  # beside the model's own dropout, which is not to be followed here
            model.config.attention_probs_dropout_prob = 0.0
            attention.self.dropout.p = 0.0
        reg.loss(batch)
    drop = sample_mask(
        0.4, SampleKey(5, 0, 0, 2), "encoder.0", (2, 2, 6, 6), torch.zeros(2, 2, dtype=torch.long), torch.device("cpu")
    )
    lengths = batch["attention_mask"].sum(1).tolist()
    query, key, value = (seen[name].view(2, 6, 2, 8) for name in ("query", "key", "value"))
    for b in range(2):
        for h in range(2):
            for i in range(lengths[b]):
                keys = range(lengths[b])
                scores = [float(query[b, i, h] @ key[b, j, h]) / 8**0.5 for j in keys]
                dropped = [bool(drop[b, h, i, j]) for j in keys]
                if where == "scores":
                    exp = [
                        0.0 if gone else torch.tensor(s).exp().item() for s, gone in zip(scores, dropped, strict=True)
                    ]
                    weights = [e / sum(exp) for e in exp] if sum(exp) else [1 / len(exp)] * len(exp)
                else:
                    exact = torch.tensor(scores, dtype=torch.float64).softmax(0)
                    weights = [0.0 if gone else float(w) / 0.6 for w, gone in zip(exact, dropped, strict=True)]
                expected = sum(w * value[b, j, h] for w, j in zip(weights, keys, strict=True))
                found = seen["output"].view(2, 6, 2, 8)[b, i, h]
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
