"""Dropout and perturbations of word embeddings, features, tokens and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    SKIPS_BLOCKS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Batch,
    Block,
    BlockEdit,
    ComputeLoss,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    RandomMaskPlan,
    Range,
    SampleKey,
    StepContext,
    TrainingContext,
    WordPlan,
    choice,
    count,
    floor_fraction,
    forked_rng,
    loss_gradients,
    mean_divergence,
    normal,
    option,
    positive,
    sample_layers,
    sample_mask,
    token_uniform,
    uniform,
    unit_interval,
    with_views,
)


@dataclass(frozen=True)
class R3F(Method):
    """Consistency with a pass whose word embeddings are noisy.

    The batch runs unchanged, and again with noise ``z`` in each element of the word embeddings. The loss is that of the
    first pass, plus ``weight`` times the mean of ``KL(P || Pz) + KL(Pz || P)``, the divergence of the predictions of
    both passes. In regression, it is replaced by their squared difference; in multi-label classification, by the sum
    over the labels' Bernoulli distributions; at token level, the mean is over labelled tokens.

    Args:
        weight: Weight of the divergence (the paper's lambda), above 0.
        scale: Scale of the noise (the paper's sigma), above 0: the bound of uniform noise, the standard deviation of
            normal noise.
        noise: ``"uniform"``, from ``(-scale, scale)``, or ``"normal"``.

    Raises:
        AttendropError: In training, the model embeds no words (images, sound) or returns no logits.

    Source: Aghajanyan et al. (2021), https://arxiv.org/abs/2008.03156, Eq. 6 and 7, with the defaults of the authors'
    code. As there, both passes sample their own dropout; its effect is far larger than that of noise of 1e-5, so with
    this default the method mainly enforces consistency of two dropout samples, as R-Drop does. Deviations: the gradient
    of the divergence also reaches the embeddings in the noisy pass; in regression their code has no such term. R4F is
    not included. In encoder-decoder models, the encoder's embeddings are noisy.
    """

    info = MethodInfo(
        "r3f",
        "makes predictions agree with those from noisy word embeddings",
        "Aghajanyan et al. (2021), Better Fine-Tuning by Reducing Representational Collapse",
        link="https://arxiv.org/abs/2008.03156",
        acts_on=("embeddings", "loss"),
        forward="2",
        backward="2",
        tasks="text; regression: squared difference",
    )

    weight: float = option(1.0, positive(), search=(0.1, 0.3, 3.0))
    scale: float = option(1e-5, positive(), search=(0.01, 0.1))
    noise: str = option("uniform", choice("uniform", "normal"))

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        def noisy_words(embedded: Tensor, valid: Tensor) -> Tensor:
            sampled = word_noise(self.noise, context.key, "words", valid, embedded.shape[-1])
            return embedded + (self.scale * sampled).to(embedded.dtype)

        loss, outputs = compute_loss(context.batch)
        with forked_rng(context.model):
            _, noisy = compute_loss(context.batch, WordPlan(context, noisy_words))
        divergence = mean_divergence(context.model, outputs, noisy, context.batch)
        context.note("divergence", divergence)
        return loss + self.weight * divergence, outputs


@dataclass(frozen=True)
class SMART(Method):
    """Smoothness-inducing adversarial regularisation.

    The batch runs unchanged, and again with a perturbation ``delta`` of the word embeddings. The loss is that of the
    first pass, plus ``weight`` times the mean of ``D = KL(P || Q) + KL(Q || P)``, where ``P`` and ``Q`` are the
    predictions of both passes. To maximise ``D``, ``delta`` starts from normal noise, and in each of ``steps``
    additional passes becomes ``delta + step_size g / max |g|``, limited to ``[-epsilon, epsilon]`` in each element,
    where ``g`` is the gradient of ``D`` in the sequence. Other kinds of predictions are compared as in
    :class:`attendrop_methods.R3F`. ``2 + steps`` forward and backward passes per step, ``steps`` of them without
    parameter gradients.

    Args:
        weight: Weight of the divergence (the paper's lambda), above 0.
        epsilon: Limit of each element of the perturbation, above 0.
        step_size: Step size of the ascent (the paper's eta), above 0; above ``epsilon`` one step takes most elements to
            the limit.
        noise: Standard deviation of the noise at the start (the paper's sigma), above 0.
        steps: Number of ascent steps, 1 or more.

    Raises:
        AttendropError: In training, the model embeds no words (images, sound) or returns no logits.

    Source: Jiang et al. (2020), https://aclanthology.org/2020.acl-main.197, sections 3.1 and Algorithm 1. ``epsilon``,
    ``step_size``, ``noise`` and ``steps`` are theirs; they choose the weight among 1, 3 and 5. The gradient is divided
    by its maximum over a sequence, as the paper's norm, not over each token, as in the code of MT-DNN. Deviations: the
    Bregman proximal point optimisation of section 3.2 is not included. All passes with a perturbation use one dropout
    sample, the unchanged pass another. In encoder-decoder models, the encoder's embeddings are perturbed.
    """

    info = MethodInfo(
        "smart",
        "makes predictions agree with those from adversarially perturbed word embeddings",
        "Jiang et al. (2020), SMART: Robust and Efficient Fine-Tuning for Pre-trained Natural Language Models through "
        "Principled Regularized Optimization",
        link="https://aclanthology.org/2020.acl-main.197",
        acts_on=("embeddings", "loss"),
        forward="2 + steps",
        backward="2 + steps (without parameters)",
        tasks="text; regression: squared difference",
    )

    weight: float = option(1.0, positive(), search=(0.3, 3.0, 5.0))
    epsilon: float = option(1e-5, positive(), search=(1e-3, 1e-2))
    step_size: float = option(1e-3, positive())
    noise: float = option(1e-5, positive())
    steps: int = option(1, count())

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        words: dict[str, Tensor] = {}

        def read(embedded: Tensor, valid: Tensor) -> Tensor:
            words["noise"] = self.noise * word_noise("normal", context.key, "words", valid, embedded.shape[-1])
            return embedded

        def divergence_with(delta: Tensor) -> Tensor:
            plan = WordPlan(context, lambda embedded, _: embedded + delta.to(embedded.dtype))
            with forked_rng(context.model):
                _, perturbed = compute_loss(context.batch, plan)
            return mean_divergence(context.model, outputs, perturbed, context.batch)

        loss, outputs = compute_loss(context.batch, WordPlan(context, read))
        delta = words["noise"]
        for _ in range(self.steps):
            divergence = divergence_with(delta.requires_grad_())
            gradient = loss_gradients(divergence, {"words": delta}, context.model)["words"]
            largest = gradient.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)
            delta = (delta.detach() + self.step_size * gradient / largest).clamp(-self.epsilon, self.epsilon)
        divergence = divergence_with(delta)
        context.note("divergence", divergence)
        return loss + self.weight * divergence, outputs


@dataclass(frozen=True)
class TokenCutoff(Method):
    """Views of the batch without some tokens, a span of tokens, or some features of the embeddings.

    The batch runs unchanged, and then ``views`` times with a part of each sequence cut: of ``n`` tokens, ``max(1,
    floor(fraction n))`` at random places (``unit="tokens"``) or in a row (``"span"``), or the same fraction of the
    features of all its tokens (``"features"``). The word embedding of a cut token is zero, and no token attends to it.
    The loss is that of the first pass, plus ``alpha`` times the mean loss of the views, plus ``beta`` times the mean
    Kullback-Leibler divergence of the predictions of all passes from their mean (for two passes, Jensen-Shannon). ``1 +
    views`` forward and backward passes per step.

    Args:
        fraction: Fraction of the tokens, or features, to cut, in (0, 1).
        unit: What is cut: ``"tokens"``, ``"span"`` or ``"features"``, see above.
        alpha: Weight of the loss of the views, 0 or more.
        beta: Weight of the divergence, 0 or more; ``alpha`` or ``beta`` must be above 0.
        views: Number of views of a batch, 1 or more.

    Raises:
        AttendropError: In training, the model embeds no words (images, sound) or returns no logits.

    Source: Shen et al. (2020), https://arxiv.org/abs/2009.13818, section 3, with the values of the authors' GLUE
    scripts. As in their code, special tokens may be cut, and cut tokens are hidden from attention. Deviations: their
    code zeroes the sum of word, position and type embeddings, samples the tokens with replacement, and cuts none of a
    short text. Other kinds of predictions are compared as in :class:`attendrop.HiddenCut`. In encoder-decoder models,
    the encoder's input is cut. The model's own dropout acts in all passes, with separate samples.
    """

    info = MethodInfo(
        "token-cutoff",
        "cuts tokens out of the input, and makes the predictions agree",
        "Shen et al. (2020), A Simple but Tough-to-Beat Data Augmentation Approach for Natural Language Understanding "
        "and Generation",
        link="https://arxiv.org/abs/2009.13818",
        acts_on=("embeddings", "scores", "loss"),
        forward="1 + views",
        backward="1 + views",
        tasks="text; encoder-decoder: the encoder",
    )

    fraction: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    unit: str = option("tokens", choice("tokens", "span", "features"), search=("span",))
    alpha: float = option(1.0, positive(zero=True))
    beta: float = option(1.0, positive(zero=True))
    views: int = option(1, count())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha == self.beta == 0:
            raise AttendropError("alpha=0 and beta=0 are plain fine-tuning; set one of them above 0.")

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        clean = compute_loss(context.batch)
        views = [self.cut(context, view) for view in range(self.views)]
        return with_views(context, compute_loss, clean, views, self.alpha, self.beta)

    def cut(self, context: StepContext, view: int) -> Plan:
        """Return the plan of a view, given its number."""

        def without_features(embedded: Tensor, _: Tensor) -> Tensor:
            features = torch.ones_like(embedded[:, 0], dtype=torch.bool)
            return embedded.masked_fill(self._sample(context, view, features)[:, None], 0)

        def without_tokens(embedded: Tensor, valid: Tensor) -> Tensor:
            plan.cut = self._sample(context, view, valid)
            return embedded.masked_fill(plan.cut[..., None], 0)

        plan = _CutTokens(context, without_tokens)
        return WordPlan(context, without_features) if self.unit == "features" else plan

    def _sample(self, context: StepContext, view: int, among: Tensor) -> Tensor:
        """Sample what to cut ``among`` the tokens, or features, of each sequence, ``(batch, n)``."""
        total, name = among.sum(-1, keepdim=True), f"{view}/{self.unit}"
        length = floor_fraction(total, self.fraction).clamp(min=1)
        if self.unit == "span":
            sampled = token_uniform(context.key, name, torch.ones_like(among[:, :1]))
            start, number = (sampled * (total - length + 1)).long(), among.cumsum(-1) - 1
            return among & (number >= start) & (number < start + length)
        sampled = token_uniform(context.key, name, among).masked_fill(~among, 2)
        return among & (sampled.argsort(stable=True).argsort(stable=True) < length)


class _CutTokens(WordPlan):
    """Plan in which no token attends to those that were ``cut``, ``(batch, n)``, when the words were embedded."""

    cut: Tensor | None = None

    def wants(self, layer: AttentionLayer) -> bool:
        kinds = {other.kind for other in self.context.adapter.attention_layers}
        return layer.kind in ({"encoder", "cross"} if "encoder" in kinds else {"decoder"})

    def edit(self, call: AttentionCall) -> AttentionEdit:
        return AttentionEdit(drop=None if self.cut is None else self.cut[:, None, None])


def word_noise(kind: str, key: SampleKey, name: str, valid: Tensor, width: int) -> Tensor:
    """Sample noise for each element of word embeddings, ``(batch, n, width)``, in float32; zero at padding.

    It is ``"uniform"``, from (-1, 1), or ``"normal"``, with a standard deviation of 1. ``valid`` are the tokens that
    are not padding, ``(batch, n)``; ``name`` completes the key.
    """
    given = (key, name, (len(valid), 1, valid.shape[1], width), of_rows(valid.int().argmax(-1)), valid.device)
    sampled = uniform(*given) * 2 - 1 if kind == "uniform" else normal(*given)
    return sampled.squeeze(1) * valid[..., None]


def of_rows(first: Tensor) -> Tensor:
    """Return the origins of tensors with tokens, counted from the ``first``, in rows and features in columns."""
    return torch.stack([first, torch.zeros_like(first)], -1)


# Types of models whose positions count the unmasked tokens, unless they are passed. Those of other types do not.
_POSITIONS_BY_MASK = ("opt",)


class _State(MethodState):
    """State that drops tokens, except for special ones."""

    method: UniDrop

    def __init__(self, method: UniDrop, training: TrainingContext) -> None:
        super().__init__(method)
        self.special = training.special_tokens
        self._latest: _Features | None = None
        configs = (getattr(module, "config", None) for module in training.model.modules())
        self.counts_by_mask = any(getattr(config, "model_type", None) in _POSITIONS_BY_MASK for config in configs)

    def plan(self, context: StepContext) -> Plan | None:
        self._latest = self.method.plan(context)
        return self._latest

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if 4 in self.method.places and self._latest is not None and not self._latest.head_ran:
            raise AttendropError(
                f"features={self.method.features!r}: the model never ran its last projection (its loss is computed "
                "without), so nothing is dropped in 4; leave it out."
            )
        return {}

    def batch(self, context: StepContext) -> Batch:
        if not self.method.drops_tokens:
            return context.batch
        batch = drop_tokens(context, self.method.data, self.method.token, self.special)
        if not self.counts_by_mask or batch.get("position_ids") is not None:
            return batch
        mask = context.batch.get("attention_mask")
        mask = torch.ones_like(batch["attention_mask"]) if mask is None else mask
        return {**batch, "position_ids": (mask.cumsum(-1) * mask - 1).long()}


@dataclass(frozen=True)
class UniDrop(Method):
    """Dropout of single features in four places, of whole blocks, and of tokens.

    - Features, each with probability ``feature``, with kept features divided by ``1 - feature``: the attention weights
      (FD-1), the activations within the feed-forward (FD-2), queries, keys and values (FD-3), and the input of the
      model's last projection (FD-4). The model's own dropout stays enabled.
    - Structure: each block is skipped with probability ``structure``, as in :class:`attendrop.LayerDrop`.
    - Data: a sequence is unchanged with probability ``data``; otherwise each of its tokens is dropped with probability
      ``token``. The first and last token of a sequence are kept, and so are special tokens if the tokenizer is known:
      the trainer's ``processing_class``, or ``tokenizer`` of :func:`attendrop.regularize`.

    Args:
        feature: Probability that a feature is dropped, in [0, 1); 0 disables the part.
        features: Places to drop features in, as ``(1, 2, 3, 4)`` or ``"1,2,3,4"``; empty disables the part.
        structure: Probability that a block is skipped, in [0, 1]; 0 disables the part.
        data: Probability that a sequence is unchanged, in [0, 1]; 1 disables the part.
        token: Probability that a token of any other sequence is dropped, in [0, 1]; 0 disables the part.

    Raises:
        AttendropError: All parts are disabled; or, in training, the model lacks the components of a part: blocks that
            can be skipped, a feed-forward, tokens (for images, set ``token=0``), a last projection that its loss runs
            (that of ``trl.SFTTrainer`` does not).

    Source: Wu et al. (2021), https://arxiv.org/abs/2104.04946, section 3. 0.1 for features is the usual rate of the
    models' own dropout, 0.2 for blocks the recommendation of Fan et al. (2020); the defaults of ``data`` and ``token``
    are ours. Deviations: a dropped token is not deleted, but masked (``attention_mask`` is 0), so that positions and
    labels are unchanged (except in BLOOM and in Falcon with ALiBi, whose biases count unmasked tokens only); in
    encoder-decoder models, this is done in the encoder's input only. FD-1 is in addition to the model's own dropout of
    weights. FD-3 is sampled after rotary embeddings, for each query head.
    """

    info = MethodInfo(
        "unidrop",
        "drops features in four places, whole blocks, and tokens",
        "Wu et al. (2021), UniDrop: A Simple yet Effective Technique to Improve Transformer",
        link="https://arxiv.org/abs/2104.04946",
        acts_on=("weights", "hidden states", "layers", "inputs"),
        forward="1 - structure",
        backward="1 - structure",
        tasks="text; images with token=0",
        units="blocks",
        traits={SKIPS_BLOCKS: "structure above 0"},
        skips_parameters=True,
        reports_all_effects=False,  # blocks only
    )
    state_class = _State

    feature: float = option(0.1, unit_interval(zero=True), search=(0.0, 0.2))
    features: str | int | Sequence[int] = option(
        (1, 2, 3, 4), Range("some of 1, 2, 3, 4 (1,3), or none", lambda _, value: _places(value))
    )
    structure: float = option(0.2, unit_interval(one=True, zero=True), search=(0.0, 0.1))
    data: float = option(0.5, unit_interval(one=True, zero=True), search=(0.0, 0.25))
    token: float = option(0.1, unit_interval(one=True, zero=True))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.places or self.structure or self.drops_tokens):
            raise AttendropError("All parts are disabled; set feature and features, structure, or token and data.")

    @property
    def places(self) -> tuple[int, ...]:
        """Places where features are dropped."""
        assert isinstance(self.features, tuple)
        return self.features if self.feature else ()

    @property
    def drops_tokens(self) -> bool:
        """Whether tokens are dropped."""
        return self.token > 0 and self.data < 1

    def plan(self, context: StepContext) -> _Features | None:
        if not (self.places or self.structure):
            return None
        if 2 in self.places and not any(block.feed_forward for block in context.adapter.blocks):
            raise AttendropError(
                f"features={self.features!r}: {type(context.model).__name__} has no feed-forward for 2."
            )
        keys = [block.key for block in context.adapter.blocks if block.skippable and block.attention_layers]
        if self.structure and not keys:
            raise AttendropError(
                f"structure={self.structure}: no block of {type(context.model).__name__} can be left out; set "
                "structure=0."
            )
        return _Features(
            self, context, sample_layers(context, self.structure, keys, "layer/") if self.structure else set()
        )


def _places(features: object) -> tuple[int, ...]:
    """Parse the places, in ascending order."""
    if isinstance(features, str):
        features = features.strip("[]() ").split(",") if features.strip("[]() ") else ()
    parts = {str(part).strip() for part in (features if isinstance(features, Sequence) else [features])}
    if not parts <= set("1234"):
        raise AttendropError(f"features={features!r} must name some of the places 1, 2, 3 and 4, such as '1,3'.")
    return tuple(sorted(map(int, parts)))


def drop_tokens(context: StepContext, whole: float, p: float, special: Sequence[int]) -> Batch:
    """Mask tokens of a batch with probability ``p``, except in sequences left unchanged with probability ``whole``."""
    ids = context.batch.get("input_ids")
    if ids is None:
        raise AttendropError(f"The batch for {type(context.model).__name__} has no 'input_ids' to drop; set token=0.")
    mask = context.batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    if mask.shape != ids.shape:
        raise AttendropError(f"'attention_mask' has shape {tuple(mask.shape)}, not {tuple(ids.shape)}; set token=0.")
    valid = mask.reshape(-1, mask.shape[-1]).bool()
    number = valid.cumsum(-1)
    kept = (number == 1) | (number == number[:, -1:])
    kept |= torch.isin(ids, torch.tensor(special, dtype=ids.dtype, device=ids.device)).view_as(valid)
    left = token_uniform(context.key, "whole", torch.ones_like(valid[:, :1])) < whole
    drop = token_uniform(context.key, "token", valid) < p
    drop = drop & ~left & valid & ~kept
    context.note("tokens", drop.sum() / valid.sum())
    return {**context.batch, "attention_mask": mask.masked_fill(drop.view_as(mask), 0)}


class _Features(RandomMaskPlan):
    """Plan that drops features and skips blocks, given their keys."""

    def __init__(self, method: UniDrop, context: StepContext, skipped: set[str]) -> None:
        # The first tokens of sequences are only known at attention, so all layers are edited.
        super().__init__(method, context, keys=None if method.places else ())
        self.p, self.places, self.skipped = method.feature, method.places, skipped
        self.head_ran = False
        self._last: Tensor | None = None
        self._queries: dict[str, Tensor] = {}  # first positions by kind

    def make(self, call: AttentionCall) -> AttentionEdit:
        found, key = self.origins(call), call.layer.key
        origins = torch.zeros(call.shape[0], 2, dtype=torch.long, device=call.device) if found is None else found
        queries, keys = of_rows(origins[:, 0]), of_rows(origins[:, 1])
        self._queries[call.layer.kind] = queries
        if call.layer.kind != "cross":
            self._last = queries

        def inputs(query: Tensor, key_: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return (
                self._drop(f"query/{key}", queries, query),
                self._drop(f"key/{key}", keys, key_),
                self._drop(f"value/{key}", keys, value),
            )

        return AttentionEdit(
            weights=partial(self._drop, f"weights/{key}", origins) if 1 in self.places else None,
            inputs=inputs if 3 in self.places else None,
        )

    def block(self, block: Block) -> BlockEdit | None:
        if not block.attention_layers:
            return None
        if block.key in self.skipped:
            return BlockEdit(skip=True)
        if 2 not in self.places:
            return None

        def dropped(activations: Tensor) -> Tensor:
            queries = self._queries[block.attention_layers[0].kind]
            return self._drop_states(f"activations/{block.key}", queries, activations)

        return BlockEdit(activations=dropped)

    def features(self, features: Tensor) -> Tensor:
        self.head_ran = True
        origins = self._last if features.ndim == 3 else None
        return self._drop_states("features", origins, features) if 4 in self.places else features

    def _drop_states(self, name: str, origins: Tensor | None, states: Tensor) -> Tensor:
        """Drop elements of ``(batch, width)`` or ``(batch, n, width)``."""
        rows = states.reshape(len(states), 1, -1, states.shape[-1])
        if origins is None or len(origins) != len(states):
            origins = torch.zeros(len(states), 2, dtype=torch.long, device=states.device)
        return self._drop(name, origins, rows).view_as(states)

    def _drop(self, name: str, origins: Tensor, values: Tensor) -> Tensor:
        """Set elements of ``(batch, heads, rows, columns)`` to zero with probability ``p``, and scale up the others."""
        batch, heads, rows, columns = values.shape
        drop = sample_mask(self.p, self.context.key, name, (batch, heads, rows, columns), origins, values.device)
        return values.masked_fill(drop, 0) / (1 - self.p)
