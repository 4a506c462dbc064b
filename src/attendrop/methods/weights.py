"""Mixout: weights of a pass are replaced by the pre-trained ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attendrop.extend import (
    REPLACES_PARAMETERS,
    AttendropError,
    Batch,
    Method,
    MethodInfo,
    MethodState,
    StepContext,
    TrainingContext,
    WeightMixing,
    choice,
    option,
    unit_interval,
)
from attendrop.methods.common.parameters import projection_weights


@dataclass(frozen=True)
class Mixout(Method):
    """Random replacement of weights by their pre-trained values.

    In each optimizer step the weights ``W`` of an input neuron of a linear layer are replaced by their pre-trained
    values ``U`` with probability ``p``, and by ``(W - p U) / (1 - p)`` otherwise, so that their expectation is ``W``.

    Args:
        p: Probability of replacement, in (0, 1).
        unit: Unit of replacement: all weights of an input ``"neuron"``, or a single ``"element"``.

    Raises:
        AttendropError: At the start of training, no linear layer below the head is trainable.

    Source: Lee, Cho, Kang (2020), https://arxiv.org/abs/1909.11299, section 3; 0.7 is among the values of their GLUE
    runs (0.7 to 0.9). The pre-trained values are the weights at the start of training. As in their code, weights of
    linear layers are mixed, but no biases, embeddings or normalisation. Deviations: the gradient is that of the formula
    (their code omits the division by ``1 - p``); the model's own dropout stays enabled, while they replace it; one mask
    is used for a whole optimizer step; the head, which has no pre-trained values, is excluded. Weights that are
    unfrozen later are mixed from then on. With a LoRA adapter, its two matrices are mixed with their initial values,
    instead of the frozen weights.
    """

    info = MethodInfo(
        "mixout",
        "replaces weights at random by their pre-trained values",
        "Lee, Cho, Kang (2020), Mixout: Effective Regularization to Finetune Large-scale Pretrained Language Models",
        link="https://arxiv.org/abs/1909.11299",
        evidence=(
            (
                {"p": 0.9},
                "with MiniLM, no significant difference from plain fine-tuning on Banking77 with five rows per class, "
                "nor on 256 rows of CoLA, MRPC and STS-B; -0.044 on generated messages with new phrases, -0.220 on "
                "entities (the project's docs/does-it-help.md).",
            ),
        ),
        compared=True,
        acts_on=("parameters",),
        state="the pre-trained weights",
        traits={REPLACES_PARAMETERS: ""},
        uses_attention=False,
    )

    p: float = option(0.7, unit_interval(), search=(0.3, 0.5, 0.9))
    unit: str = option("neuron", choice("neuron", "element"))

    def start(self, training: TrainingContext) -> MethodState:
        return _MixoutState(self, training)


class _MixoutState(WeightMixing):
    """State with the pre-trained weights."""

    def __init__(self, method: Mixout, training: TrainingContext) -> None:
        super().__init__(method, training, method.p, by_neuron=method.unit == "neuron")
        model = training.model
        self.targets = {name: model.get_parameter(name).detach().clone() for name in projection_weights(model)}
        if not self.targets:
            raise AttendropError(
                f"{type(model).__name__} has no trainable linear layers below its head, so there is nothing "
                "to mix; unfreeze some."
            )

    def batch(self, context: StepContext) -> Batch:
        if new := [name for name in projection_weights(self.model) if name not in self.targets]:
            # Frozen until now, so they still have their initial values.
            self.targets = {**self.targets, **{name: self.model.get_parameter(name).detach().clone() for name in new}}
            self.close()
            self.names = None
        return super().batch(context)

    def choose(self, context: StepContext) -> list[str]:
        return list(self.targets)

    def state_dict(self) -> dict[str, Any]:
        return {"pretrained": dict(self.targets)}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        found: Mapping[str, Tensor] = state["pretrained"]
        self.targets = {name: value.to(self.model.get_parameter(name).device) for name, value in found.items()}
