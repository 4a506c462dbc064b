"""Parts of an encoder layer, and how they compute its output when its attention is constant or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from attendrop.pruning.token_layouts import PaddedLayout


class Attention(Protocol):
    """Attention of layers in which it is not constant."""

    def of_all(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        """Compute the outputs of the heads for all tokens, in their layout ``(..., hidden)``."""
        ...

    def of_first(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        """Compute the outputs of the heads for the first token of each sequence, ``(batch, hidden)``."""
        ...


@dataclass(frozen=True)
class LayerParts:
    """Modules of one encoder layer.

    Attributes:
        attention: The module of the layer that holds the projections.
        projections: Those to queries, keys and values, or one that makes all three; without any, attention is constant.
        output: The output projection; in a layer with constant attention ``W_V W_O``, with its bias.
        norm, up, activation, down, last_norm: The feed-forward part, and the layer's two norms.
        window: A token attends to those at most so many columns away; None: to all.
    """

    attention: nn.Module
    projections: tuple[nn.Module, ...]
    output: nn.Linear
    norm: nn.Module
    up: nn.Linear
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear
    last_norm: nn.Module
    window: int | None

    def read(self, x: Tensor) -> Tensor:
        """Return what attention reads of the hidden states ``(..., hidden)``."""
        raise NotImplementedError

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the layer's output from its input and the output of attention, both ``(..., hidden)``."""
        raise NotImplementedError

    def project(self, x: Tensor, of_queries: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Compute queries, keys and values; queries are needed only of the tokens that ``of_queries`` selects."""
        if len(self.projections) == 1:
            queries, keys, values = self.projections[0](x).chunk(3, dim=-1)
            return of_queries(queries), keys, values
        to_queries, to_keys, to_values = self.projections
        return to_queries(of_queries(x)), to_keys(x), to_values(x)

    def run(self, x: Tensor, layout: PaddedLayout, attention: Attention) -> Tensor:
        """Compute the output for all tokens, in their layout."""
        read = self.read(x)
        if not self.projections and layout.covered_by(self.window):
            vector = self.output(layout.mean(read))
            return layout.in_chunks(x, lambda chunk: self.finish(x[chunk], layout.spread(vector, chunk)))
        if self.projections:
            attended = attention.of_all(self, read, layout)
        else:
            assert self.window is not None
            attended = layout.window_mean(read, self.window)
        return layout.in_chunks(x, lambda chunk: self.finish(x[chunk], self.output(attended[chunk])))

    def run_first(self, x: Tensor, layout: PaddedLayout, attention: Attention) -> Tensor:
        """Compute the output for the first token of each sequence, ``(batch, hidden)``."""
        read = self.read(x)
        if self.projections:
            attended = attention.of_first(self, read, layout)
        elif self.window is None or layout.covered_by(self.window):
            attended = layout.mean(read)
        else:
            attended = layout.first(layout.window_mean(read, self.window))
        return self.finish(layout.first(x), self.output(attended))


class PostNormParts(LayerParts):
    """Layer that is normalised after each half, as BERT's."""

    def read(self, x: Tensor) -> Tensor:
        return x

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.norm(x + attended)
        return self.last_norm(x + self.down(self.activation(self.up(x))))  # type: ignore[no-any-return]


class PreNormParts(LayerParts):
    """Layer that is normalised before each half, with a gated feed-forward part, as ModernBERT's."""

    def read(self, x: Tensor) -> Tensor:
        return self.norm(x)  # type: ignore[no-any-return]

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + attended
        inner, gate = self.up(self.last_norm(x)).chunk(2, dim=-1)
        return x + self.down(self.activation(inner) * gate)  # type: ignore[no-any-return]
