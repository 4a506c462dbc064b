"""Plans: what one forward pass changes at each attention layer, block, embedding and head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor, nn

from attendrop.attention.blocks import Block, ModelStructure
from attendrop.attention.edits import AttentionCall, AttentionEdit, BlockEdit, merge_edits
from attendrop.attention.layers import AttentionLayer
from attendrop.errors import AttendropError

PLAN_KEYWORD = "attendrop_plan"
# Values of a plan's ``acts_on``, each with the function by which it acts there.
FUNCTIONS = {"attention": "edit", "blocks": "block", "embeddings": "embed", "features": "features"}
_Place = TypeVar("_Place")


class Plan:
    """Changes that one forward pass makes to a model. One instance serves one forward pass.

    Under activation checkpointing, attention layers and blocks run again in the backward pass. So :meth:`edit` and
    :meth:`block` must return the same edit for the same layer or block every time.

    Attributes:
        acts_on: What the plan changes or reads: ``"attention"`` (:meth:`edit`), ``"blocks"`` (:meth:`block`),
            ``"embeddings"`` (:meth:`embed`), ``"features"`` (:meth:`features`). It follows from what a class defines.
        layer_keys: Keys of the attention layers that :meth:`edit` is called for; None: all.
    """

    layer_keys: Collection[str] | None = None

    def __init__(self) -> None:
        self.acts_on = frozenset(
            place for place, name in FUNCTIONS.items() if getattr(type(self), name) is not getattr(Plan, name)
        )
        self._layers_by_module: Mapping[nn.Module, Sequence[AttentionLayer]] = {}
        self._structure = ModelStructure({}, None, None)
        self._visits: Counter[nn.Module] = Counter()

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        """Return what to change in a call of an attention layer; None runs the model's own attention function."""
        return None

    def wants(self, layer: AttentionLayer) -> bool:
        """Return whether :meth:`edit` is to be called for an attention layer; False saves describing the call."""
        return "attention" in self.acts_on and (self.layer_keys is None or layer.key in self.layer_keys)

    def block(self, block: Block) -> BlockEdit | None:
        """Return what to change at a block; None changes nothing."""
        return None

    def embed(self, embedded: Tensor) -> Tensor:
        """Change the word embeddings, ``(batch, n, width)``, before positions and normalisation."""
        return embedded

    def features(self, features: Tensor) -> Tensor:
        """Change the input of the model's last projection, ``(batch, width)`` or ``(batch, n, width)``."""
        return features

    def bind(self, layers_by_module: Mapping[nn.Module, Sequence[AttentionLayer]], structure: ModelStructure) -> None:
        """Set the model to act on: its attention modules with their layers, and its blocks, embedding and head."""
        self._layers_by_module, self._structure = layers_by_module, structure

    def locate(self, module: nn.Module) -> AttentionLayer | None:
        """Return the attention layer that ``module`` stands for in this call; the traced pass must have run it."""
        if module not in self._layers_by_module:
            raise AttendropError(
                f"A {type(module).__name__} ran that is not among the attention layers found in an earlier pass over a "
                "batch with the same columns, so nothing could be dropped there."
            )
        return self._find(self._layers_by_module, module)

    def locate_block(self, module: nn.Module) -> Block | None:
        """Return the block that ``module`` stands for in this call."""
        return self._find(self._structure.blocks, module)

    def count_skipped(self, block: Block) -> None:
        """Count the attention layers of a skipped block; calls of a module that stands for several are counted."""
        skipped = {layer.key for layer in block.attention_layers}
        for module, layers in self._layers_by_module.items():
            if len(layers) > 1:
                self._visits[module] += sum(layer.key in skipped for layer in layers)

    def _find(self, places: Mapping[nn.Module, Sequence[_Place]], module: nn.Module) -> _Place | None:
        found = places.get(module)
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        visit = self._visits[module]
        if visit >= len(found):
            raise AttendropError(
                f"A {type(module).__name__} was called more than {len(found)} times in one pass. Activation "
                "checkpointing of a layer that the model shares is not supported; switch it off."
            )
        self._visits[module] += 1
        return found[visit]


class ConstantAttention(Plan):
    """Constant attention in the layers with these keys: each valid key has the same weight."""

    def __init__(self, keys: Iterable[str]) -> None:
        super().__init__()
        self.layer_keys = set(keys)

    def edit(self, call: AttentionCall) -> AttentionEdit:
        return AttentionEdit(constant=True)


class CombinedPlan(Plan):
    """Several plans as one: their drops are combined, their functions called one after the other."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        super().__init__()
        self.plans = plans
        self.acts_on = frozenset().union(*(plan.acts_on for plan in plans))

    def wants(self, layer: AttentionLayer) -> bool:
        return any(plan.wants(layer) for plan in self.plans)

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        edits = [plan.edit(call) for plan in self.plans if plan.wants(call.layer)]
        return merge_edits([edit for edit in edits if edit is not None])

    def block(self, block: Block) -> BlockEdit | None:
        return merge_edits([edit for plan in self.plans if (edit := plan.block(block)) is not None])

    def embed(self, embedded: Tensor) -> Tensor:
        for plan in self.plans:
            embedded = plan.embed(embedded)
        return embedded

    def features(self, features: Tensor) -> Tensor:
        for plan in self.plans:
            features = plan.features(features)
        return features
