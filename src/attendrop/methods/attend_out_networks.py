"""Networks of AttendOut: the generator of drop logits, with its actions and their learning, and the second model."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from attendrop.attention.blocks import block_of
from attendrop.attention.hooks import ModuleHooks
from attendrop.attention.layers import select_self_attention
from attendrop.attribution.finite_gradients import all_true, is_finite
from attendrop.extend import (
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Batch,
    ComputeLoss,
    DroppedScores,
    Plan,
    RandomMaskPlan,
    SampleKey,
    StepContext,
    TrainingContext,
    evaluating,
    forked_rng,
    sample_mask,
)
from attendrop.methods.core.context import LayerCounts, RunningStatistics
from attendrop.randomness.candidates import pack, unpack
from attendrop.support.models import skips_step, to_device, trained_tensors, transformers_model

if TYPE_CHECKING:
    from attendrop.extend import ModelAdapter


class Generator(nn.Module):
    """G-Net, section 4.1 of both papers: a trained copy of the model's embeddings, and one attention layer.

    The layer (query, key, value and output projection, residual, LayerNorm; no dropout, no output layer) is applied
    once for each attention layer of the model. The scores of its ``l``-th application, ``(batch, heads, n, n)``, are
    the logits of dropping in the model's layer ``l``. ``method`` is an :class:`attendrop.AttendOut`; ``first_layer`` is
    the name of the model's first attention module, ``inputs`` are some that the model accepts.
    """

    bias: Tensor

    def __init__(
        self, model: nn.Module, first_layer: str, inputs: Batch, method: Any, heads: int = 1, seed: int = 0
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
        if method.generator_feed_forward:
            self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.feed_forward_norm = nn.LayerNorm(width)
        bias = torch.tensor(math.log(method.init_drop_prob / (1 - method.init_drop_prob)))
        if method.learn_bias:
            self.bias = nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias, persistent=False)
        random = torch.Generator().manual_seed(seed)
        for module in self.children():
            if module is not self.embeddings:
                for part in module.modules():
                    if isinstance(part, nn.Linear):
                        nn.init.normal_(part.weight, std=0.02, generator=random)
                        nn.init.zeros_(part.bias)
                module.to(example.device, self.dtype)
        self.bias.data = self.bias.data.to(example.device)
        self.eval()  # no dropout, including in the embeddings

    def split(self, projected: Tensor) -> Tensor:
        """Divide a projection, ``(batch, n, width)``, among the heads: ``(batch, heads, n, dim)``."""
        return projected.view(*projected.shape[:2], self.heads, -1).transpose(1, 2)


class Draft:
    """One pass of the generator over a batch, evaluated for layers of the model in ascending order."""

    def __init__(self, generator: Generator, inputs: Batch) -> None:
        self.generator = generator
        self.hidden: Tensor = generator.embeddings(inputs).to(generator.dtype)
        self.applications = 0
        self._scores: Tensor | None = None
        self._valid: Tensor | None = None
        self._hidden: Tensor | None = None  # those of the last application that are not valid

    def scores(self, layer: int, valid: Tensor | None) -> Tensor:
        """Compute the scores of a layer, ``(batch, heads, n, n)``, the drop logits but for the bias.

        The generator is also applied for the layers since the previous call, with the same ``valid`` keys.
        """
        own = self.generator
        while self.applications <= layer:
            if self._scores is not None:  # attend with the scores of the last application
                scores = self._scores
                if self._hidden is not None:
                    scores = scores.masked_fill(self._hidden, torch.finfo(scores.dtype).min)
                weights = functional.softmax(scores, dim=-1, dtype=own.dtype)
                value = own.split(own.value(self.hidden))
                attended = (weights.to(value.dtype) @ value).transpose(1, 2).flatten(2)
                self.hidden = own.norm(self.hidden + own.output(attended))
                if own.feed_forward is not None:
                    self.hidden = own.feed_forward_norm(self.hidden + own.feed_forward(self.hidden))
            query, key = own.split(own.query(self.hidden)), own.split(own.key(self.hidden))
            self._scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
            if valid is not self._valid:
                self._valid, self._hidden = valid, None if valid is None else ~valid
            self.applications += 1
        assert self._scores is not None
        return self._scores


class Embeddings(nn.Module):
    """Trainable copy of the computation before a model's first attention layer, ``(batch, n, width)``.

    A copy of the model runs up to that layer, with copies of the weights that this needs: positions, types, projections
    and normalisation are those of the model's family.
    """

    def __init__(self, model: nn.Module, first_layer: str, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        own = transformers_model(model)
        first = model.get_submodule(first_layer.partition("#")[0])
        name = next(name for name, module in own.named_modules() if module is first)
        self.model = plain_copy(own, shared=own.parameters()).eval()
        block = block_of(self.model, name) or self.model.get_submodule(name)

        def leave(*args: Any, **kwargs: Any) -> None:
            raise _ReachedError(args[0] if args else kwargs["hidden_states"])

        block.forward = leave
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


@dataclass
class Micro:
    """One micro-batch of a period, with all that is needed to sample its masks again, which would take more memory."""

    batch: dict[str, Any]  # with labels
    inputs: dict[str, Any]  # what the model receives
    key: SampleKey
    sequences: int = 0  # in attention: more than rows in multiple choice, 0 if all layers were skipped
    masks: list[tuple[Tensor, tuple[int, ...]] | None] = field(default_factory=list)  # distinct ones of valid keys
    layers: dict[str, int] = field(default_factory=dict)  # index of the mask of each layer that ran, in order


class Outcome(NamedTuple):
    """The generator's action on one layer."""

    logits: Tensor  # of dropping each unit, (batch, heads, n, n); dimensions that a unit spans have size 1
    units: Tensor  # broadcastable mask of the units: valid keys in rows that hold tokens
    dropped: Tensor  # mask of the dropped units
    probabilities: Tensor  # of dropping each unit, without gradient


class Players:
    """The generator, with its policy gradient updates, the layers in which it drops, and the defender.

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
        config: Any = next(each.config for each in (attention, *training.model.modules()) if hasattr(each, "config"))
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
            self.generator = Generator(training.model, every[0].name, inputs, method, own_heads, seed)
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

    def logits(self, draft: Draft, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Compute the logits of dropping each unit of a call's layers, and the mask of units; see :class:`Outcome`.

        They are in float32, or in float64 for a float64 model.
        """
        valid = None if call.valid is None else call.valid[: call.shape[0] // len(call.layers)]
        found, rows = [draft.scores(layer.index, valid) for layer in call.layers], call.valid_queries()
        scores = torch.cat(found) if len(found) > 1 else found[0]
        logits = scores.to(self.generator.dtype) + self.generator.bias
        positions = call.valid if rows is None or call.valid is None else call.valid & rows
        if positions is None:
            positions = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device)
        if self.method.granularity == "score":
            return logits, positions
        spanned = (2, 3) if self.method.granularity == "head" else (1, 2, 3)
        positions = positions.expand(logits.shape)
        counts = positions.sum(spanned, keepdim=True).clamp(min=1)
        mean = (logits * positions).sum(spanned, keepdim=True) / counts
        return mean, torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device)

    def act(self, draft: Draft, call: AttentionCall, key: SampleKey) -> Outcome:
        """Sample the dropped units of a call's layers, a function of the key."""
        logits, units = self.logits(draft, call)
        origins = call.origins() if self.method.granularity == "score" else None
        names, (batch, heads, queries, keys) = [layer.key for layer in call.layers], logits.shape
        probabilities = logits.detach().sigmoid()
        dropped = sample_mask(probabilities, key, names, (batch, heads, queries, keys), origins, call.device)
        return Outcome(logits, units, dropped & units, probabilities)

    def replayed(self, micro: Micro) -> Iterator[Outcome]:
        """Repeat the generator's actions of a pass, with gradients, on each selected layer that ran."""
        draft = Draft(self.generator, micro.inputs)
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
        """Compute the mean log-probability of the actions of each sequence, over its units in all layers that ran."""
        device = next(self.generator.parameters()).device
        with self.precision(device):
            outcomes = list(self.replayed(micro))
        total = number = torch.zeros((), device=device)
        for logits, units, dropped, _ in outcomes:
            likelihood = functional.logsigmoid(torch.where(dropped, logits, -logits)) * units
            number = number + units.expand(likelihood.shape).sum((1, 2, 3))
            total = total + likelihood.sum((1, 2, 3))
        return total / number.clamp(min=1)

    def drop_fractions(self, adapter: ModelAdapter, batches: Iterable[Batch]) -> dict[str, float]:
        """Compute the fraction of each layer's units whose drop probability is above 1/2: the paper's ``pi``."""
        counts: dict[str, Tensor] = {}
        with torch.no_grad(), evaluating(adapter.model), forked_rng(adapter.model):
            for batch in batches:
                adapter.trace(batch)
                decide = Decide(self, Draft(self.generator, batch), self.layers)
                adapter.forward(batch, decide)
                counts = {key: pair + counts.get(key, 0) for key, pair in decide.counts.items()}
        return {key: (pair[0] / pair[1].clamp(min=1)).item() for key, pair in counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values."""
        return {
            "baseline": self.baseline,
            "defender": {name: tensor.detach() for name, tensor in trained_tensors(self.defender.model).items()},
            "defender_optimizer": self.defender.optimizer.state_dict(),
            "generator": self.generator.state_dict(),
            "generator_optimizer": self.optimizer.state_dict(),
            "generator_schedule": self.schedule.state_dict(),
            "autocast": self.autocast,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        self.baseline, self.autocast = state["baseline"], state["autocast"]
        _copy_tensors(state["defender"], trained_tensors(self.defender.model))
        self.defender.optimizer.load_state_dict(state["defender_optimizer"])
        self.generator.load_state_dict(state["generator"])
        self.optimizer.load_state_dict(state["generator_optimizer"])
        self.schedule.load_state_dict(state["generator_schedule"])


class Attack(RandomMaskPlan):
    """Plan of the attacker's training pass: samples the dropped units, and records in ``micro`` how to do so again.

    The generator is applied to each layer, also to those that are not selected. ``probabilities`` counts the sum of the
    drop probabilities, and the number of units, by layer key.
    """

    def __init__(
        self, players: Players, context: StepContext, micro: Micro, probabilities: RunningStatistics | None = None
    ) -> None:
        super().__init__(players.method, context, keys=players.selected_keys, drops=Attack.decide)  # type: ignore[arg-type]
        self.players = players
        self.micro = micro
        self.probabilities = RunningStatistics() if probabilities is None else probabilities
        self.probabilities.passes += 1
        self._totals: dict[str, LayerCounts] = {}  # what is counted of each layer, if it runs
        self._masks: list[Tensor | None] = []
        self._draft: Draft | None = None  # begun at the first layer that runs, where the model's precision shows

    def wants(self, layer: AttentionLayer) -> bool:
        return layer.key in self.players.layers

    @torch.no_grad()
    def edit(self, call: AttentionCall) -> AttentionEdit | None:  # type: ignore[override]
        players, key, valid, edit = self.players, call.layer.key, call.valid, None
        if key in self.micro.layers:  # activation checkpointing calls this twice
            return super().edit(call) if key in players.selected_keys else None
        if self._draft is None:
            on = torch.is_autocast_enabled(call.device.type)
            players.autocast = torch.get_autocast_dtype(call.device.type) if on else None
        with players.precision(call.device):
            self._draft = self._draft or Draft(players.generator, self.context.inputs)
            if key in players.selected_keys:
                edit = super().edit(call)
                self._totals[key].ran.add(self._totals[key].names.index(key))
            else:
                players.logits(self._draft, call)
        for index, known in enumerate(self._masks):  # distinct ones, which the micro-batch keeps packed
            if known is valid or (known is not None and valid is not None and torch.equal(known, valid)):
                self.micro.layers[key] = index
                break
        else:
            self.micro.layers[key] = len(self._masks)
            self._masks.append(valid)
            self.micro.masks.append(None if valid is None else pack(valid))
        return edit

    def decide(self, call: AttentionCall) -> DroppedScores:
        """Sample what to drop in the layers of a call."""
        assert self._draft is not None
        players = self.players
        if self._draft.applications > call.layer.index + 1:  # decided ahead for another mask of keys: begin again
            self._draft = Draft(players.generator, self.context.inputs)
            for key, index in self.micro.layers.items():
                self._draft.scores(players.layers[key].index, self._masks[index])
        _, units, dropped, probabilities = players.act(self._draft, call, self.micro.key)
        names = [layer.key for layer in call.layers]
        total, number, count = (
            each.reshape(len(names), -1).sum(1, dtype=torch.float64)  # as a resumed run has them
            for each in (probabilities * units, units.expand(dropped.shape), dropped)
        )
        totals, self._counts = LayerCounts(names, torch.stack([total, number], -1)), (count, number)
        self.probabilities.count(totals)
        self._totals |= dict.fromkeys(names, totals)
        self.micro.sequences = len(dropped) // len(call.layers)
        if dropped.shape[1] > 1:
            dropped = dropped.repeat_interleave(call.shape[1] // dropped.shape[1], 1)
        return DroppedScores(dropped)

    def _report(self, call: AttentionCall, *_: Any, **__: Any) -> LayerCounts:
        """Count units, which may be whole heads, in place of positions."""
        return self.context.report_layers([layer.key for layer in call.layers], *self._counts)


@dataclass(eq=False)
class Decide(Plan):
    """Plan without edits that counts the units that the generator drops with a probability above 1/2."""

    players: Players
    draft: Draft
    layer_keys: Collection[str] = ()
    counts: dict[str, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def edit(self, call: AttentionCall) -> None:
        logits, units = self.players.logits(self.draft, call)
        if call.layer.key in self.players.selected_keys:
            dropped = (logits > 0) & units
            self.counts[call.layer.key] = torch.stack([dropped.sum(), units.expand(dropped.shape).sum()]).float()


Pair = tuple[nn.Parameter, nn.Parameter]
# Gradients of the second model that are weighted together: what is made of them takes memory before they are freed.
_AT_A_TIME = 64


class SecondModel:
    """Copy of the trained model, on the same batches, with its own optimizer, which steps before the first model's.

    Frozen parameters are shared with the first model, unless the copy is on another ``device``. The gradients of each
    micro-batch have the same weight as the first model's, read from the gradient that reaches its loss. All settings of
    the optimizer are the first model's at that step; gradients are clipped by their own norm. ``pairs`` are the
    parameters of the first model, each with that of the copy.
    """

    def __init__(self, training: TrainingContext, device: str) -> None:
        from attendrop.attention.padding import leave_out_padding  # imports transformers

        assert training.optimizer is not None
        self.training = training
        self.first = training.model
        own = {"forward": None} | vars(self.first)
        forward = own.get("_original_forward", own["forward"])  # accelerate wraps that one
        if forward is not None and getattr(forward, "__func__", None) is not type(self.first).forward:
            raise AttendropError(
                f"The forward pass of {type(self.first).__name__} was replaced, as by trl's trainers, and a copy of "
                "the model, which AttendOut trains as well, would run without it; use another method."
            )
        self.first_optimizer = training.optimizer
        here = next(self.first.parameters()).device
        there = here
        if device:
            rank = training.processes.world_size + training.processes.rank
            there = torch.device("cuda", rank) if device == "next" else torch.device(device)
            known = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
            count = torch.accelerator.device_count() if known is not None and known.type == there.type else 0
            if there.type != "cpu" and (there.index or 0) >= count:
                raise AttendropError(
                    f"defender_device={device!r}: there is no device {there}; this machine has {count} of type "
                    f"{there.type}. Leave the option empty to train both models on the same device."
                )
        elsewhere = there != here
        frozen = [parameter for parameter in self.first.parameters() if not parameter.requires_grad]
        self.model: nn.Module = plain_copy(self.first, shared=() if elsewhere else frozen)
        self.model.to(there)
        if training.leaves_out_padding:
            leave_out_padding(self.model)
        self.device = next(self.model.parameters()).device
        self.pairs: list[Pair] = list(zip(self.first.parameters(), self.model.parameters(), strict=True))
        counterpart: dict[Any, nn.Parameter] = dict(self.pairs)
        groups = self.first_optimizer.param_groups
        if lost := [p for group in groups for p in group["params"] if p not in counterpart]:
            raise AttendropError(
                f"The optimizer has a parameter of shape {tuple(lost[0].shape)} that is not in the model; pass the "
                "model and its own optimizer to regularize."
            )
        # torch copies the settings and groups of an optimizer, but no hooks and no wrappers of a scheduler.
        self.optimizer = twin = copy.copy(self.first_optimizer)
        twin.param_groups = [{**group, "params": [counterpart[p] for p in group["params"]]} for group in groups]
        twin.state = defaultdict(dict)
        for name, value in vars(self.first_optimizer).items():  # further attributes of an optimizer class
            if name not in vars(twin) and name != "step":
                setattr(twin, name, value)
        _copy_state(self.first_optimizer, twin, self.pairs)
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._frozen = {id(parameter) for parameter in frozen}
        self._found: list[Tensor | None] = []
        self._loss_scale = 1.0
        self._before_step = training.act_on_second_model(self.model)

    def backward(self, context: StepContext, compute_loss: ComputeLoss) -> None:
        """Compute the gradients of one micro-batch, with the first model's random numbers; see :meth:`follow`."""
        if not torch.is_grad_enabled():
            raise AttendropError(
                "The loss also trains a second model, and gradients are off: switch them on to train, or call "
                "model.eval() to evaluate."
            )
        changed = [name for name, p in self.first.named_parameters() if p.requires_grad == (id(p) in self._frozen)]
        if changed:
            raise AttendropError(
                f"{changed[0]!r} was frozen or unfrozen after AttendOut had copied the model, and the copy trains the "
                "same parameters; choose what is frozen before training."
            )
        for theirs, ours in zip(self.first.modules(), self.model.modules(), strict=True):
            ours.training = theirs.training
        with forked_rng(self.first):
            if self.device != next(self.first.parameters()).device:  # whose random state is not in checkpoints
                seed = context.key.seeds("defender", context.key.rows)[0] % 2**63
                if self.device.type == "cpu":
                    torch.default_generator.manual_seed(seed)
                if self.device.type == "cuda":
                    with torch.cuda.device(self.device):
                        torch.cuda.manual_seed(seed)
            loss, _ = compute_loss(to_device(context.batch, self.device), None, self.model)
            self._loss_scale = context.loss_scale
            self._found = list(torch.autograd.grad(loss * self._loss_scale, self._trained, allow_unused=True))

    def follow(self, loss: Tensor) -> None:
        """Accumulate the gradients of the micro-batch with the weight that the loop gives to the first model's loss."""
        found, self._found = self._found, []
        if loss.requires_grad:
            loss.register_hook(lambda weight: self._add(found, weight))  # type: ignore[no-untyped-call]

    def discard(self) -> None:
        """Discard all gradients, including those of a step that the first model skipped under float16."""
        for parameter in self._trained:
            parameter.grad = None

    def merge(self, *, first_survives: bool) -> None:
        """Copy weights and optimizer state of the model that survives to the other one."""
        if first_survives:
            _copy_tensors(trained_tensors(self.first), trained_tensors(self.model))
            _copy_state(self.first_optimizer, self.optimizer, self.pairs)
        else:
            _copy_tensors(trained_tensors(self.model), trained_tensors(self.first))
            _copy_state(self.optimizer, self.first_optimizer, [(theirs, ours) for ours, theirs in self.pairs])

    @torch.no_grad()
    def _add(self, found: list[Tensor | None], weight: Tensor) -> None:
        """Accumulate gradients, given that of the first model's loss: the loop's factor times the loss scale."""
        if not found:
            raise AttendropError(
                "The loss was differentiated twice, and the gradients of the second model are freed after the first "
                "time; differentiate it once."
            )
        factor = weight.to(self.device)
        if self._loss_scale != 1:  # the gradients found include the scale, too
            factor = factor / self._loss_scale**2
        while found:
            # Some at a time take few kernels; they are freed then, although the hook lives as long as the loss.
            first = max(0, len(found) - _AT_A_TIME)
            by_dtype: dict[torch.dtype, list[tuple[nn.Parameter, Tensor]]] = {}
            for parameter, gradient in zip(self._trained[first:], found[first:], strict=False):
                if gradient is not None:
                    by_dtype.setdefault(gradient.dtype, []).append((parameter, gradient))
            del found[first:]
            for dtype, pairs in by_dtype.items():
                weighted = torch._foreach_mul([gradient for _, gradient in pairs], factor.to(dtype))
                for (parameter, _), gradient in zip(pairs, weighted, strict=True):
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def step(self) -> None:
        """Take a step, unless the first model skips its own; called just before that."""
        if skips_step(self.first_optimizer):
            return self.discard()
        processes = self.training.processes
        if processes.world_size > 1:  # a parameter that one process used is reduced by all
            used = processes.total(torch.tensor([float(each.grad is not None) for each in self._trained]))
            for parameter, processes_of_it in zip(self._trained, used.tolist(), strict=True):
                if processes_of_it and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        if not gradients:
            return
        if processes.world_size > 1:
            for gradient in gradients:
                gradient.copy_(processes.total(gradient) / processes.world_size)
        if self._loss_scale == 1 or all_true(map(is_finite, gradients)):
            if self.training.max_grad_norm is not None:
                clip_grad_norm_(self._trained, self.training.max_grad_norm)
            for ours, theirs in zip(self.optimizer.param_groups, self.first_optimizer.param_groups, strict=True):
                ours.update({name: value for name, value in theirs.items() if name != "params"})
            self._before_step()
            self.optimizer.step()
        self.discard()


@torch.no_grad()
def _copy_tensors(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _copy_state(source: Optimizer, target: Optimizer, pairs: Sequence[Pair]) -> None:
    """Copy the state of the first parameter of each pair to the second; what is on its device goes to the other's."""
    for theirs, ours in pairs:
        target.state.pop(ours, None)
        for name, value in source.state.get(theirs, {}).items():
            if isinstance(value, Tensor):
                device = ours.device if value.device == theirs.device else value.device
                target.state[ours][name] = value.detach().to(device, copy=True)
            else:
                target.state[ours][name] = copy.deepcopy(value)


def plain_copy(model: nn.Module, shared: Iterable[nn.Parameter] = ()) -> Any:
    """Copy a model except for ``shared`` parameters, without accelerate's wrapper of ``forward`` of the original."""
    copied = copy.deepcopy(model, {id(parameter): parameter for parameter in shared})
    for name in ("forward", "_original_forward"):
        copied.__dict__.pop(name, None)
    return copied
