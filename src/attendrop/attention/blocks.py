"""Structure of a model around its attention, as one traced pass shows it: blocks, projections, embedding, head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attendrop.attention.layers import AttentionLayer
from attendrop.errors import AttendropError

# Attributes of an attention module that projects to queries, keys and values separately.
BERT_NAMES = ("query", "key", "value")
DEBERTA_NAMES = ("query_proj", "key_proj", "value_proj")
DISTILBERT_NAMES = ("q_lin", "k_lin", "v_lin")
SEPARATE = (BERT_NAMES, DISTILBERT_NAMES, ("q_proj", "k_proj", "v_proj"), DEBERTA_NAMES, ("q", "k", "v"))
# Attributes of an attention module that projects to queries, keys and values at once.
_FUSED = ("c_attn", "Wqkv", "qkv")
# Those known to produce them one after the other with the same width, if the module is a linear layer (True), or a
# Conv1D (False). Others go head by head (GPT-NeoX, the linear c_attn of GPTBigCode), or have fewer keys and values than
# queries (Phi-3).
_THIRDS = {"c_attn": False, "Wqkv": True}
# Modules of PEFT whose adapters add ``get_delta_weight`` to a weight. Others multiply it (OFT), or are not known.
_ADDITIVE = {"adalora", "loha", "lokr", "lora"}


@dataclass(eq=False)
class Block:
    """One block of a model (attention, feed-forward, norms) in one forward pass.

    Attributes:
        module: The module; in a model that shares its layers (ALBERT), several blocks have the same one.
        attention_layers: The attention layers in it; none if its attention was not found.
        input_projections: The modules that make queries, keys and values, by the key of the attention layer.
        output_projections: The module that projects the outputs of the heads, by the key of the attention layer.
        feed_forward: The last projection of the feed-forward; its inputs are the activations. None: there is no single
            one, as where tokens go to separate experts.
        extra_outputs: Where each output after the hidden states came from: the number or the name of an argument; None
            for None. None instead of a tuple: the block computes other outputs, or hidden states of another shape, and
            cannot be skipped.
        returns_tensor: Whether the module returns its hidden states alone, not in a tuple.
    """

    module: nn.Module
    attention_layers: list[AttentionLayer] = field(default_factory=list)
    input_projections: dict[str, list[nn.Module]] = field(default_factory=dict)
    output_projections: dict[str, nn.Module] = field(default_factory=dict)
    feed_forward: nn.Module | None = None
    extra_outputs: tuple[int | str | None, ...] | None = None
    returns_tensor: bool = True

    @property
    def key(self) -> str:
        """Key of its first attention layer, such as ``encoder.3``."""
        return self.attention_layers[0].key

    @property
    def skippable(self) -> bool:
        """Whether the block can be left out."""
        return self.extra_outputs is not None

    def skipped(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the output of the module that leaves the hidden states unchanged."""
        if self.extra_outputs is None:
            raise AttendropError(
                f"{type(self.module).__name__} {self.key}: later blocks need what it makes, a position bias or hidden "
                "states of another shape, so it cannot be skipped."
            )
        if self.returns_tensor:
            return hidden_states(args, kwargs)
        others = (None if at is None else args[at] if isinstance(at, int) else kwargs[at] for at in self.extra_outputs)
        return (hidden_states(args, kwargs), *others)


@dataclass
class ModelStructure:
    """Blocks, embedding and head of a model."""

    blocks: dict[nn.Module, tuple[Block, ...]]  # of each module, in the order of their calls
    embedding: nn.Module | None  # the first input embedding that looked ids up; of two stacks, the encoder's
    head: nn.Module | None  # the last projection that ran, if after the blocks; its inputs are the features


class StructureEvents:
    """Record of the events of one pass, from which the structure of a model follows."""

    def __init__(self, model: nn.Module, attention_modules: Iterable[str]) -> None:
        self.blocks = {found for name in attention_modules if (found := block_of(model, name)) is not None}
        self.model = model
        self.events: list[tuple[str, nn.Module, Any]] = []

    def listen(self) -> list[RemovableHandle]:
        """Register the hooks that record the events."""
        from transformers import PreTrainedModel  # methods are known without it

        linear = {*projections(self.model)} - self.blocks
        embeddings = set()  # of the transformers models that the model is or holds
        for module in self.model.modules():
            if isinstance(module, PreTrainedModel):
                with suppress(NotImplementedError, AttributeError):
                    embeddings.add(module.get_input_embeddings())

        def enter(module: nn.Module, args: Any) -> None:
            if module in embeddings and (not args or args[0].is_floating_point()):
                return  # no words are embedded
            event = "block" if module in self.blocks else "linear" if module in linear else "embed"
            self.events.append((event, module, None))

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            """Record whether the output is a tensor, and :attr:`Block.extra_outputs`."""
            given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
            others = output[1:] if isinstance(output, tuple) else ()
            places = [next((at for at, each in given if each is value), None) for value in others]
            known = all(value is None or at is not None for at, value in zip(places, others, strict=True))
            states = hidden_states(args, kwargs), output[0] if isinstance(output, tuple) else output
            before, after = (getattr(each, "shape", None) for each in states)
            known &= before == after  # stages of image models make smaller ones
            sources = tuple(None if value is None else at for at, value in zip(places, others, strict=True))
            self.events.append(("left", module, (not isinstance(output, tuple), sources if known else None, after)))

        entered = self.blocks | linear | (embeddings - {None})
        return [
            *(module.register_forward_pre_hook(enter) for module in entered),
            *(module.register_forward_hook(leave, with_kwargs=True) for module in self.blocks),
        ]

    def structure(self, layers_by_module: Mapping[nn.Module, Sequence[AttentionLayer]]) -> ModelStructure:
        """Build the structure, given the attention layers of each attention module."""
        blocks: dict[nn.Module, list[Block]] = {}
        visits: Counter[nn.Module] = Counter()
        block: Block | None = None
        waiting: str | None = None
        before: list[nn.Module] = []  # projections since the block, or the last attention in it, began
        embedding = head = None
        two_stacks = getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)
        for event, module, detail in self.events:
            match event:
                case "block":
                    block, before = Block(module), []
                    blocks.setdefault(module, []).append(block)
                case "left" if block is not None:
                    block.returns_tensor, block.extra_outputs, shape = detail
                    if not any(name.rpartition(".")[2] == "experts" for name, _ in module.named_modules()):
                        fits = (each for each in reversed(before) if shape is None or output_width(each) in shape)
                        block.feed_forward = next(fits, None)  # which comes back to the hidden states' width
                    block = None
                case "attention" if layers_by_module[module]:
                    layer = layers_by_module[module][visits[module]]
                    visits[module] += 1
                    if block is not None:
                        block.attention_layers.append(layer)
                        block.input_projections[layer.key], before = before, []
                        waiting = layer.key
                case "linear":
                    head = module if block is None else None
                    if block is not None and waiting is not None:
                        block.output_projections[waiting] = module
                        waiting = None
                    elif block is not None:
                        before.append(module)
                case "embed" if embedding is None and not (two_stacks and visits):  # after the encoder: the decoder's
                    embedding = module
        return ModelStructure({module: tuple(found) for module, found in blocks.items()}, embedding, head)


def block_of(model: nn.Module, attention: str) -> nn.Module | None:
    """Return the element of the model's list of layers that holds an attention module; None if none does."""
    path = attention.partition("#")[0].split(".")
    for end in range(1, len(path)):
        if isinstance(model.get_submodule(".".join(path[:end])), nn.ModuleList):
            return model.get_submodule(".".join(path[: end + 1]))
    return None


def hidden_states(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the hidden states among the arguments of a block."""
    if not args and "hidden_states" not in kwargs:
        raise AttendropError("A layer of the model is called in a way that is not known; it cannot be changed.")
    return args[0] if args else kwargs["hidden_states"]


def is_projection(module: nn.Module) -> bool:
    """Return whether a module is linear, a ``Conv1D`` of transformers, or one of them within a layer of an adapter."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(base_layer(module), nn.Linear | Conv1D)


def base_layer(module: nn.Module) -> nn.Module:
    """Return the layer that a layer of an adapter (LoRA) is on; any other module is returned as it is."""
    while isinstance(inner := getattr(module, "base_layer", None), nn.Module):
        module = inner
    return module


def output_width(projection: nn.Module) -> int:
    """Return the width of what a projection makes."""
    layer: Any = base_layer(projection)
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.nf)


def projections(module: nn.Module) -> Iterator[nn.Module]:
    """Iterate over the projections in a module; one with an adapter counts once, without its parts."""
    if is_projection(module):
        yield module
    else:
        base = base_layer(module)
        for child in module.children() if base is module else [base]:
            yield from projections(child)


def projection_matrices(projection: nn.Module) -> list[Tensor]:
    """List the weight matrices of a projection and of the adapter on it; raise AttendropError if one is quantized."""
    found: list[Any] = [part for part in projection.modules() if base_layer(part) is part and is_projection(part)]
    for part in found:
        refuse_quantized(part)
    return [part.weight for part in found]


def refuse_quantized(layer: nn.Module) -> None:
    """Raise AttendropError if the weight of a linear layer is packed (quantized) instead of a matrix of numbers."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    packed = isinstance(layer, nn.Linear) and weight.shape != (layer.out_features, layer.in_features)
    if packed or not weight.is_floating_point():
        raise AttendropError(
            f"A weight of the model is quantized ({str(weight.dtype).removeprefix('torch.')}), so nothing can act on "
            "its values; load the model without quantization, or choose a method that does not act on parameters."
        )


def input_dim(projection: nn.Module) -> int:
    """Return the input dimension of a weight: a ``Conv1D`` weight is the transpose of a linear layer's."""
    return 1 if isinstance(base_layer(projection), nn.Linear) else 0


def query_key_parameters(attention: nn.Module) -> list[tuple[nn.Parameter, tuple[slice, ...]]]:
    """List the known parameters of an attention module that produce queries and keys, each with the relevant part.

    For a fused projection, that is the first two thirds. Raises AttendropError if they are quantized.
    """
    for query, key, _ in SEPARATE:
        projections = [getattr(attention, name, None) for name in (query, key)]
        linear = [projection for projection in projections if isinstance(projection, nn.Linear)]
        if len(linear) == len(projections):
            for projection in linear:
                refuse_quantized(projection)
            return [(p, (slice(None),)) for projection in linear for p in projection.parameters()]
    for name in _FUSED:
        fused: Any = getattr(attention, name, None)
        if isinstance(getattr(fused, "weight", None), nn.Parameter):
            refuse_quantized(fused)
            # Unlike input_dim, by the class of linear layers: a fused projection may be neither.
            axis = 0 if isinstance(fused, nn.Linear) else 1
            part = slice(0, fused.weight.shape[axis] // 3 * 2)
            rows = (part,) if axis == 0 else (slice(None), part)
            return [(p, rows if p.ndim == 2 else (part,)) for p in fused.parameters()]
    return []


@dataclass(frozen=True)
class ValueProjection:
    """Projection to the values of an attention layer; a ``fused`` one makes queries and keys, too, and values last."""

    module: nn.Module
    fused: bool

    def weight(self) -> Tensor:
        """Return the weight that makes values, ``(features read, features made)``, with an adapter's part.

        Raises AttendropError if it is quantized, or what the adapter does to it is not known.
        """
        layer: Any = self.module
        refuse_quantized(base_layer(layer))
        weight: Tensor = base_layer(layer).weight  # type: ignore[assignment]
        if base_layer(layer) is not layer and not layer.disable_adapters and not layer.merged:
            if not _ADDITIVE & {*type(layer).__module__.split(".")}:
                raise AttendropError(
                    f"What the adapter's {type(layer).__module__}.{type(layer).__name__} does to the weight is not "
                    "known; use LoRA, or another method."
                )
            deltas = (layer.get_delta_weight(name) for name in layer.active_adapters if name in layer.scaling)
            weight = sum(deltas, start=weight)
        weight = weight if input_dim(layer) == 0 else weight.T
        return weight[:, -(weight.shape[1] // 3) :] if self.fused else weight


def find_value_projection(candidates: Iterable[tuple[str, nn.Module]]) -> ValueProjection | None:
    """Find the projection to values among those, with their names in their parents, that run before attention does.

    None if none is known, or if there are several candidates.
    """
    separate, fused = [], []
    for name, module in candidates:
        base = base_layer(module)
        if name.startswith("v"):
            separate.append(module)
        elif name in _THIRDS and is_projection(base) and isinstance(base, nn.Linear) == _THIRDS[name]:
            weight: Tensor = base.weight  # type: ignore[assignment]
            dim = input_dim(module)
            if weight.shape[1 - dim] == 3 * weight.shape[dim]:
                fused.append(module)
    found = separate or fused
    return ValueProjection(found[0], fused=not separate) if len(found) == 1 else None
