"""G-Net, a small attention network that outputs drop logits for each layer, and its actions and their learning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.blocks import block_of
from attendrop.attention.hooks import ModuleHooks
from attendrop.attention.layers import select_self_attention
from attendrop.extend import (
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Batch,
    Plan,
    SampleKey,
    StepContext,
    TrainingContext,
    evaluating,
    forked_rng,
    sample_mask,
)
from attendrop.methods.attend_out.second_model import SecondModel, plain_copy
from attendrop.randomness.candidates import pack, unpack
from attendrop.support.models import to_device, transformers_model

if TYPE_CHECKING:
    from attendrop.extend import ModelAdapter


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
        self.feed_forward: nn.Module | None = None
        if feed_forward:
            self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.feed_forward_norm = nn.LayerNorm(width)
        bias = torch.tensor(math.log(init_drop_prob / (1 - init_drop_prob)))
        if learn_bias:
            self.bias = nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias, persistent=False)
        random = torch.Generator().manual_seed(seed)
        for name, module in self.named_children():
            for part in module.modules() if name != "embeddings" else ():
                if isinstance(part, nn.Linear):
                    nn.init.normal_(part.weight, std=0.02, generator=random)
                    nn.init.zeros_(part.bias)
            if name != "embeddings":
                module.to(example.device, self.dtype)
        self.bias.data = self.bias.data.to(example.device)
        self.eval()  # no dropout, including in the embeddings

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
            hidden = self.feed_forward_norm(hidden + self.feed_forward(hidden))
        return hidden

    def _split(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], self.heads, -1).transpose(1, 2)


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
        # Free all parameters except those of modules that run before the block; the copy trains its own copies of them.
        started: set[nn.Module] = set()
        completed: set[nn.Module] = set()
        hooks = ModuleHooks()
        for module in self.model.modules():
            hooks.before(module, lambda module, _: started.add(module))
            hooks.after(module, lambda module, *_: completed.add(module))
        with torch.no_grad(), suppress(_ReachedError):
            self.model(**inputs)
        hooks.close()
        kept = {part for module in completed for part in module.modules()} | (started - {block})
        copies: dict[nn.Parameter, nn.Parameter] = {}
        for module in self.model.modules():
            for parameter, value in module._parameters.items():
                if value is None or module not in kept:
                    module._parameters[parameter] = None
                else:
                    copy_of = nn.Parameter(value.detach().clone(), requires_grad=value.is_floating_point())
                    module._parameters[parameter] = copies.setdefault(value, copy_of)

    def forward(self, inputs: Mapping[str, Any]) -> Tensor:
        """Embed the model's inputs."""
        try:
            self.model(**inputs)
        except _ReachedError as reached:
            return reached.args[0]  # type: ignore[no-any-return]
        raise AttendropError(
            f"{type(self.model).__name__} is not supported: its forward pass does not reach its first layer."
        )


class _ReachedError(Exception):
    """Signal that the pass reached the first layer, with hidden states as its argument."""


def _exit(*args: Any, **kwargs: Any) -> None:
    raise _ReachedError(args[0] if args else kwargs["hidden_states"])


@dataclass
class Micro:
    """One micro-batch of a period, with all that is needed to sample its masks again.

    This takes much less memory than the masks, which depend only on ``key`` and on the generator, which does not change
    within a period.
    """

    batch: dict[str, Any]  # with labels
    inputs: dict[str, Any]  # what the model receives
    key: SampleKey
    sequences: int = 0  # in attention: more than rows in multiple choice, 0 if all layers were skipped
    masks: list[tuple[Tensor, tuple[int, ...]] | None] = field(default_factory=list)  # distinct ones of valid keys
    layers: dict[str, int] = field(default_factory=dict)  # index of the mask of each layer that ran, in order

    def state_dict(self) -> dict[str, Any]:
        """Return the record as tensors and plain values."""
        return vars(self) | {"key": vars(self.key)}

    @classmethod
    def load(cls, state: Mapping[str, Any], device: torch.device) -> Micro:
        """Restore a :meth:`state_dict` on a device."""
        masks = [None if mask is None else (mask[0].to(device), mask[1]) for mask in state["masks"]]
        own: dict[str, Any] = {name: to_device(state[name], device) for name in ("batch", "inputs")}
        own |= {"key": SampleKey(**state["key"]), "masks": masks}
        return cls(**{**state, **own})


class Outcome(NamedTuple):
    """The generator's action on one layer."""

    logits: Tensor  # of dropping each unit, (batch, heads, n, n); dimensions that a unit spans have size 1
    units: Tensor | None  # broadcastable mask of the units: valid keys in rows that hold tokens; None for all
    dropped: Tensor  # mask of the dropped units


class Players:
    """The generator, with its policy gradient updates, the layers in which it drops, and the defender.

    Args:
        method: The options, an :class:`attendrop.AttendOut`.
        training: The training context.
        attention_layers: All attention layers of the model.
        inputs: Inputs of the model, on which its embeddings are traced.
        seed: Seed of the generator's weights.

    Attributes:
        attention_layers: The layers to drop in; ``selected_keys`` are their keys.
        layers: All self-attention layers up to the last of these, by key; the generator is applied for each.
        autocast: The autocast precision that the model runs in, if any.
    """

    def __init__(
        self,
        method: Any,
        training: TrainingContext,
        attention_layers: Sequence[AttentionLayer],
        inputs: Batch,
        seed: int,
    ) -> None:
        self.method = method
        self.attention_layers = method.selected_layers(attention_layers)
        self.selected_keys = {layer.key for layer in self.attention_layers}
        every = select_self_attention(attention_layers, "all")
        last = max(layer.index for layer in self.attention_layers)
        self.layers = {layer.key: layer for layer in every if layer.index <= last}
        # In a model of images and texts, an attention layer has the configuration of its own part.
        attention: Any = training.model.get_submodule(every[0].name.partition("#")[0])
        config: Any = getattr(attention, "config", training.model.config)
        heads = (config.get_text_config() if hasattr(config, "get_text_config") else config).num_attention_heads
        if not isinstance(heads, int):
            raise AttendropError(
                f"The layers of {type(training.model).__name__} differ in their windows and heads, and the generator "
                "is one for all; use another method."
            )
        own_heads = heads if method.granularity == "head" and method.generator_heads == 1 else method.generator_heads
        if heads % own_heads:
            raise AttendropError(
                f"generator_heads={own_heads} does not divide the model's {heads} heads; use a divisor."
            )
        with forked_rng(training.model):
            self.generator = Generator(
                training.model,
                every[0].name,
                inputs,
                heads=own_heads,
                feed_forward=method.generator_feed_forward,
                init_drop_prob=method.init_drop_prob,
                learn_bias=method.learn_bias,
                seed=seed,
            )
        self.autocast: torch.dtype | None = None

        self.defender = SecondModel(training, method.defender_device)
        self.processes = training.processes
        self.baseline = 0.0
        self.learned = [parameter for parameter in self.generator.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.learned, lr=method.generator_learning_rate, weight_decay=0.0)
        updates = -(-(training.total_steps or 1) // method.dropout_step)
        linear = method.generator_schedule == "linear"
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda update: max(0.0, 1 - update / updates) if linear else 1.0
        )

    def precision(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the generator's autocast context, the same for sampling and updates; never float16 (underflow)."""
        half = self.autocast == torch.bfloat16
        return torch.autocast(device.type, self.autocast if half else None, enabled=half)

    def begin(self, inputs: Batch) -> Draft:
        """Embed a batch; the result computes the scores of successive layers."""
        return Draft(self.generator, self.generator.embeddings(inputs).to(self.generator.dtype))

    def logits(self, draft: Draft, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the logits of dropping each unit of a layer, and the mask of its units; see :class:`Outcome`."""
        logits, rows, valid = draft.logits(call.layer.index, call.valid), call.valid_queries(), call.valid
        positions = valid if valid is None or rows is None else valid & rows
        granularity = self.method.granularity
        if granularity == "score":
            return logits, positions
        spanned = (2, 3) if granularity == "head" else (1, 2, 3)
        if positions is None:
            return logits.mean(spanned, keepdim=True), None
        positions = positions.expand(logits.shape)
        counts = positions.sum(spanned, keepdim=True).clamp(min=1)
        return (logits * positions).sum(spanned, keepdim=True) / counts, None

    def act(self, draft: Draft, call: AttentionCall, key: SampleKey) -> Outcome:
        """Sample the dropped units of a layer, a function of the key."""
        logits, units = self.logits(draft, call)
        probabilities, score = logits.detach().sigmoid(), self.method.granularity == "score"
        origins = call.origins() if score else torch.zeros(len(logits), 2, dtype=torch.long)
        batch, heads, queries, keys = logits.shape
        dropped = sample_mask(probabilities, key, call.layer.key, (batch, heads, queries, keys), origins, call.device)
        return Outcome(logits, units, dropped if units is None else dropped & units)

    def replayed(self, micro: Micro) -> Iterator[Outcome]:
        """Repeat the generator's actions of a pass, with gradients, on each selected layer that ran."""
        draft = self.begin(micro.inputs)
        batch, length, _ = draft.hidden.shape
        masks = [None if mask is None else unpack(*mask) for mask in micro.masks]
        for key, number in micro.layers.items():
            call = AttentionCall(self.layers[key], (batch, 1, length, length), masks[number], draft.hidden.device)
            if key in self.selected_keys:
                yield self.act(draft, call, micro.key)
            else:
                self.logits(draft, call)

    def learn(self, period: Sequence[Sequence[Micro]], rewards: Tensor) -> dict[str, float]:
        """Take one policy gradient step, given each step's micro-batches and reward; return metrics to log.

        The objective is ``- sum over steps of the mean over sequences of advantage * mean over units of log
        P(action)``: Eq. 5 of the dropout paper, Eq. 4 of the pruning paper. The mean is over the valid units of a
        sequence, in all layers.
        """
        mean, baseline, decay = rewards.mean(), self.baseline, self.method.baseline_decay
        paired = rewards if self.method.credit == "step" else mean.expand(len(rewards))
        self.baseline = decay * baseline + (1 - decay) * mean.item()
        device = next(self.generator.parameters()).device
        counts = torch.tensor([sum(micro.sequences for micro in step) for step in period], device=device)
        sequences: list[int] = self.processes.total(counts).tolist()
        objective = torch.zeros((), device=device)
        for step, advantage, number in zip(period, (paired - baseline).tolist(), sequences, strict=True):
            for micro in step:
                if micro.sequences:
                    term = -advantage * self.log_likelihood(micro).sum() / number
                    term.backward()
                    objective += term.detach()
        for parameter in self.learned:
            if parameter.grad is not None:
                parameter.grad.copy_(self.processes.total(parameter.grad))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return {"baseline": baseline, "generator_loss": float(self.processes.total(objective))}

    def log_likelihood(self, micro: Micro) -> Tensor:
        """Compute the mean log-probability of the actions of each sequence, over its units in all layers.

        Skipped layers are excluded.
        """
        device = next(self.generator.parameters()).device
        with self.precision(device):
            outcomes = list(self.replayed(micro))
        total = number = torch.zeros((), device=device)
        for logits, units, dropped in outcomes:
            likelihood = functional.logsigmoid(torch.where(dropped, logits, -logits))
            if units is not None:
                likelihood = likelihood * units
                number = number + units.expand(likelihood.shape).sum((1, 2, 3))
            else:
                number = number + likelihood[0].numel()
            total = total + likelihood.sum((1, 2, 3))
        return total / number.clamp(min=1)

    def drop_fractions(self, adapter: ModelAdapter, batches: Iterable[Batch]) -> dict[str, float]:
        """Compute the fraction of each layer's units that the generator drops with a probability above 1/2.

        This is ``pi`` of the pruning paper, on the calibration data ``batches``.
        """
        counts: dict[str, Tensor] = {}
        with torch.no_grad(), evaluating(adapter.model), forked_rng(adapter.model):
            for batch in batches:
                adapter.trace(batch)
                decide = Decide(self, batch)
                adapter.forward(batch, decide)
                counts = {key: pair + counts.get(key, 0) for key, pair in decide.counts.items()}
        return {key: (pair[0] / pair[1].clamp(min=1)).item() for key, pair in counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values."""
        return {
            "baseline": self.baseline,
            "defender": self.defender.state_dict(),
            "generator": self.generator.state_dict(),
            "generator_optimizer": self.optimizer.state_dict(),
            "generator_schedule": self.schedule.state_dict(),
            "autocast": self.autocast,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        self.baseline, self.autocast = state["baseline"], state["autocast"]
        self.defender.load_state_dict(state["defender"])
        self.generator.load_state_dict(state["generator"])
        self.optimizer.load_state_dict(state["generator_optimizer"])
        self.schedule.load_state_dict(state["generator_schedule"])


class GeneratorPlan(Plan):
    """Plan that applies the generator to each layer of a pass, with the layer's mask of valid keys.

    The generator is also applied for layers that are not selected: its ``l``-th application belongs to layer ``l``.
    """

    def __init__(self, players: Players, inputs: Batch) -> None:
        super().__init__()
        self.players = players
        self.inputs = inputs
        self.layer_keys = players.layers
        self._draft: Draft | None = None

    def draft(self, call: AttentionCall) -> Draft:
        """Return the generator's pass, begun at the first layer that runs."""
        if self._draft is None:
            on = torch.is_autocast_enabled(call.device.type)
            self.players.autocast = torch.get_autocast_dtype(call.device.type) if on else None
            with self.players.precision(call.device):
                self._draft = self.players.begin(self.inputs)
        return self._draft


class Attack(GeneratorPlan):
    """Plan of the attacker's training pass: samples the dropped units, and records in ``micro`` how to do so again.

    The sum of the drop probabilities, and the number of units, are added to ``probabilities``, by layer key.
    """

    def __init__(
        self, players: Players, context: StepContext, micro: Micro, probabilities: dict[str, Tensor] | None = None
    ) -> None:
        super().__init__(players, context.inputs)
        self.context = context
        self.micro = micro
        self.probabilities = {} if probabilities is None else probabilities
        self.dropped: dict[str, Tensor | None] = {}
        self._masks: list[Tensor | None] = []

    @torch.no_grad()
    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        key = call.layer.key
        if key not in self.dropped:  # activation checkpointing calls this twice
            self.micro.layers[key] = self._mask_number(call.valid)
            draft = self.draft(call)
            with self.players.precision(call.device):
                if key in self.players.selected_keys:
                    self.dropped[key] = self._act(call, draft)
                else:
                    self.players.logits(draft, call)
                    self.dropped[key] = None
        dropped = self.dropped[key]
        if dropped is None:
            return None
        heads = dropped.shape[1]
        return AttentionEdit(drop=dropped if heads == 1 else dropped.repeat_interleave(call.shape[1] // heads, 1))

    def _act(self, call: AttentionCall, draft: Draft) -> Tensor:
        key, (logits, units, dropped) = call.layer.key, self.players.act(draft, call, self.micro.key)
        self.micro.sequences = len(dropped)
        number, probabilities = number_of(units, dropped), logits.sigmoid()
        total = probabilities.sum() if units is None else (probabilities * units).sum()
        self.probabilities[key] = self.probabilities.get(key, 0) + torch.stack([total, number])
        self.context.report(key, dropped.sum(), number.long())
        return dropped

    def _mask_number(self, valid: Tensor | None) -> int:
        """Return the index of the mask of a layer among the distinct ones, which the micro-batch keeps packed."""
        for number, known in enumerate(self._masks):
            if known is valid or (known is not None and valid is not None and torch.equal(known, valid)):
                return number
        self._masks.append(valid)
        self.micro.masks.append(None if valid is None else pack(valid))
        return len(self._masks) - 1


class Decide(GeneratorPlan):
    """Plan without edits that counts the units that the generator drops with a probability above 1/2."""

    def __init__(self, players: Players, inputs: Batch) -> None:
        super().__init__(players, inputs)
        self.counts: dict[str, Tensor] = {}

    @torch.no_grad()
    def edit(self, call: AttentionCall) -> None:
        logits, units = self.players.logits(self.draft(call), call)
        if call.layer.key in self.players.selected_keys:
            dropped = logits > 0 if units is None else (logits > 0) & units
            self.counts[call.layer.key] = torch.stack([dropped.sum().float(), number_of(units, dropped)])


def number_of(units: Tensor | None, like: Tensor) -> Tensor:
    """Return the number of units, given their mask (None: all) and a tensor with one element per unit."""
    if units is None:
        return torch.full((), float(like.numel()), device=like.device)
    return units.expand(like.shape).sum().float()
