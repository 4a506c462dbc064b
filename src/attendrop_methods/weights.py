"""Methods that act on weights: DropConnect, SAM, L2-SP, and re-initialisation of the top layers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    LAYERS,
    REPLACES_PARAMETERS,
    SWITCH,
    AttendropError,
    Batch,
    ComputeLoss,
    Method,
    MethodInfo,
    MethodState,
    ParameterOverride,
    Rule,
    SampleKey,
    StepContext,
    TrainingContext,
    WeightMixing,
    count,
    forked_rng,
    loss_gradients,
    option,
    positive,
    pretrained_parameters,
    projection_matrices,
    unit_interval,
    upcast,
)

if TYPE_CHECKING:
    from attendrop.extend import ModelAdapter


class _DropConnectState(WeightMixing):
    """State that mixes the weights with zero."""

    def choose(self, context: StepContext) -> list[str]:
        keys = {layer.key for layer in self.method.selected_layers(context.adapter.attention_layers)}
        modules = set()
        for block in context.adapter.blocks:
            for key in keys & block.output_projections.keys():
                modules |= {*block.input_projections[key], block.output_projections[key]}
        weights = {weight for module in modules for weight in projection_matrices(module)}
        names = [name for name, parameter in self.model.named_parameters() if parameter in weights]
        if not names:
            raise AttendropError(
                f"No attention projections found in {type(self.model).__name__}; choose another method."
            )
        return names


@dataclass(frozen=True)
class DropConnect(Method):
    """Dropout of single weights of the attention projections.

    In each optimizer step each element of the query, key, value and output projection weights is zero with probability
    ``p``, and divided by ``1 - p`` otherwise.

    Args:
        p: Probability that an element is zero, in (0, 1).

    Raises:
        AttendropError: In training, no projections can be found, or their weights are quantized.

    Source: Wan et al. (2013), Regularization of Neural Networks using DropConnect, section 3, with weights ``M * W``.
    Deviations: kept weights are scaled up in training, and evaluation uses the unchanged weights, while the paper
    samples from a Gaussian fitted to the mask's moments; one mask is used for a whole optimizer step, not one per
    example; ``p`` is 0.1, the paper's 0.5 is for networks trained from scratch. In a projection with a LoRA adapter,
    ``W + s B A``, each of the three matrices has its own mask.
    """

    info = MethodInfo(
        "dropconnect",
        "sets weights of the attention's projections to zero at random",
        "Wan et al. (2013), Regularization of Neural Networks using DropConnect",
        link="https://proceedings.mlr.press/v28/wan13.html",
        acts_on=("parameters",),
        traits={REPLACES_PARAMETERS: ""},
    )
    state_class = _DropConnectState

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    layers: str | int | Sequence[int] = option("all", LAYERS)


class _SAMState(MethodState):
    """State that adds a perturbation to the parameters of the second pass, also where it is recomputed."""

    method: SAM

    def __init__(self, method: SAM, training: TrainingContext) -> None:
        super().__init__(method)
        self.perturbation: dict[nn.Parameter, Tensor] = {}
        names = [name for name, weight in training.model.named_parameters(remove_duplicate=False)]
        self._override = ParameterOverride(training.model, names, self._perturbed, throughout=True)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        self.perturbation = {}
        with forked_rng(context.model):
            loss, _ = compute_loss(context.batch)
        weights = {name: weight for name, weight in context.model.named_parameters() if weight.requires_grad}
        gradients = loss_gradients(upcast(loss), weights, context.model)
        norms = torch.stack([gradient.norm() for gradient in gradients.values()])
        scale = self.method.rho / norms.norm().clamp(min=torch.finfo(norms.dtype).tiny)
        held = [{weights[name]: (scale * g).to(weights[name].dtype) for name, g in gradients.items()}]
        del gradients  # before the second pass takes its memory
        self.perturbation = held[0]
        perturbed, outputs = compute_loss(context.batch)
        self.perturbation = {}

        def restore(_: Tensor) -> None:
            if held:  # for layers that run again in this backward pass, which may be that of several losses
                self.perturbation = held.pop()

        if perturbed.requires_grad:
            perturbed.register_hook(restore)  # type: ignore[no-untyped-call]
        context.note("sharpness", perturbed.detach() - loss.detach())
        return perturbed, outputs

    def after_step(self, steps_taken: int) -> dict[str, float]:
        self.perturbation = {}
        return {}

    def close(self) -> None:
        self._override.close()
        self.perturbation = {}

    def _perturbed(self, weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        return {name: w + self.perturbation[w] if w in self.perturbation else w for name, w in weights.items()}


@dataclass(frozen=True)
class SAM(Method):
    """Sharpness-aware minimisation.

    The gradient ``g`` of the loss at the weights ``w`` determines the perturbation ``e = rho g / ||g||``, with the norm
    over all trainable parameters. The loss is that at ``w + e``, with the same dropout sample; its gradient there
    updates ``w``. Two forward and two backward passes per step. Each micro-batch of each process has its own
    perturbation (m-SAM), so results depend on the split into micro-batches.

    Args:
        rho: Norm of the perturbation, above 0.

    Raises:
        AttendropError: In training, the gradient is not finite.

    Source: Foret et al. (2021), https://arxiv.org/abs/2010.01412, Eq. 2 and 3, with their default of 0.05; they, too,
    perturb by the gradient of the part of the batch on one accelerator, and leave out the second-order term. The logged
    loss is that at the perturbed weights; ``sharpness`` in the log is its difference from the loss at ``w``.
    """

    info = MethodInfo(
        "sam",
        "minimises the loss at weights that are perturbed to raise it",
        "Foret et al. (2021), Sharpness-Aware Minimization for Efficiently Improving Generalization",
        link="https://arxiv.org/abs/2010.01412",
        acts_on=("parameters",),
        forward="2",
        backward="2",
        traits={REPLACES_PARAMETERS: ""},
        uses_attention=False,
    )
    state_class = _SAMState

    rho: float = option(0.05, positive(), search=(0.01, 0.02, 0.1))


class _L2SPState(MethodState):
    method: L2SP

    def __init__(self, method: L2SP, training: TrainingContext) -> None:
        super().__init__(method)
        self.model = training.model
        weights = {name: self.model.get_parameter(name) for name in pretrained_parameters(self.model)}
        self.pretrained = weights.keys()
        self.start = {name: weight.detach().clone() for name, weight in weights.items() if weight.requires_grad}

    @torch.no_grad()
    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, weight in parameters.items():
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                raise AttendropError(
                    "L2-SP does not support sparse gradients; create the embeddings with sparse=False."
                )
            if name in self.pretrained:
                if name not in self.start:  # frozen until now, so it still has its initial value
                    self.start[name] = weight.detach().clone()
                weight.grad.add_(weight - self.start[name].to(weight.device), alpha=self.method.alpha)
            else:
                weight.grad.add_(weight, alpha=self.method.beta)

    def state_dict(self) -> dict[str, Any]:
        return {"start": dict(self.start)}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        found: Mapping[str, Tensor] = state["start"]
        self.start = {name: value.to(self.model.get_parameter(name).device) for name, value in found.items()}

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report how far training has moved the pre-trained weights."""
        start = self.start.items()
        moved = [upcast(self.model.get_parameter(name).detach() - value).square().sum() for name, value in start]
        return {"l2_sp": {"distance": float(torch.stack(moved).sum().sqrt()) if moved else 0.0}}


@dataclass(frozen=True)
class L2SP(Method):
    """Penalty on the distance of the weights from the pre-trained ones.

    The penalty is ``alpha / 2 ||w - w0||^2 + beta / 2 ||v||^2``, where ``w`` are the pre-trained parameters, ``w0``
    their values at the start of training, and ``v`` the parameters of the head. Its gradient, ``alpha (w - w0)`` and
    ``beta v``, is added to that of the loss just before the optimizer step.

    Args:
        alpha: Weight of the distance from the start, above 0.
        beta: Weight of the norm of the head, 0 or more.

    Raises:
        AttendropError: The optimizer is unknown; or, in training, a gradient is sparse.

    Source: Li, Grandvalet, Davoine (2018), https://arxiv.org/abs/1802.01483, Eq. 2 and 3. They train with SGD, search
    ``alpha`` between 0.001 and 1, and fix ``beta`` at 0.01. Deviations: the gradient is added after gradient clipping;
    the logged loss does not include the penalty. Adam scales the gradient of the penalty along with that of the loss. A
    parameter without a gradient in a step stays as it is.
    """

    info = MethodInfo(
        "l2-sp",
        "pulls the weights back to their pre-trained values",
        "Li, Grandvalet, Davoine (2018), Explicit Inductive Bias for Transfer Learning with Convolutional Networks",
        link="https://arxiv.org/abs/1802.01483",
        acts_on=("gradients",),
        state="the pre-trained weights",
        uses_attention=False,
    )
    state_class = _L2SPState

    alpha: float = option(0.1, positive(), search=(0.001, 0.01, 1.0))
    beta: float = option(0.01, positive(zero=True))


_PULLED_BACK = "It takes the layers back to the pre-trained weights that re-initialisation removes."


class _Reinitializing(MethodState):
    method: LayerReinit
    done = False

    def batch(self, context: StepContext) -> Batch:
        if context.key.step == 0 and not self.done:
            self.method.reinitialize(context.adapter, context.key.seed)
        self.done = True
        return context.batch


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
        link="https://arxiv.org/abs/2006.05987",
        acts_on=("parameters",),
        tasks="all; not models that share layers (ALBERT)",
        order=-2,  # the weights are new before another method measures them
        rules=tuple(Rule("layer-reinit", other, _PULLED_BACK) for other in (EXCHANGES_WEIGHTS, "mixout", "l2-sp")),
        edits_pretrained_weights=True,
    )
    state_class = _Reinitializing

    layers: int = option(1, count(), search=(2, 3))
    pooler: bool = option(True, SWITCH)

    def prepare(self, model: nn.Module, seed: int) -> None:
        from transformers import PreTrainedModel

        from attendrop.extend import ModelAdapter, example_inputs

        assert isinstance(model, PreTrainedModel)
        adapter = ModelAdapter(model)
        adapter.trace(example_inputs(model))
        self.reinitialize(adapter, seed)

    def reinitialize(self, adapter: ModelAdapter, seed: int) -> None:
        """Re-initialise the chosen modules of a traced model: the same weights for the same seed."""
        model = adapter.model
        kinds = {block.attention_layers[0].kind for block in adapter.blocks}
        kind = "decoder" if "decoder" in kinds else "encoder"
        blocks = [block.module for block in adapter.blocks if block.attention_layers[0].kind == kind]
        if len(set(blocks)) < len(blocks):
            raise AttendropError(
                f"{type(model).__name__} shares its layers, so the top ones have no weights of their own; use another "
                "model."
            )
        if self.layers > len(blocks):
            raise AttendropError(f"layers={self.layers} of a model with {len(blocks)}; choose at most as many.")
        chosen = blocks[-self.layers :]
        names = {module: name for name, module in model.named_modules()}
        poolers = {name: module for module, name in names.items() if name.rpartition(".")[2] == "pooler"}
        if self.pooler and poolers:  # a head's own is new in any case
            pretrained = pretrained_parameters(model)
            chosen += [poolers[name] for name in poolers if any(each.startswith(f"{name}.") for each in pretrained)]
        for module in chosen:
            if not all(parameter.requires_grad for parameter in module.parameters()):
                raise AttendropError(
                    f"{names[module]} is frozen, at least in part, so that new weights would not be trained; unfreeze "
                    "it, or use another method."
                )
            fresh = initialized_copy(model, names[module], SampleKey(seed, 0, 0, 1).seeds(names[module], 1)[0])
            module.load_state_dict(fresh.state_dict())


def initialized_copy(model: nn.Module, name: str, seed: int) -> nn.Module:
    """Return a copy of a submodule on the CPU, with new weights as its transformers model initialises them."""
    from transformers import PreTrainedModel

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
