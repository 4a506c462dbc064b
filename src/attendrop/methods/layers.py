"""Whole layers: LayerDrop, of blocks or of their attention only, and re-initialisation of the top ones."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from attendrop.attention.tracing import example_inputs
from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    LAYERS,
    SKIPS_BLOCKS,
    SWITCH,
    AttendropError,
    Batch,
    Block,
    BlockEdit,
    ConstantAttention,
    Method,
    MethodInfo,
    MethodState,
    ModelAdapter,
    Plan,
    Rule,
    SampleKey,
    StepContext,
    TrainingContext,
    count,
    option,
    select_layers,
    unit_interval,
)


@dataclass(frozen=True)
class LayerDrop(Method):
    """Skipping of whole blocks, attention and feed-forward together.

    In each optimizer step each block is skipped with probability ``p``, for the whole global batch: it is not computed,
    and its input is passed on unchanged. Nothing is rescaled.

    Args:
        p: Probability that a block is skipped, in (0, 1].
        layers: Blocks, by their attention layers, see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: In training, no block can be skipped.

    Source: Fan, Grave, Joulin (2020), https://arxiv.org/abs/1909.11556, section 3.1; 0.2 is their recommendation. One
    sample for the global batch is ours, so that processes agree. Blocks whose results later blocks need (T5's first:
    the position bias) are never skipped.
    """

    info = MethodInfo(
        "layerdrop",
        "skips whole blocks at random",
        "Fan, Grave, Joulin (2020), Reducing Transformer Depth on Demand with Structured Dropout",
        link="https://arxiv.org/abs/1909.11556",
        acts_on=("layers",),
        forward="1 - p",
        backward="1 - p",
        tasks="all; T5: not its first block",
        units="blocks",
        traits={SKIPS_BLOCKS: ""},
        skips_parameters=True,
    )

    p: float = option(0.2, unit_interval(one=True), search=(0.05, 0.1, 0.4))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return Skipping(sample_blocks(context, self.p, self.layers))


class Skipping(Plan):
    """Plan that skips the blocks with these keys."""

    acts_on = frozenset({"blocks"})

    def __init__(self, keys: set[str]) -> None:
        super().__init__()
        self.keys = keys

    def block(self, block: Block) -> BlockEdit | None:
        return BlockEdit(skip=True) if block.attention_layers and block.key in self.keys else None


def sample_blocks(context: StepContext, p: float, layers: str | int | Sequence[int]) -> set[str]:
    """Sample the blocks to skip, each with probability ``p``, equal in all processes, and report them."""
    chosen = {layer.key for layer in select_layers(context.adapter.attention_layers, layers)}
    blocks = [block for block in context.adapter.blocks if block.skippable and block.key in chosen]
    if not blocks:
        raise AttendropError(f"layers={layers!r}: none of these layers can be left out.")
    return _sampled(context, p, [block.key for block in blocks], "layer/")


def _sampled(context: StepContext, p: float, keys: Sequence[str], prefix: str = "") -> set[str]:
    dropped = {key for key in keys if context.key.uniform(f"{prefix}{key}") < p}
    for key in keys:
        context.report(key, torch.tensor(int(key in dropped)), torch.tensor(1))
    return dropped


@dataclass(frozen=True)
class AttentionLayerDrop(Method):
    """LayerDrop of attention only.

    In each optimizer step each layer is selected with probability ``p``. A selected layer attends equally to all valid
    keys (Eq. 4), for the whole global batch; the rest of the layer is unchanged.

    Args:
        p: Probability that a layer is selected, in (0, 1].
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Source: Wu, Zhao, Zhang (2021), section 7.1, after Fan et al. (2020), including the default of 0.2. Not specified
    there: one sample is used for the global batch, and the model's own attention dropout acts on the equal weights.
    """

    info = MethodInfo(
        "attention-layerdrop",
        "makes the attention of random layers constant",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, section 7.1",
        link="https://arxiv.org/abs/2104.04692",
        acts_on=("layers",),
        units="layers",
        skips_parameters=True,  # the query and key projections
    )

    p: float = option(0.2, unit_interval(one=True), search=(0.05, 0.1, 0.4))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        keys = [layer.key for layer in self.selected_layers(context.adapter.attention_layers)]
        return ConstantAttention(_sampled(context, self.p, keys))


_PULLED_BACK = "It takes the layers back to the pre-trained weights that re-initialisation removes."


@dataclass(frozen=True)
class LayerReinit(Method):
    """Re-initialisation of the top layers, once before training.

    The last ``layers`` blocks of the model (in an encoder-decoder model: of the decoder), and the pooler, get new
    random weights, as the model's own initialisation makes them: for BERT, from N(0, 0.02), with biases 0 and
    normalisation 1. They depend on the seed only. Training is then plain fine-tuning.

    On the command line this happens before the head starts from the features of the frozen encoder; elsewhere, in the
    first step. A resumed run continues with the weights of its checkpoint.

    Args:
        layers: Number of blocks, 1 or more.
        pooler: Whether to re-initialise the pooler, if the model has one.

    Raises:
        AttendropError: The model has a PEFT adapter; or, in training, it has fewer blocks, or shares them (ALBERT).

    Source: Zhang et al. (2021), https://arxiv.org/abs/2006.05987, section 5. They re-initialise the pooler and up to 6
    of the 24 blocks of BERT-large, with the number searched for each task; the default is ours.
    """

    info = MethodInfo(
        "layer-reinit",
        "re-initialises the top layers before training",
        "Zhang et al. (2021), Revisiting Few-sample BERT Fine-tuning",
        acts_on=("parameters",),
        tasks="all; not models that share layers (ALBERT)",
        order=-2,  # the weights are new before another method measures them
        rules=tuple(Rule("layer-reinit", other, _PULLED_BACK) for other in (EXCHANGES_WEIGHTS, "mixout", "l2-sp")),
        edits_pretrained_weights=True,
    )

    layers: int = option(1, count(), search=(2, 3))
    pooler: bool = option(True, SWITCH)

    def prepare(self, model: nn.Module, seed: int) -> None:
        assert isinstance(model, PreTrainedModel)
        adapter = ModelAdapter(model)
        adapter.trace(example_inputs(model))
        self.reinitialize(adapter, seed)

    def reinitialize(self, adapter: ModelAdapter, seed: int) -> None:
        """Re-initialise the chosen modules of a traced model: the same weights for the same seed."""
        model = adapter.model
        chosen = top_blocks(adapter, self.layers)
        pooler = getattr(getattr(model, "base_model", model), "pooler", None)
        if self.pooler and isinstance(pooler, nn.Module):
            chosen.append(pooler)
        names = {module: name for name, module in model.named_modules()}
        for module in chosen:
            if not all(parameter.requires_grad for parameter in module.parameters()):
                raise AttendropError(
                    f"{names[module]} is frozen, at least in part, so that new weights would not be trained; unfreeze "
                    "it, or use another method."
                )
            fresh = initialized_copy(model, names[module], SampleKey(seed, 0, 0, 1).seeds(names[module], 1)[0])
            module.load_state_dict(fresh.state_dict())

    def start(self, training: TrainingContext) -> MethodState:
        return _Reinitializing(self)


class _Reinitializing(MethodState):
    """State that re-initialises in the first step."""

    method: LayerReinit

    def __init__(self, method: LayerReinit) -> None:
        super().__init__(method)
        self.done = False

    def batch(self, context: StepContext) -> Batch:
        if context.key.step == 0 and not self.done:
            self.method.reinitialize(context.adapter, context.key.seed)
        self.done = True
        return context.batch


def top_blocks(adapter: ModelAdapter, number: int) -> list[nn.Module]:
    """Return the last blocks of the decoder, or else of the encoder; AttendropError if there are fewer, or shared."""
    name = type(adapter.model).__name__
    kinds = {block.attention_layers[0].kind for block in adapter.blocks}
    kind = "decoder" if "decoder" in kinds else "encoder"
    modules = [block.module for block in adapter.blocks if block.attention_layers[0].kind == kind]
    if len(set(modules)) < len(modules):
        raise AttendropError(
            f"{name} shares its layers, so the top ones have no weights of their own; use another model."
        )
    if number > len(modules):
        raise AttendropError(f"layers={number} of a model with {len(modules)}; choose at most as many.")
    return modules[-number:]


def initialized_copy(model: nn.Module, name: str, seed: int) -> nn.Module:
    """Return a copy of a submodule on the CPU, with new weights as its transformers model initialises them."""
    owner = model
    for end, character in enumerate(name):
        if character == "." and isinstance(parent := model.get_submodule(name[:end]), PreTrainedModel):
            owner = parent
    assert isinstance(owner, PreTrainedModel)
    fresh = copy.deepcopy(model.get_submodule(name)).cpu()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        fresh.apply(owner._init_weights)  # the copy's parameters are not marked as initialised
    return fresh
