"""UniDrop: dropout of features, of blocks and of tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attendrop.extend import (
    SKIPS_BLOCKS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    Batch,
    Block,
    BlockEdit,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    RandomMaskPlan,
    Range,
    StepContext,
    TrainingContext,
    option,
    sample_mask,
    token_uniform,
    unit_interval,
)
from attendrop_methods.word_perturbations import of_rows

# Types of models whose positions count the unmasked tokens, unless they are passed. Those of other types do not.
_POSITIONS_BY_MASK = ("opt",)


class _State(MethodState):
    """State that drops tokens, except for special ones."""

    method: UniDrop

    def __init__(self, method: UniDrop, training: TrainingContext) -> None:
        super().__init__(method)
        self.special = training.special_tokens
        self._latest: _Features | None = None
        self.counts_by_mask = getattr(training.model.config, "model_type", None) in _POSITIONS_BY_MASK

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
        return _Features(self, context, self._skipped(context) if self.structure else set())

    def _skipped(self, context: StepContext) -> set[str]:
        """Sample the blocks to skip, the same in all processes, and report them."""
        keys = [block.key for block in context.adapter.blocks if block.skippable and block.attention_layers]
        if not keys:
            raise AttendropError(
                f"structure={self.structure}: no block of {type(context.model).__name__} can be left out; set "
                "structure=0."
            )
        skipped = {key for key in keys if context.key.uniform(f"layer/{key}") < self.structure}
        for key in keys:
            context.report(key, torch.tensor(int(key in skipped)), torch.tensor(1))
        return skipped


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
