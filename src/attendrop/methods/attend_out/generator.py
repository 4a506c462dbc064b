"""G-Net: a small attention network that outputs drop logits for each layer and example."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.blocks import block_of
from attendrop.attention.hooks import ModuleHooks
from attendrop.extend import AttendropError
from attendrop.support.models import transformers_model


class Generator(nn.Module):
    """The generator of AttendOut.

    A trained copy of the model's embeddings, and one attention layer (query, key, value and output projection,
    residual, LayerNorm; no dropout, no output layer) that is applied once for each attention layer of the model. The
    scores of its ``l``-th application, ``(batch, heads, n, n)``, are the logits of dropping in the model's layer ``l``.
    Section 4.1 of both papers.

    Args:
        model: The model in which attention is dropped; not modified.
        first_layer: Name of the module of its first attention layer.
        inputs: Inputs that the model accepts.
        heads: Number of attention heads; the papers use one.
        feed_forward: Whether a feed-forward of four times the width follows the attention (not in the papers).
        init_drop_prob: Initial drop probability, in (0, 1), before the contribution of the scores.
        learn_bias: Whether the logit of that probability is trained.
        seed: Seed of the initial weights, N(0, 0.02).

    Raises:
        AttendropError: The embeddings of the model cannot be separated from its layers, or ``heads`` does not divide
            its width.
    """

    bias: Tensor

    def __init__(
        self,
        model: nn.Module,
        first_layer: str,
        inputs: Mapping[str, Any],
        *,
        heads: int = 1,
        feed_forward: bool = False,
        init_drop_prob: float = 0.5,
        learn_bias: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(model, first_layer, inputs)
        with torch.no_grad():
            example = self.embeddings(inputs)
        width = example.shape[-1]
        # The generator of a half-precision model is trained in single precision.
        self.dtype = torch.float64 if example.dtype == torch.float64 else torch.float32
        if width % heads:
            raise AttendropError(
                f"generator_heads={heads} does not divide the model's width of {width}; use a divisor."
            )
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.feed_forward = _FeedForward(width) if feed_forward else None
        bias = torch.tensor(math.log(init_drop_prob / (1 - init_drop_prob)))
        if learn_bias:
            self.bias = nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias, persistent=False)
        self._initialize(seed)
        for module in (self.query, self.key, self.value, self.output, self.norm, self.feed_forward):
            if module is not None:
                module.to(example.device, self.dtype)
        self.bias.data = self.bias.data.to(example.device)
        self.eval()  # no dropout, including in the embeddings

    def begin(self, inputs: Mapping[str, Any]) -> Draft:
        """Embed a batch; the result computes the logits of successive layers."""
        return Draft(self, self.embeddings(inputs).to(self.dtype))

    def scores(self, hidden: Tensor) -> Tensor:
        """Compute the scores, ``(batch, heads, n, n)``, of hidden states ``(batch, n, width)``."""
        query, key = self._split(self.query(hidden)), self._split(self.key(hidden))
        scale: float = query.shape[-1] ** -0.5
        return (query * scale) @ key.transpose(-1, -2)

    def advance(self, hidden: Tensor, scores: Tensor, valid: Tensor | None) -> Tensor:
        """Compute the hidden states after attention with ``scores``."""
        if valid is not None:
            scores = scores.masked_fill(~valid, torch.finfo(scores.dtype).min)
        weights = functional.softmax(scores, dim=-1, dtype=self.dtype)
        value = self._split(self.value(hidden))
        attended = weights.to(value.dtype) @ value
        hidden = self.norm(hidden + self.output(attended.transpose(1, 2).flatten(2)))
        if self.feed_forward is not None:
            hidden = self.feed_forward(hidden)
        return hidden

    def _split(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], self.heads, -1).transpose(1, 2)

    def _initialize(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and not name.startswith("embeddings."):
                nn.init.normal_(module.weight, std=0.02, generator=generator)
                nn.init.zeros_(module.bias)


class Draft:
    """One pass of the generator over a batch, evaluated for layers of the model in ascending order."""

    def __init__(self, generator: Generator, hidden: Tensor) -> None:
        self.generator = generator
        self.hidden = hidden
        self.applications = 0
        self.last: tuple[Tensor, Tensor | None] | None = None

    def logits(self, layer: int, valid: Tensor | None) -> Tensor:
        """Compute the drop logits of a layer, ``(batch, heads, n, n)``, in float32 (float64 for a float64 model).

        The number of the layer, from 0, must be greater than in the previous call; the generator is also applied for
        layers skipped in between, with the same keys. ``valid`` is broadcastable to the logits, None for all.
        """
        while self.applications <= layer:
            if self.last is not None:
                self.hidden = self.generator.advance(self.hidden, *self.last)
            self.last = self.generator.scores(self.hidden), valid
            self.applications += 1
        assert self.last is not None
        return self.last[0].to(self.generator.dtype) + self.generator.bias


class Embeddings(nn.Module):
    """Trainable copy of the computation before a model's first attention layer, ``(batch, n, width)``.

    A copy of the model's modules runs up to that layer, with copies of the weights that this needs. It therefore
    includes the components of each model family: positions, types, projections, normalisation.
    """

    def __init__(self, model: nn.Module, first_layer: str, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        own = transformers_model(model)
        first = model.get_submodule(first_layer.partition("#")[0])
        name = next(name for name, module in own.named_modules() if module is first)
        self.model = plain_copy(own, shared=own.parameters()).eval()
        block = block_of(self.model, name) or self.model.get_submodule(name)
        block.forward = _exit
        _strip(self.model, block, inputs)
        _own_parameters(self.model)

    def forward(self, inputs: Mapping[str, Any]) -> Tensor:
        """Embed the model's inputs."""
        try:
            self.model(**inputs)
        except _ReachedError as reached:
            return reached.hidden
        raise AttendropError(
            f"{type(self.model).__name__} is not supported: its forward pass does not reach its first layer."
        )


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(hidden + self.down(functional.gelu(self.up(hidden))))
        return normed


class _ReachedError(Exception):
    """Signal that the pass reached the first layer, with these hidden states."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def plain_copy(model: nn.Module, shared: Iterable[nn.Parameter] = ()) -> Any:
    """Copy a model except for ``shared`` parameters, without accelerate's wrapper of ``forward`` of the original."""
    copied = copy.deepcopy(model, {id(parameter): parameter for parameter in shared})
    for name in ("forward", "_original_forward"):
        copied.__dict__.pop(name, None)
    return copied


def _exit(*args: Any, **kwargs: Any) -> None:
    raise _ReachedError(args[0] if args else kwargs["hidden_states"])


def _strip(model: nn.Module, block: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Free all parameters except those of modules that ran before ``block``."""
    started: set[nn.Module] = set()
    completed: set[nn.Module] = set()
    hooks = ModuleHooks()
    for module in model.modules():
        hooks.before(module, lambda module, _: started.add(module))
        hooks.after(module, lambda module, *_: completed.add(module))
    with torch.no_grad(), suppress(_ReachedError):
        model(**inputs)
    hooks.close()
    kept = {part for module in completed for part in module.modules()} | (started - {block})
    for module in model.modules():
        if module not in kept:
            for name in module._parameters:
                module._parameters[name] = None


def _own_parameters(model: nn.Module) -> None:
    """Replace the parameters of a model by copies, which are trained if they are floating-point numbers."""
    copies: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                own = nn.Parameter(value.detach().clone(), requires_grad=value.is_floating_point())
                module._parameters[name] = copies.setdefault(value, own)
