"""Methods that compare several passes over a batch: R-Drop, HiddenCut and SCAL."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.plan import real_tokens
from attendrop.attribution.predictions import CLASSES, IGNORED, NUMBER, output_kind
from attendrop.attribution.recording import RecordPlan
from attendrop.extend import (
    LAYERS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    Batch,
    Block,
    BlockEdit,
    ComputeLoss,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    Preset,
    StepContext,
    choice,
    count,
    floor_fraction,
    forked_rng,
    loss_gradients,
    number_of_rows,
    option,
    positive,
    token_uniform,
    uncompiled,
    unit_interval,
    upcast,
    with_views,
)
from attendrop.methods.core.losses import divergence, mean, predictions

logger = logging.getLogger(__name__)


class _TwoPasses(MethodState):
    """Checks whether the passes differ."""

    largest: Tensor | float = 0.0

    def penalty(self, context: StepContext, outputs: Any) -> Tensor | None:
        penalty = super().penalty(context, outputs)
        assert penalty is not None
        self.largest = torch.maximum(torch.as_tensor(self.largest, device=penalty.device), penalty.detach())
        return penalty

    def after_step(self, steps_taken: int) -> dict[str, float]:
        # Checked once, since it synchronizes. A zero-initialised head gives equal predictions in the first step.
        if steps_taken == 2 and not self.largest > 0:
            logger.warning(
                "R-Drop: both passes give the same predictions, so it has no effect. The model has no dropout in "
                "training; set its probability above 0 in the model's configuration, such as hidden_dropout_prob=0.1 "
                "(of T5, dropout_rate; of GPT-2, resid_pdrop; of Llama, attention_dropout)."
            )
        return {}


@dataclass(frozen=True)
class RDrop(Method):
    """Consistency of two passes that differ in their dropout.

    Every row passes through the model twice, in one batch of twice the rows. The loss is the mean over both copies,
    plus ``alpha / 2`` times the symmetric Kullback-Leibler divergence ``(KL(P1 || P2) + KL(P2 || P1)) / 2`` between
    their predictions. In regression, it is replaced by the squared difference of the predictions; in multi-label
    classification, by the sum over the labels' Bernoulli distributions.

    ``reduction="sum"`` sums the divergence over the B rows of the global batch: all micro-batches of an optimizer step,
    of all processes; ``"mean"`` averages it, so ``alpha`` of a sum must be tuned with the batch size, like a learning
    rate. Where a row has many predictions (tags, tokens), the sum is B times the mean over the labelled tokens. A
    squared difference of numbers is always averaged. In a custom loop, each call of ``reg.loss`` is a global batch.

    Correspondence of options and sources (CE1, CE2: mean cross-entropy of the copies; KL: the divergence of each row):

    ================  =====================================  ======================  ============================
    source            loss                                   options                 weight of mean KL, CE mean 1
    ================  =====================================  ======================  ============================
    the paper         ``CE1 + CE2 + alpha mean(KL)``         ``mean``, ``alpha``     ``alpha / 2``
    its BERT code     ``CE1 + CE2 + 0.5 sum(KL)``            ``sum``, ``alpha=0.5``  4 at B = 16, 8 at B = 32
    its RoBERTa code  ``(CE1 + CE2) / 2 + 0.7 sum(KL)``      ``sum``, ``alpha=1.4``  11.2 at B = 16, 22.4 at B = 32
    ================  =====================================  ======================  ============================

    Args:
        alpha: Weight of the divergence, above 0.
        reduction: ``"sum"``, as in the authors' code, or ``"mean"``, as in the paper.

    Raises:
        AttendropError: The model returns no logits.

    Source: Wu et al. (2021), https://arxiv.org/abs/2106.14448, Eq. 2 to 4, and the code of its GLUE runs, whose
    regression adds ``MSE(1, 2)`` to ``MSE1 + MSE2`` (BERT: ``alpha=1``) or ``0.8 MSE(1, 2)`` to half of that (RoBERTa:
    ``alpha=1.6``). Ours is half of the paper's loss, so that learning rates are comparable to plain fine-tuning. A
    warning is logged if both passes are equal, as for a model without dropout. The default was better than plain
    fine-tuning on held-out rows of Banking77 (5 rows per class, B = 16, six seeds) by 0.006, 95 % interval 0.001 to
    0.012; the 0.003 (-0.003 to 0.010) of ``"mean"`` is not significant, nor is the difference between both.
    """

    info = MethodInfo(
        "r-drop",
        "makes two passes with different dropout agree",
        "Wu et al. (2021), R-Drop: Regularized Dropout for Neural Networks",
        link="https://arxiv.org/abs/2106.14448",
        evidence=(
            (
                {},
                "with MiniLM, accuracy +0.006 [+0.001, +0.012] on 1,000 held-out rows of Banking77 with five rows per "
                "class, on which its form was chosen; +0.005 [+0.004, +0.006] on similar rows of Banking77 and HWU64, "
                "+0.006 [+0.004, +0.009] on random ones, +0.015 [+0.001, +0.028] on generated messages with new "
                "phrases; no significant difference on 256 rows of CoLA, MRPC and STS-B; -0.052 on entities (the "
                "project's docs/does-it-help.md).",
            ),
        ),
        compared=True,
        acts_on=("inputs", "loss"),
        forward="2 (in one batch)",
        backward="2 (in one batch)",
        tasks="all; regression: squared difference",
        order=-1,  # rows are repeated before tokens of each copy are dropped
        uses_attention=False,
    )
    state_class = _TwoPasses

    alpha: float = option(1.0, positive(), search=(0.1, 0.3, 3.0))
    reduction: str = option("sum", choice("mean", "sum"))

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """Return the reduction of the paper, which does not give ``alpha`` for all tasks."""
        return Preset(options={"reduction": "mean"})

    def batch(self, context: StepContext) -> Batch:
        return repeat_rows(context.batch, 2)

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        kind, heads = predictions(context.model, outputs, context.batch, copies=2)
        values = [divergence(kind, *copies).flatten() for copies in heads]
        means = torch.stack([mean(each) for each in values])
        context.note("divergence", means.mean())
        if self.reduction == "mean" or kind == NUMBER:
            return self.alpha / 2 * means.mean()
        rows = number_of_rows(context.batch) // 2
        sums = [each.sum() if each.numel() == rows else rows * mean(each) for each in values]
        return self.alpha / 2 * torch.stack([each * context.micro_batches for each in sums]).mean()


def repeat_rows(batch: Batch, copies: int) -> dict[str, Any]:
    """Repeat each row of a batch, with adjacent copies: in tensors, lists, and the outputs of an encoder.

    The number of items by which the model divides its loss, if the batch has one, is that of all copies. Raises
    AttendropError for images that are packed into one tensor.
    """
    from transformers.utils.generic import ModelOutput

    rows = number_of_rows(batch)
    for name, value in batch.items():
        if name.startswith("pixel_values") and isinstance(value, Tensor) and len(value) != rows:
            raise AttendropError(
                f"'{name}' has the images of all rows in one, so that no row can be repeated, as by R-Drop."
            )

    def repeated(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == rows:
            return value.repeat_interleave(copies, 0)
        if isinstance(value, list | tuple) and len(value) == rows:
            return [each for each in value for _ in range(copies)]
        if isinstance(value, ModelOutput):
            return type(value)(**{name: repeated(each) for name, each in value.items()})
        return value

    found = {name: repeated(value) for name, value in batch.items()}
    if (items := batch.get("num_items_in_batch")) is not None:
        found["num_items_in_batch"] = items * copies
    return found


@dataclass(frozen=True)
class HiddenCut(Method):
    """Cutting of contiguous spans of the hidden states in each layer.

    The batch runs once unchanged, and then ``views`` times with a span cut in each layer: in a sequence of ``n``
    tokens, ``max(1, floor(alpha n))`` consecutive tokens, fewer at the end of the sequence, are set to zero. The loss
    is that of the first pass, plus ``gamma`` times the mean loss of the cut views, plus ``eta`` times the mean
    Kullback-Leibler divergence of the predictions of all passes from their mean (for two passes, Jensen-Shannon).

    The start of a span is sampled uniformly: with ``select_by="attention"`` from the ``max(1, floor(candidates n))``
    tokens that receive most attention in that layer in the first pass, over all heads and tokens; with ``"random"``
    from all starts that leave room for the span. Spans are sampled separately for each layer, sequence and view.

    Args:
        alpha: Length of a span as a fraction of the sequence, in (0, 1].
        select_by: Selection of the start of a span: ``"attention"`` or ``"random"``, see above.
        candidates: Fraction of the tokens that are candidate starts, by attention; in (0, 1].
        gamma: Weight of the loss of the cut views, 0 or more.
        eta: Weight of the divergence, 0 or more; ``gamma`` or ``eta`` must be above 0.
        views: Number of cut views of a batch, 1 or more.
        where: ``"feed_forward"``: cut the activations within a block's feed-forward, so that it adds only its last
            bias, and the residual connection keeps the rest. ``"block"``: cut the output hidden states of the block.

    Raises:
        AttendropError: In training, no block is selected, or there are no logits.

    Source: Chen et al. (2021), https://aclanthology.org/2021.acl-long.338, section 3, with the values of the authors'
    code, which sets the output of the feed-forward to zero, as ``"feed_forward"`` does except for the last bias.
    ``"block"`` is stronger: it removes all information about these tokens, possibly including the first, which a
    classifier reads. Further deviations from the code: it ranks tokens by the attention of the cut pass, before
    dropout, with padding; here by that of the first pass, after dropout, without padding. It skips the dropout after
    the feed-forward where it cuts; here the model's own dropout acts in all passes, with separate samples. Its
    divergence is ``KL(mean || P)``; here it is ``KL(P || mean)``, as in the paper. In regression, the squared
    distance from the mean replaces the divergence; with several labels, it is that of each label's Bernoulli
    distribution; at token level, the mean is over labelled tokens. In an encoder-decoder model only the encoder is cut.
    """

    info = MethodInfo(
        "hiddencut",
        "cuts spans out of hidden states, and makes the predictions agree",
        "Chen et al. (2021), HiddenCut: Simple Data Augmentation for Natural Language Understanding",
        link="https://aclanthology.org/2021.acl-long.338",
        acts_on=("hidden states", "loss"),
        forward="1 + views",
        backward="1 + views",
        tasks="all; encoder-decoder: the encoder",
        units="tokens",
    )

    alpha: float = option(0.1, unit_interval(one=True), search=(0.05, 0.2, 0.4))
    select_by: str = option("attention", choice("attention", "random"))
    candidates: float = option(0.4, unit_interval(one=True))
    gamma: float = option(1.0, positive(zero=True))
    eta: float = option(1.0, positive(zero=True))
    views: int = option(1, count())
    where: str = option("feed_forward", choice("block", "feed_forward"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma == self.eta == 0:
            raise AttendropError("gamma=0 and eta=0 are plain fine-tuning; set one of them above 0.")

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        attention_layers = context.adapter.attention_layers
        kind = "encoder" if any(layer.kind == "encoder" for layer in attention_layers) else "decoder"
        chosen = [layer for layer in self.selected_layers(attention_layers) if layer.kind == kind]
        keys = {block.key for block in context.adapter.blocks} & {layer.key for layer in chosen}
        if not keys:
            raise AttendropError(f"layers={self.layers!r} selects no block of the {kind}; choose layers of the {kind}.")
        received: dict[str, Tensor] = {}

        def record(call: AttentionCall, weights: Tensor) -> None:
            given, rows = upcast(weights.detach()), call.valid_queries()
            received.setdefault(call.layer.key, (given if rows is None else given * rows).sum((1, 2)))

        observed = None
        if self.select_by == "attention":
            observed = RecordPlan([layer for layer in chosen if layer.key in keys], record)
        clean = compute_loss(context.batch, observed)
        cuts = [Cut(context, self, None if observed is None else received, view, keys) for view in range(self.views)]
        return with_views(context, compute_loss, clean, cuts, self.gamma, self.eta)


@dataclass(eq=False)
class Cut(Plan):
    """Plan that cuts one span in each of the blocks with these keys, in a ``view`` given by its number.

    ``received`` is the attention that each token receives in these blocks, if it determines the start of a span.
    """

    context: StepContext
    method: HiddenCut
    received: dict[str, Tensor] | None
    view: int
    layer_keys: Collection[str] = ()
    spans: dict[str, Tensor] = field(default_factory=dict)
    valid: dict[str, Tensor] = field(default_factory=dict)  # the positions that hold tokens

    def edit(self, call: AttentionCall) -> None:
        """Record which positions hold tokens."""
        shape = (call.shape[0], call.shape[3])
        valid = torch.ones(1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid.any(1).any(1)
        self.valid[call.layer.key] = valid.expand(shape)

    def block(self, block: Block) -> BlockEdit | None:
        skipped = self.received is not None and block.key not in self.received  # by the model, in the first pass
        if not block.attention_layers or block.key not in self.layer_keys or skipped:
            return None

        def cut(states: Tensor) -> Tensor:
            key, valid = block.key, self.valid[block.key]
            if key not in self.spans:  # of each sequence, ``(batch, n)``; padding is not counted in positions
                total, number = valid.sum(-1, keepdim=True), valid.cumsum(-1) - 1
                length = floor_fraction(total, self.method.alpha).clamp(min=1)
                sampled = token_uniform(self.context.key, f"{self.view}/{key}", torch.ones_like(valid[:, :1]))
                if self.received is None:
                    start = (sampled * (total - length + 1)).long()
                else:
                    order = self.received[key].masked_fill(~valid, -1).argsort(stable=True, descending=True)
                    among = floor_fraction(total, self.method.candidates).clamp(min=1)
                    start = number.gather(-1, order.gather(-1, (sampled * among).long()))
                found = self.spans[key] = valid & (number >= start) & (number < start + length)
                self.context.report(key, found.sum(), valid.sum())
            return states.masked_fill(self.spans[key][..., None], 0)

        return BlockEdit(output=cut) if self.method.where == "block" else BlockEdit(activations=cut)


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
        keys: set[str] = set()
        if self.where == "attention":
            keys = {layer.key for layer in self.selected_layers(context.adapter.attention_layers)}
        clean = _Perturbed({}, keys)
        with uncompiled():
            loss, outputs = compute_loss(context.batch, clean)
        if clean.read is None:
            raise AttendropError(f"{type(context.model).__name__} has no final projection; choose another method.")
        if self.where == "embeddings" and not clean.units:
            raise AttendropError(f"{type(context.model).__name__} embeds no words; set where='attention'.")
        copy = _Perturbed(clean.perturbations(upcast(loss), self.epsilon, context.model), keys)
        with forked_rng(context.model):
            adversarial, _ = compute_loss(context.batch, copy)
        loss = loss + self.adversarial * adversarial
        if self.contrast:
            assert copy.read is not None
            contrast = contrastive_loss(context, outputs, (clean.read, copy.read), self.temperature)
            context.note("contrast", contrast)
            loss = loss + self.contrast * contrast
        return loss, outputs


@dataclass(eq=False)
class _Perturbed(Plan):
    """Plan that adds ``given`` perturbations to the word embeddings, ``"words"``, or to the weights of some layers.

    It records these units, by name or key, and the head's input. ``layer_keys`` are empty for words.
    """

    given: Mapping[str, Tensor]
    layer_keys: Collection[str] = ()
    units: dict[str, Tensor] = field(default_factory=dict)
    valid: dict[str, Tensor | None] = field(default_factory=dict)
    read: Tensor | None = None

    def __post_init__(self) -> None:
        self.acts_on = frozenset(("features", "attention" if self.layer_keys else "embeddings"))

    def features(self, features: Tensor) -> Tensor:
        self.read = features if self.read is None else self.read
        return features

    def embed(self, embedded: Tensor) -> Tensor:
        return embedded if self.layer_keys or "words" in self.units else self._unit("words", embedded)

    def edit(self, call: AttentionCall) -> AttentionEdit:
        self.valid[call.layer.key] = call.valid
        return AttentionEdit(weights=partial(self._unit, call.layer.key))

    def _unit(self, key: str, unit: Tensor) -> Tensor:
        """Return the unit as a node of the graph, or perturbed."""
        if key not in self.given and not unit.requires_grad:
            unit = unit.detach().requires_grad_()
        self.units.setdefault(key, unit)
        return unit + self.given[key] if key in self.given else unit

    def perturbations(self, loss: Tensor, epsilon: float, model: nn.Module) -> dict[str, Tensor]:
        """Compute ``epsilon g / ||g||`` of each sequence, at valid keys only; zero without gradient."""
        found: dict[str, Tensor] = {}
        for key, wanted in loss_gradients(loss, self.units, model).items() if self.units else ():  # none: all skipped
            valid = self.valid.get(key)
            wanted = wanted if valid is None else wanted * valid
            norm = wanted.flatten(1).norm(dim=1).view(-1, *[1] * (wanted.ndim - 1))
            tiny = torch.finfo(norm.dtype).tiny
            found[key] = (epsilon * wanted / norm.clamp(min=tiny)).to(self.units[key].dtype)
        return found


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


def contrastive_loss(context: StepContext, outputs: Any, reads: tuple[Tensor, Tensor], temperature: float) -> Tensor:
    """Compute the supervised contrastive loss of what the head ``reads`` of each sequence and of its copy.

    Where sequences have no :func:`classes`, each sequence and its copy form one.
    """
    clean, copies = (represent(context.model, read, context.batch) for read in reads)
    labels, mask = classes(context.model, outputs, context.batch), context.batch.get("attention_mask")
    if mask is not None and mask.ndim == 3:  # questions may have more choices than others
        clean, copies = (found[mask.flatten(0, 1).any(-1)] for found in (clean, copies))
    labels = (torch.arange(len(clean), device=clean.device) if labels is None else labels).repeat(2)
    units = functional.normalize(torch.cat([clean, copies]), dim=-1)
    itself = torch.eye(len(units), dtype=torch.bool, device=units.device)
    similar = (units @ units.T / temperature).masked_fill(itself, -torch.inf)
    logs = functional.log_softmax(similar, -1).masked_fill(itself, 0)
    positive = (labels[:, None] == labels) & ~itself
    return -((logs * positive).sum(-1) / positive.sum(-1)).mean()
