"""DropConnect: dropout of weights of the attention projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attendrop.attention.projections import factors
from attendrop.extend import (
    LAYERS,
    REPLACES_PARAMETERS,
    AttendropError,
    Method,
    MethodInfo,
    MethodState,
    StepContext,
    TrainingContext,
    WeightMixing,
    option,
    unit_interval,
)


@dataclass(frozen=True)
class DropConnect(Method):
    """Dropout of single weights of the attention projections.

    In each optimizer step each element of the query, key, value and output projection weights is zero with probability
    ``p``, and divided by ``1 - p`` otherwise.

    Example:
        >>> with regularize(model, DropConnect(p=0.1)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that an element is zero, in (0, 1).
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; or, in training, no projections can be found, or their weights
            are quantized.

    Source: Wan et al. (2013), Regularization of Neural Networks using DropConnect, section 3, with weights ``M * W``.
    Deviations: kept weights are scaled up in training, and evaluation uses the unchanged weights, while the paper
    samples from a Gaussian fitted to the mask's moments; one mask is used for a whole optimizer step, while the paper
    has one per example; ``p`` is 0.1, the paper's is 0.5, for networks trained from scratch. Of a projection with a
    LoRA adapter, ``W + s B A``, each of the three matrices has its own mask.
    """

    info = MethodInfo(
        "dropconnect",
        "sets weights of the attention's projections to zero at random",
        "Wan et al. (2013), Regularization of Neural Networks using DropConnect",
        acts_on=("parameters",),
        traits={REPLACES_PARAMETERS: ""},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def start(self, training: TrainingContext) -> MethodState:
        return _DropConnect(self, training, self.p)


class _DropConnect(WeightMixing):
    """State that mixes the weights with zero."""

    def choose(self, context: StepContext) -> list[str]:
        keys = {layer.key for layer in self.method.selected_layers(context.adapter.attention_layers)}
        modules = set()
        for block in context.adapter.blocks:
            for key in keys & block.output_projections.keys():
                modules |= {*block.input_projections[key], block.output_projections[key]}
        weights = {weight for module in modules for weight in factors(module)}
        names = [name for name, parameter in self.model.named_parameters() if parameter in weights]
        if not names:
            raise AttendropError(
                f"No attention projections found in {type(self.model).__name__}; choose another method."
            )
        return names
