"""Oracles: slow and obvious implementations, without the library's code."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy
import torch
from torch import Tensor


def candidates(attribution: Tensor, valid: Tensor, p: float, direction: str = "high") -> Tensor:
    """Compute the candidate region (Eq. 6), element by element."""
    region = torch.zeros_like(attribution, dtype=torch.bool)
    valid = valid.expand(attribution.shape)
    for place in product(*map(range, attribution.shape[:3])):
        columns = [j for j, known in enumerate(valid[place]) if known]
        row = attribution[place].detach()[columns].tolist()
        for j, chosen in zip(columns, candidates_of_row(row, p, direction), strict=True):
            region[(*place, j)] = chosen
    return region


def candidates_of_row(row: list[float], p: float, direction: str) -> list[bool]:
    """Find the candidates among the valid positions of one row."""
    if direction == "magnitude":
        row = [abs(value) for value in row]
    n, ordered = len(row), sorted(row)
    if n < 2 or ordered[0] == ordered[-1]:
        return [False] * n
    if direction == "low":
        return [value < ordered[math.floor(n * p + 1e-6)] for value in row]
    threshold = ordered[max(1, math.floor(n * (1 - p) + 1e-6))]
    chosen = [value >= threshold for value in row]
    return [value > threshold for value in row] if all(chosen) else chosen


def dropped_attention(scores: Tensor, valid: Tensor, drop: Tensor) -> Tensor:
    """Compute the weights after dropping scores; in a row that is dropped completely, they are ``1/n_valid``."""
    weights = torch.zeros_like(scores)
    for place in product(*map(range, scores.shape[:3])):
        row = scores[place].tolist()
        columns = [j for j, known in enumerate(valid[place]) if known]
        kept = [j for j in columns if not drop[place][j]]
        top = max((row[j] for j in kept), default=0)
        total = sum(math.exp(row[j] - top) for j in kept)
        for j in kept or columns:
            weights[(*place, j)] = math.exp(row[j] - top) / total if kept else 1 / len(columns)
    return weights


class EagerAttention:
    """Replacement of the function ``eager_attention_forward`` of a model's file, or of modules without it.

    It records the weights of every call, and drops given positions, or uses given weights.
    """

    def __init__(self, drops: list[Tensor] | None = None, given: list[Tensor] | None = None) -> None:
        self.drops = drops
        self.given = given
        self.weights: list[Tensor] = []
        self.valid: list[Tensor] = []

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scaling = kwargs.get("scaling")
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if kwargs.get("position_bias") is not None:
            scores = scores + kwargs["position_bias"]
        valid = torch.ones_like(scores, dtype=torch.bool) if mask is None else (mask == 0).expand(scores.shape)
        drop = torch.zeros_like(valid) if self.drops is None else self.drops[len(self.weights)]
        whole = ~(valid & ~drop).any(-1, keepdim=True)
        kept = (valid & ~drop) | whole
        weights = torch.softmax(scores.masked_fill(~kept, -math.inf), dim=-1)
        weights = torch.where(whole, valid / valid.sum(-1, keepdim=True).clamp(min=1), weights).to(value.dtype)
        weights = weights if self.given is None else self.given[len(self.weights)]
        self.weights.append(weights)
        self.valid.append(valid)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    @contextmanager
    def in_place_of_stock(self, model: Any) -> Iterator[EagerAttention]:
        """Replace the function in the model's file, or the forward functions of modules, within the block."""
        file = sys.modules[type(model.base_model).__module__]
        modules = {module: plain for module in model.modules() if (plain := forward_of(module)) is not None}
        with ExitStack() as stack:
            if not modules:
                stack.enter_context(patch.object(file, "eager_attention_forward", self))
            for module, plain in modules.items():
                stack.enter_context(patch.object(module, "forward", partial(plain, self, module)))
            yield self


@contextmanager
def gated(projection: Any, gates: Any, visit: int = 0) -> Iterator[None]:
    """Multiply the outputs of the heads, the input of ``projection``, by ``gates[row][head]``, in one of its calls."""
    calls = 0

    def multiply(module: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal calls
        calls += 1
        if calls - 1 != visit:
            return args
        rows = []
        for row, own in zip(args[0].reshape(len(gates), -1, args[0].shape[-1]), gates, strict=True):
            units = row.chunk(len(own), -1)
            rows.append(torch.cat([unit * float(gate) for unit, gate in zip(units, own, strict=True)], -1))
        return (torch.stack(rows).reshape(args[0].shape),)

    handle = projection.register_forward_pre_hook(multiply)
    try:
        yield
    finally:
        handle.remove()


def target(task: str, logits: Tensor, labels: Tensor, *, gold: bool = False) -> Tensor:
    """Compute the attributed value, summed over the batch."""
    if task in ("class", "image", "choice"):
        return sum(row[int(label if gold else row.argmax())] for row, label in zip(logits, labels, strict=True))
    if task == "regression":
        return -((logits.squeeze(-1) - labels) ** 2).sum()
    total = logits.new_zeros(())
    for b in range(labels.shape[0]):
        for i in range(labels.shape[1]):
            label = labels[b, i] if task != "lm" else labels[b, i + 1] if i + 1 < labels.shape[1] else -100
            if label != -100:
                probabilities = torch.softmax(logits[b, i], -1)
                total = total + probabilities[label if gold else logits[b, i].argmax()].log()
    return total


def integrated(model: Any, batch: dict[str, Tensor], task: str, weights: list[Tensor], chosen: Tensor) -> list[Tensor]:
    """Integrate the gradients of all layers together from no attention to ``weights``, at 8 Gauss-Legendre nodes."""
    total = [torch.zeros_like(each) for each in weights]
    for node, share in zip(*numpy.polynomial.legendre.leggauss(8), strict=True):
        leaves = [(each * (node + 1) / 2).requires_grad_() for each in weights]
        with EagerAttention(given=leaves).in_place_of_stock(model):
            score = target(task, model(**batch).logits, chosen, gold=True)
        for place, gradient in zip(total, torch.autograd.grad(score, leaves), strict=True):
            place += gradient * share / 2
    return [each * gradient for each, gradient in zip(weights, total, strict=True)]


def ad_drop(model: Any, batch: dict[str, Tensor], task: str, p: float, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """Compute one step of AD-DROP with q = 1 on an eager model: the loss, and the masks of its layers in their order.

    Options: ``direction``, ``gold``, and ``attribution`` (``"gradient"``, ``"attention"`` or ``"integrated_gradient"``,
    in classification, with 8 points).
    """
    direction, gold = options.get("direction", "high"), options.get("gold", False)
    attribution = options.get("attribution", "gradient")
    with EagerAttention().in_place_of_stock(model) as first:
        outputs = model(**batch)
        score = target(task, outputs.logits, batch["labels"], gold=gold)
        if attribution == "gradient":
            # One backward pass for each layer, as the paper's own code.
            how = {"retain_graph": True, "allow_unused": True}
            found = [torch.autograd.grad(score, weights, **how)[0] for weights in first.weights]
        else:
            found = first.weights
    if attribution == "integrated_gradient":
        found = integrated(model, batch, task, [weights.detach() for weights in found], outputs.logits.argmax(-1))
    found = [torch.zeros_like(w) if b is None else b.detach() for b, w in zip(found, first.weights, strict=True)]
    drops = [candidates(b, valid, p, direction) for b, valid in zip(found, first.valid, strict=True)]
    with EagerAttention(drops).in_place_of_stock(model):
        return model(**batch).loss, drops


# Attention modules that compute softmax themselves: each function makes queries, keys, values and position biases with
# the module's own projections, one pair of positions at a time where that is more obvious, and leaves the rest to
# ``attend(module, query, key, value, mask, ...)``.
Attend = Callable[..., tuple[Tensor, Tensor]]


def _heads(module: Any, states: Tensor) -> Tensor:
    """Reshape ``(batch, n, width)`` to ``(batch, heads, n, dim)``."""
    return states.view(*states.shape[:-1], module.num_attention_heads, -1).transpose(-2, -3)


def _bucket(distance: int, buckets: int, longest: int) -> int:
    """Exact to half of the buckets, then by the logarithm."""
    middle, far = buckets // 2, abs(distance)
    if far <= middle:
        return distance
    share = math.log(far / middle) / math.log((longest - 1) / middle)
    return int(math.copysign(middle + math.ceil(share * (middle - 1) - 1e-9), distance))


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask == 0, -math.inf)


def _scale(query: Tensor, position: dict[str, Tensor]) -> float:
    """The model files take the root in float32."""
    return 1 / torch.tensor(query.shape[-1] * (1.0 + len(position))).sqrt().item()


def _distance_bias(query: Tensor, key: Tensor, index: list[list[int]], position: dict[str, Tensor]) -> Tensor:
    """Sum the terms content-to-position and position-to-content, for each pair of positions."""
    bias = query.new_zeros(*query.shape[:2], query.shape[2], key.shape[2])
    for i, row in enumerate(index):
        for j, at in enumerate(row):
            if "c2p" in position:
                bias[..., i, j] += (query[:, :, i] * position["c2p"][:, at]).sum(-1)
            if "p2c" in position:
                bias[..., i, j] += (key[:, :, j] * position["p2c"][:, at]).sum(-1)
    return bias


def deberta_v2(
    attend: Attend, module: Any, states: Tensor, mask: Tensor, *_: Any, rel_embeddings: Tensor | None, **__: Any
) -> tuple[Tensor, Tensor]:
    query, key, value = (
        _heads(module, made(states)) for made in (module.query_proj, module.key_proj, module.value_proj)
    )
    if rel_embeddings is None:
        output, weights = attend(module, query, key, value, _additive(mask, states.dtype), scaling=_scale(query, {}))
        return output.flatten(2), weights
    shared, span = module.share_att_key, module.pos_ebd_size
    made_by = {
        "c2p": module.key_proj if shared else getattr(module, "pos_key_proj", None),
        "p2c": module.query_proj if shared else getattr(module, "pos_query_proj", None),
    }
    embedded = module.pos_dropout(rel_embeddings)[: 2 * span]
    position = {kind: _heads(module, made_by[kind](embedded)) for kind in module.pos_att_type}

    def index(distance: int) -> int:
        if module.position_buckets > 0:
            distance = _bucket(distance, module.position_buckets, module.max_relative_positions)
        return min(max(distance + span, 0), 2 * span - 1)

    places = range(states.shape[1])
    bias = _distance_bias(query, key, [[index(i - j) for j in places] for i in places], position)
    scale = _scale(query, position)
    output, weights = attend(
        module, query, key, value, _additive(mask, states.dtype), scaling=scale, position_bias=bias * scale
    )
    return output.flatten(2), weights


def deberta(
    attend: Attend, module: Any, states: Tensor, mask: Tensor, *_: Any, rel_embeddings: Tensor, **__: Any
) -> tuple[Tensor, Tensor]:
    query, key, value = _heads(module, module.in_proj(states)).chunk(3, -1)
    width = (module.num_attention_heads, 1, -1)
    query, value = query + module.q_bias.view(width), value + module.v_bias.view(width)
    length, longest = states.shape[1], module.max_relative_positions
    span = min(length, longest)
    embedded = module.pos_dropout(rel_embeddings)[longest - span : longest + span]
    made_by = {"c2p": getattr(module, "pos_proj", None), "p2c": getattr(module, "pos_q_proj", None)}
    position = {kind: _heads(module, made_by[kind](embedded)) for kind in module.pos_att_type}
    index = [[min(max(i - j + span, 0), 2 * span - 1) for j in range(length)] for i in range(length)]
    scale = _scale(query, position)
    bias = _distance_bias(query, key, index, position) * scale
    output, weights = attend(
        module, query, key, value, _additive(mask, states.dtype), scaling=scale, position_bias=bias
    )
    return output.flatten(2), weights


def mpnet(
    attend: Attend, module: Any, states: Tensor, mask: Tensor | None, position_bias: Tensor, **_: Any
) -> tuple[Tensor, ...]:
    query, key, value = (_heads(module, made(states)) for made in (module.q, module.k, module.v))
    output, weights = attend(module, query, key, value, mask, position_bias=position_bias)
    return module.o(output.flatten(2)), weights


# By the file of transformers and the class.
FORWARDS = {
    ("modeling_deberta", "DisentangledSelfAttention"): deberta,
    ("modeling_deberta_v2", "DisentangledSelfAttention"): deberta_v2,
    ("modeling_mpnet", "MPNetSelfAttention"): mpnet,
}


def forward_of(module: Any) -> Callable[..., Any] | None:
    """Return the plain forward function of a module; None of one that is not listed here."""
    kind = type(module)
    return FORWARDS.get((kind.__module__.rpartition(".")[2], kind.__name__))
