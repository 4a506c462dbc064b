"""Check of one family of transformers: the library acts on it and changes nothing else, or refuses it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attendrop import ADDrop, AttendropError, Method, Vanilla, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import AttentionCall, AttentionEdit, Plan
from helpers.families import INPUTS, Batch, any_model, takes, text_alone
from helpers.plans import passed

METHODS: tuple[Method, ...] = (ADDrop(p=0.5, q=0.5, layers="all"), Vanilla(p=0.5))


def row(family: str) -> dict[str, Any]:
    """Make the row of a family in the table; raises AssertionError if the library gives wrong results without an error.

    It has ``unbuilt``, why no tiny model of it could be made and trained here, or ``model`` (its class), ``inputs``,
    ``attention`` (how many layers of each kind were found), ``refused`` (None, or what the library says) and, where
    that is not all, ``works``: with what it works nevertheless.
    """
    try:
        model, batch = any_model(family)
    except Exception as error:  # transformers raises what it likes
        return {"family": family, "unbuilt": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    inputs = list(dict.fromkeys(word for name, word in INPUTS.items() if name in batch))
    found = {"family": family, "model": type(model).__name__, "inputs": inputs} | verdict(model, batch, METHODS)
    if found["refused"] is not None and inputs == ["text", "images"]:
        text = text_alone(batch)
        if takes(model, text) and verdict(model, text, METHODS)["refused"] is None:
            found["works"] = "text alone"
    elif found["refused"] is not None and verdict(model, batch, METHODS[1:])["refused"] is None:
        found["works"] = "methods that look at no predictions"
    return found


def verdict(model: Any, batch: Batch, methods: Sequence[Method]) -> dict[str, Any]:
    """Count the attention layers of each kind that the library finds, or return the message that refuses the model."""
    try:
        attention_layers = ModelAdapter(copy.deepcopy(model)).trace(batch)
        for method in methods:
            assert_acts(model, batch, method)
        assert_padding_is_hidden(model, batch)
    except AttendropError as error:
        return {"attention": {}, "refused": str(error)}
    return {"attention": dict(Counter(layer.kind for layer in attention_layers)), "refused": None}


def assert_acts(model: Any, batch: Batch, method: Method) -> None:
    """Check that a step differs from plain fine-tuning at each attention layer, and a later evaluation does not."""
    plain, stock = _step(model, batch, None)
    found, regularised = _step(model, batch, method)
    assert all(value.isfinite().all() for value in found.values()), "gradients are not finite"
    assert any(not torch.equal(value, plain[name]) for name, value in found.items()), "nothing differs from fine-tuning"
    stock.load_state_dict(regularised.state_dict())  # running statistics are those of the step
    with torch.no_grad():
        outputs = [each.eval()(**batch).values() for each in (regularised, stock)]
    ours, theirs = ([value for value in values if isinstance(value, Tensor)] for values in outputs)
    assert ours and all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)), "evaluation differs"


def assert_padding_is_hidden(model: Any, batch: Batch) -> None:
    """Check that padding has weight 0 as a key, whatever else is dropped."""
    mask = batch.get("attention_mask")
    if mask is None or not (mask == 0).any():
        return
    watch = _Watch()
    with torch.no_grad():
        passed(copy.deepcopy(model).eval(), batch, watch)
    for call, weights in watch.seen:
        # A decoder that makes its inputs of the labels has a mask of its own.
        if weights.shape[-1] == mask.shape[1] and not (
            call.layer.kind == "decoder" and model.config.is_encoder_decoder
        ):
            assert call.valid is not None, f"padding is attended to at {call.layer.key}"
            rows = call.valid.any(-1, keepdim=True)  # a padding token may see padding alone
            hidden = ((mask == 0)[:, None, None, :] & rows).expand(weights.shape)
            assert (weights[hidden] == 0).all(), f"padding is attended to at {call.layer.key}"


class _Watch(Plan):
    """Plan that drops half of the positions of every layer, and keeps the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[AttentionCall, Tensor]] = []

    def edit(self, call: AttentionCall) -> AttentionEdit:
        def keep(weights: Tensor) -> Tensor:
            self.seen.append((call, weights))
            return weights

        return AttentionEdit(drop=torch.rand(call.shape) < 0.5, weights=keep)


def _step(model: Any, batch: Batch, method: Method | None) -> tuple[dict[str, Tensor], Any]:
    """Return loss and gradients of one step of a copy of the model, and the copy."""
    model = copy.deepcopy(model)
    torch.manual_seed(5)
    if method is None:
        loss = model(**batch).loss
        loss.backward()
    else:
        with regularize(model, method) as reg:
            loss = reg.loss(batch)
            loss.backward()
            dropped = reg.logs()
        if isinstance(method, Vanilla):
            shares = {name: share for name, share in dropped.items() if "/dropped/" in name}
            assert shares and all(shares.values()), f"nothing is dropped: {shares}"
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradients | {"loss": loss.detach()}, model
