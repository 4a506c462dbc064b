"""Structure of a model around its attention, found by tracing one pass: blocks, projections, embedding, head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from attendrop.attention.layers import AttentionLayer
from attendrop.attention.projections import projections
from attendrop.errors import AttendropError


@dataclass(eq=False)
class Block:
    """One block of a model (attention, feed-forward, norms) in one forward pass.

    Attributes:
        module: The module; in a model that shares its layers (ALBERT), several blocks have the same one.
        attention_layers: The attention layers in it; none if its attention was not found.
        input_projections: The modules that make queries, keys and values, by the key of the attention layer.
        output_projections: The module that projects the outputs of the heads, by the key of the attention layer.
        feed_forward: The last projection of the feed-forward; its inputs are the activations.
        extra_outputs: Where each output after the hidden states came from: the number or the name of an argument, or
            None for an output that is None. None instead of a tuple: the block computes other outputs, and cannot be
            skipped.
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
                f"{type(self.module).__name__} {self.key}: its output (position bias) is used by later blocks, so it "
                "cannot be skipped."
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
    head: nn.Module | None  # the last projection that ran; its inputs are the features


class StructureEvents:
    """Record of the events of one pass, from which the structure of a model follows."""

    def __init__(self, model: nn.Module, attention_modules: Iterable[str]) -> None:
        self.blocks = {found for name in attention_modules if (found := block_of(model, name)) is not None}
        self.model = model
        self.events: list[tuple[str, nn.Module, Any]] = []

    def listen(self) -> list[RemovableHandle]:
        """Register the hooks that record the events."""
        linear = {*projections(self.model)} - self.blocks
        return [
            *(module.register_forward_pre_hook(self._saw("block")) for module in self.blocks),
            *(module.register_forward_hook(self._left, with_kwargs=True) for module in self.blocks),
            *(module.register_forward_pre_hook(self._saw("linear")) for module in linear),
            *(module.register_forward_pre_hook(self._embedded) for module in _input_embeddings(self.model)),
        ]

    def structure(self, layers_by_module: Mapping[nn.Module, Sequence[AttentionLayer]]) -> ModelStructure:
        """Build the structure, given the attention layers of each attention module."""
        blocks: dict[nn.Module, list[Block]] = {}
        visits: Counter[nn.Module] = Counter()
        block: Block | None = None
        waiting: str | None = None
        before: list[nn.Module] = []
        embedding = head = None
        two_stacks = getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)
        for event, module, detail in self.events:
            match event:
                case "block":
                    block, before = Block(module), []
                    blocks.setdefault(module, []).append(block)
                case "left" if block is not None:
                    block.returns_tensor, block.extra_outputs = detail
                    block = None
                case "attention" if layers_by_module[module]:
                    layer = layers_by_module[module][visits[module]]
                    visits[module] += 1
                    if block is not None:
                        block.attention_layers.append(layer)
                        block.input_projections[layer.key], before = before, []
                        waiting = layer.key
                case "linear":
                    head = module
                    if block is not None and waiting is not None:
                        block.output_projections[waiting] = module
                        waiting = None
                    elif block is not None:
                        block.feed_forward = module
                        before.append(module)
                case "embed" if embedding is None and not (two_stacks and visits):  # after the encoder: the decoder's
                    embedding = module
        return ModelStructure({module: tuple(found) for module, found in blocks.items()}, embedding, head)

    def _saw(self, event: str) -> Callable[[nn.Module, Any], None]:
        return lambda module, _: self.events.append((event, module, None))

    def _embedded(self, module: nn.Module, args: Any) -> None:
        if args and not args[0].is_floating_point():
            self.events.append(("embed", module, None))

    def _left(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.events.append(("left", module, (not isinstance(output, tuple), _argument_sources(args, kwargs, output))))


def block_of(model: nn.Module, attention: str) -> nn.Module | None:
    """Return the element of the model's list of layers that holds an attention module; None if none does."""
    path = attention.partition("#")[0].split(".")
    for end in range(1, len(path)):
        if isinstance(model.get_submodule(".".join(path[:end])), nn.ModuleList):
            return model.get_submodule(".".join(path[: end + 1]))
    return None


def _input_embeddings(model: nn.Module) -> set[nn.Module]:
    """Collect the input embeddings of the transformers models that a model is or holds."""
    found = set()
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            with suppress(NotImplementedError, AttributeError):
                found.add(module.get_input_embeddings())
    return found - {None}  # of a model that embeds no words


def hidden_states(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the hidden states among the arguments of a block."""
    if not args and "hidden_states" not in kwargs:
        raise AttendropError("A layer of the model is called in a way that is not known; it cannot be changed.")
    return args[0] if args else kwargs["hidden_states"]


def _argument_sources(
    args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
) -> tuple[int | str | None, ...] | None:
    """Find :attr:`Block.extra_outputs`."""
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    sources: list[int | str | None] = []
    for value in output[1:] if isinstance(output, tuple) else ():
        places = [at for at, argument in given if argument is value]
        if value is not None and not places:
            return None
        sources.append(None if value is None else places[0])
    return tuple(sources)
