"""A reference-style AD-DROP step, to compare with.

Written for this benchmark, from the paper and from what is known of how the authors' code works; it is not their code.
Its traits, which set its cost: eager attention in every pass, the first pass with parameters in its graph, one backward
pass for each layer, and a number added to the scores where a position is dropped.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "reference_style"
_HIDDEN = -10_000.0


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    record: list[Tensor] | None = None,
    masks: Iterator[Tensor | None] | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    drop = next(masks) if masks is not None else None
    if drop is not None:
        scores = scores + drop
    weights = functional.dropout(scores.softmax(-1), dropout, module.training)
    if record is not None:
        record.append(weights)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, eager_mask)


def reference_loss(model: nn.Module, batch: dict[str, Tensor], layers: str, p: float = 0.3, q: float = 0.3) -> Tensor:
    """Compute the training loss of one AD-DROP step with gradient attribution.

    Args:
        model: A classifier whose attention implementation is :data:`NAME`.
        batch: Its inputs, with labels.
        layers: ``"all"`` or ``"first"``.
        p: Share of a row that is to be candidates.
        q: Probability with which a candidate is dropped.

    """
    record: list[Tensor] = []
    predicted = model(**batch, record=record).logits.max(-1).values.sum()
    masks: list[Tensor | None] = [None] * len(record)
    for layer in range(1 if layers == "first" else len(record)):
        (gradient,) = torch.autograd.grad(predicted, record[layer], retain_graph=True)
        masks[layer] = _drop_mask(gradient, p, q)
    del predicted, record
    return model(**batch, masks=iter(masks)).loss


def _drop_mask(attribution: Tensor, p: float, q: float) -> Tensor:
    ordered = attribution.sort(-1).values
    threshold = ordered[..., int(attribution.shape[-1] * (1 - p)), None]
    drop = (attribution >= threshold) & (torch.rand_like(attribution) < q)
    return drop * _HIDDEN
