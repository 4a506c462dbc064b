"""Adversarial training: perturbations that raise the loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.plan import real_tokens
from attendrop.attribution.predictions import CLASSES, IGNORED, output_kind
from attendrop.extend import (
    LAYERS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    Batch,
    ComputeLoss,
    Method,
    MethodInfo,
    Plan,
    StepContext,
    choice,
    forked_rng,
    loss_gradients,
    option,
    positive,
    upcast,
)


@dataclass(frozen=True)
class SCAL(Method):
    """Adversarial training with a supervised contrastive loss.

    The batch runs unchanged. The gradient ``g`` of its loss with respect to the word embeddings, or to the attention
    weights of each layer, determines the perturbation ``r = epsilon g / ||g||`` of each sequence. The batch runs again
    with it. The loss is that of the first pass, plus ``adversarial`` times that of the second, plus ``contrast`` times

        mean over i of  mean over p in P(i) of -log( exp(z_i z_p / t) / sum over a != i of exp(z_i z_a / t) ),

    where ``z`` are the representations of all sequences in both passes, of unit length, and ``P(i)`` is the other copy
    of sequence ``i`` and, in classification, both copies of all sequences with its label (neither -100 nor
    probabilities are one). The representation is the input of the model's last projection, averaged over tokens if
    there is one per token. The contrast depends on the split into micro-batches, and is constant if a micro-batch has
    one sequence.

    Args:
        epsilon: L2 norm of the perturbation of a sequence (of its attention in one layer), above 0.
        where: ``"embeddings"`` or ``"attention"``.
        adversarial: Weight of the loss of the adversarial copies, 0 or more.
        contrast: Weight of the contrastive loss, 0 or more; ``adversarial`` or ``contrast`` must be above 0.
        temperature: Temperature ``t``, above 0.
        layers: Attention layers to perturb, see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: In training, the model has no word embeddings (for images, use ``where="attention"``) or no
            final projection.

    Source: Miao et al. (2021), https://arxiv.org/abs/2111.13301; the perturbation is that of Miyato et al. (2017), the
    contrast that of Khosla et al. (2020), Eq. 2. All defaults are ours. In regression, multi-label classification,
    multiple choice and at token level ``P(i)`` is the other copy only (each choice is a sequence). In encoder-decoder
    models the encoder's word embeddings are perturbed. Perturbed attention is not renormalised, and padding still gets
    none. The second pass samples its own dropout.
    """

    info = MethodInfo(
        "scal",
        "trains on adversarial copies, and contrasts representations",
        "Miao et al. (2021), Simple Contrastive Representation Adversarial Learning for NLP Tasks",
        link="https://arxiv.org/abs/2111.13301",
        acts_on=("embeddings", "loss"),
        forward="2",
        backward="3, one without parameters",
        tasks="text; images with where=attention",
    )

    epsilon: float = option(1.0, positive(), search=(0.3, 3.0))
    where: str = option("embeddings", choice("embeddings", "attention"))
    adversarial: float = option(1.0, positive(zero=True))
    contrast: float = option(0.1, positive(zero=True), search=(0.0, 0.5))
    temperature: float = option(0.1, positive())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adversarial == self.contrast == 0:
            raise AttendropError("adversarial=0 and contrast=0 are plain fine-tuning; set one of them above 0.")

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        plan_class: type[_Perturbed] = _PerturbedWords
        keys: set[str] = set()
        if self.where == "attention":
            plan_class = _PerturbedAttention
            keys = {layer.key for layer in self.selected_layers(context.adapter.attention_layers)}
        clean = plan_class(keys, {})
        loss, outputs = compute_loss(context.batch, clean)
        if clean.read is None:
            raise AttendropError(f"{type(context.model).__name__} has no final projection; choose another method.")
        if self.where == "embeddings" and not clean.units:
            raise AttendropError(f"{type(context.model).__name__} embeds no words; set where='attention'.")
        copy = plan_class(keys, clean.perturbations(upcast(loss), self.epsilon, context.model))
        with forked_rng(context.model):
            adversarial, _ = compute_loss(context.batch, copy)
        loss = loss + self.adversarial * adversarial
        if self.contrast:
            assert copy.read is not None
            first, second = (represent(context.model, read, context.batch) for read in (clean.read, copy.read))
            labels = classes(context.model, outputs, context.batch)
            mask = context.batch.get("attention_mask")
            if mask is not None and mask.ndim == 3:  # questions may have more choices than others
                first, second = (found[mask.flatten(0, 1).any(-1)] for found in (first, second))
            contrast = contrastive_loss(first, second, labels, self.temperature)
            context.note("contrast", contrast)
            loss = loss + self.contrast * contrast
        return loss, outputs


class _Perturbed(Plan):
    """Plan that adds given perturbations to units of the model, by name, and records the units and the head's input.

    ``keys`` are those of the attention layers whose weights are the units.
    """

    def __init__(self, keys: Collection[str], given: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.layer_keys = keys
        self.given = given
        self.units: dict[str, Tensor] = {}
        self.read: Tensor | None = None
        self._valid: dict[str, Tensor | None] = {}

    def features(self, features: Tensor) -> Tensor:
        self.read = features if self.read is None else self.read
        return features

    def perturbations(self, loss: Tensor, epsilon: float, model: nn.Module) -> dict[str, Tensor]:
        """Compute ``epsilon g / ||g||`` of each sequence, at valid keys only; zero without gradient."""
        perturbations: dict[str, Tensor] = {}
        for key, wanted in loss_gradients(loss, self.units, model).items() if self.units else ():  # none: all skipped
            valid = self._valid.get(key)
            wanted = wanted if valid is None else wanted * valid
            norm = wanted.flatten(1).norm(dim=1).view(-1, *[1] * (wanted.ndim - 1))
            tiny = torch.finfo(norm.dtype).tiny
            perturbations[key] = (epsilon * wanted / norm.clamp(min=tiny)).to(self.units[key].dtype)
        return perturbations

    def _unit(self, key: str, unit: Tensor) -> Tensor:
        """Return the unit as a node of the graph, or perturbed."""
        if key not in self.given and not unit.requires_grad:
            unit = unit.detach().requires_grad_()
        self.units.setdefault(key, unit)
        return unit + self.given[key] if key in self.given else unit


class _PerturbedWords(_Perturbed):
    """Plan that perturbs the word embeddings, named ``"words"``."""

    def embed(self, embedded: Tensor) -> Tensor:
        return embedded if "words" in self.units else self._unit("words", embedded)


class _PerturbedAttention(_Perturbed):
    """Plan that perturbs attention weights, named by the key of their layer."""

    def edit(self, call: AttentionCall) -> AttentionEdit:
        self._valid[call.layer.key] = call.valid
        return AttentionEdit(weights=partial(self._unit, call.layer.key))


def represent(model: nn.Module, read: Tensor, batch: Batch) -> Tensor:
    """Return one vector per sequence, ``(batch, width)``, a mean over tokens if there is one per token."""
    read = upcast(read)
    if read.ndim == 2:
        return read
    mask: Tensor | None = batch.get("attention_mask")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        mask = batch.get("decoder_attention_mask")
        mask = batch["labels"] != -100 if mask is None and "labels" in batch else mask
    if mask is None:
        return read.mean(1)
    weights = real_tokens(mask, read)[..., None].to(read.dtype)
    return (read * weights).sum(1) / weights.sum(1).clamp(min=1)


def classes(model: nn.Module, outputs: Any, batch: Batch) -> Tensor | None:
    """Return the class of each sequence, one of its own if it has no label; or None if sequences have no classes."""
    labels: Tensor | None = batch.get("labels")
    if labels is None or output_kind(model, outputs, batch) != CLASSES:
        return None
    ids = batch.get("input_ids")  # (batch, choices, n) in multiple choice, with the index of a choice as label
    if labels.is_floating_point() or (ids is not None and ids.ndim != 2):  # or probabilities of the classes
        return None
    labels = labels.flatten()
    return labels.where(labels != IGNORED, -1 - torch.arange(len(labels), device=labels.device))


def contrastive_loss(clean: Tensor, copies: Tensor, labels: Tensor | None, temperature: float) -> Tensor:
    """Compute the supervised contrastive loss of representations ``(batch, width)`` and those of their copies.

    Without ``labels``, a class for each sequence, each sequence and its copy form a class.
    """
    units = functional.normalize(torch.cat([clean, copies]), dim=-1)
    labels = torch.arange(len(clean), device=clean.device) if labels is None else labels
    labels = labels.repeat(2)
    itself = torch.eye(len(units), dtype=torch.bool, device=units.device)
    similar = (units @ units.T / temperature).masked_fill(itself, -torch.inf)
    logs = functional.log_softmax(similar, -1).masked_fill(itself, 0)
    positive = (labels[:, None] == labels) & ~itself
    return -((logs * positive).sum(-1) / positive.sum(-1)).mean()
