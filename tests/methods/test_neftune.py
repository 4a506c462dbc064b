"""NEFTune: the noise in the word embeddings."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import words, zoo

from attendrop import NEFTune, regularize

LENGTHS = (30, 5, 12)


def test_the_noise_is_uniform_with_a_bound_that_falls_with_the_length() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    loss, (noise,) = words.stepped(model, NEFTune(alpha=6.0), batch)
    for row, length in zip(noise, LENGTHS, strict=True):
        bound = 6.0 / math.sqrt(length * 16)
        found = row[:length] / bound
        assert 0.9 < found.abs().max() <= 1
        assert found.square().mean().item() == pytest.approx(1 / 3, abs=0.08)  # that of uniform numbers in (-1, 1)
        assert not row[length:].any()
    torch.testing.assert_close(loss, words.added(model, batch, noise).loss)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_of_an_encoder_decoder_model_the_encoder_is_changed(name: str) -> None:
    """Also where the decoder shares the embedding: what it embeds stays as it is."""
    model, batch = zoo.build(name), zoo.batch_of(name)
    module = model.get_decoder().embed_tokens
    decoded = []
    with regularize(model, NEFTune(alpha=20.0)) as reg:
        reg.loss(batch)  # registers the hooks of the method, which run before this one
        hook = module.register_forward_hook(lambda _, args, output: decoded.append((args[0], output.detach())))
        reg.loss(batch)
        hook.remove()
    ids, embedded = decoded[-1]
    assert torch.equal(embedded, module(ids))
