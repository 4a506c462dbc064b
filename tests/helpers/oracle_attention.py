"""Plain forward functions of attention modules that compute softmax themselves, for the oracles.

Each computes queries, keys, values and position biases through the module's own projections, one pair of positions at a
time where that is more obvious, and leaves the rest to ``attend(module, query, key, value, mask, ...)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
