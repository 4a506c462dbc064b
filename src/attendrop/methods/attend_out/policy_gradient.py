"""The generator's training by policy gradient, on the rewards of an attacker and a defender."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attendrop.attention.edits import real_tokens
from attendrop.extend import (
    AttendropError,
    AttentionLayer,
    Batch,
    ComputeLoss,
    MethodState,
    ModelAdapter,
    StepContext,
    TrainingContext,
    evaluating,
    forked_rng,
)
from attendrop.methods.attend_out.actions import Attack, Decide, Micro, Policy, replayed
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.attend_out.scoring import check, rewards_of, scores, shared
from attendrop.methods.attend_out.second_model import SecondModel
from attendrop.methods.common.perturbations import token_uniform
from attendrop.support.models import before_step, refuse_graph, to_device

_NOISE = 0.15


class Players(Policy):
    """The generator, with its policy gradient updates, and the defender. Arguments are those of :class:`Policy`."""

    def __init__(self, method: AttendOutOptions, training: TrainingContext, *given: Any) -> None:
        super().__init__(method, training, *given)
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
            outcomes = list(replayed(self, micro))
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


class GeneratorState(MethodState):
    """Algorithm 1 of both papers: periods of steps, after which both models are scored, rewarded and merged.

    The networks are created at the first batch, which is needed to trace the embeddings, or from a checkpoint.
    """

    method: AttendOutOptions

    def __init__(self, method: AttendOutOptions, training: TrainingContext) -> None:
        super().__init__(method)
        check(method, training)
        self.training = training
        self.updates = 0
        self.period: list[list[Micro]] = [[]]
        self.probabilities: dict[str, Tensor] = {}
        self.first: dict[str, Any] = {}  # what the networks are made from, should a resumed run take no further step
        self.players: Players | None = None
        assert training.optimizer is not None
        self._hook = before_step(training.optimizer, self._step)
        self._learnt: Mapping[str, Mapping[str, Tensor]] | None = None

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        refuse_graph(context.batch)
        players = self._players(context)
        # The defender has the dropout of plain fine-tuning; the attacker then has the same.
        players.defender.backward(context, compute_loss)
        micro = Micro.of(context)
        loss, outputs = compute_loss(context.batch, Attack(players, context, micro, self.probabilities))
        players.defender.follow(loss)
        self.period[-1].append(micro)
        return loss, outputs

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if self.players is None or not self.period[-1]:
            return {}
        self.players.defender.discard()
        if len(self.period) == self.method.dropout_step:
            return self._end_period(self.players)
        self.period.append([])
        return {}

    def finish(self) -> dict[str, float]:
        steps = [step for step in self.period if step]
        if self.players is None or not steps:
            return {}
        self.period = steps
        return self._end_period(self.players)

    def state_dict(self) -> dict[str, Any]:
        if self.players is None:
            return {}
        return {"updates": self.updates, "first": self.first, **self.players.state_dict()}

    def rank_state_dict(self) -> dict[str, Any]:
        steps = [[micro.state_dict() for micro in step] for step in self.period]
        return {"period": steps, "probabilities": self.probabilities}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        if not state:
            return
        self.updates = state["updates"]
        device = next(self.training.model.parameters()).device
        self.period = [[Micro.load(found, device) for found in step] for step in rank_state["period"]]
        self.probabilities = to_device(rank_state["probabilities"], device)
        self.players = self._create({**state["first"], "inputs": to_device(state["first"]["inputs"], device)})
        self.players.load_state_dict(state)

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report ``pi`` for ``metrics.json``, see :meth:`Players.drop_fractions`."""
        if self.players is None:
            return {}
        with ModelAdapter(self.training.model) as adapter:
            return {"pruning": {"pi": self.players.drop_fractions(adapter, batches)}}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        if self.players is None:
            return {}
        return {"generator": {name: value.detach() for name, value in self.players.generator.named_parameters()}}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._learnt = tensors

    def close(self) -> None:
        self._hook.remove()
        if self.players is not None:
            self.players.defender.close()

    def _step(self) -> None:
        if self.players is not None:
            self.players.defender.step()

    def _players(self, context: StepContext) -> Players:
        if self.players is None:
            if self.method.score_on == "noisy_train" and "input_ids" not in context.batch:
                raise AttendropError(
                    f"score_on='noisy_train' masks tokens, and the batch for {type(context.model).__name__} has no "
                    "'input_ids'; use score_on='train' or 'reward_data'."
                )
            layers = [vars(layer) for layer in context.adapter.attention_layers]
            self.players = self._create(
                {"attention_layers": layers, "inputs": dict(context.inputs), "seed": context.key.seed}
            )
            if self._learnt is not None:
                if "generator" not in self._learnt:
                    raise AttendropError("The run kept no generator.safetensors, so what it drops is not known.")
                with torch.no_grad():
                    for name, parameter in self.players.generator.named_parameters():
                        parameter.copy_(self._learnt["generator"][name])
        return self.players

    def _create(self, first: dict[str, Any]) -> Players:
        self.first = first
        layers = [AttentionLayer(**layer) for layer in first["attention_layers"]]
        return Players(self.method, self.training, layers, first["inputs"], first["seed"])

    def _end_period(self, players: Players) -> dict[str, float]:
        """Score both networks, reward and update the generator, and merge the networks."""
        chance = random.Random(f"{self.period[0][0].key.seed}/{self.updates}")
        networks = self.training.model, players.defender.model
        attacker, defender = scores(self.method, self.training, networks, self._items(chance.getrandbits(62)))
        rewards = rewards_of(self.method, attacker, defender)
        metrics = {"reward": rewards.mean().item(), "period_share": len(self.period) / self.method.dropout_step}
        metrics |= players.learn(self.period, rewards)
        metrics["attacker_survived"] = float(self._merge(players.defender, attacker - defender, chance.random()))
        nothing = torch.zeros(2, device=next(self.training.model.parameters()).device)
        for layer in players.attention_layers:
            total, number = self.training.processes.total(self.probabilities.get(layer.key, nothing)).tolist()
            if number:  # 0 if the layer was skipped in the whole period
                metrics[f"drop_probability/{layer.key}"] = total / number
        self.updates += 1
        self.probabilities, self.period = {}, [[]]
        return metrics

    def _merge(self, defender: SecondModel, gaps: Tensor, chance: float) -> bool:
        """Replace both networks by the survivor; returns whether that is the attacker.

        It depends on the ``gaps``, the scores of the attacker less those of the defender on each item, and on
        ``chance``, a random number from [0, 1).
        """
        match self.method.merge:
            case "attacker":
                survives = True
            case "best":
                survives = bool(gaps.mean() >= 0)
            case "confidence":
                survives = chance < _confidence(gaps)
            case _:
                # Softmax of two numbers, without overflow.
                survives = chance < torch.sigmoid(gaps.mean() / self.method.temperature).item()
        if survives:
            defender.take_from_first()
        else:
            defender.give_to_first()
        return survives

    def _items(self, seed: int) -> list[list[Batch]]:
        """Return this process's part of the batches to score on, for each step of the period."""
        if self.method.score_on == "train":
            return [[micro.batch for micro in step] for step in self.period]
        if self.method.score_on == "noisy_train":
            return [[self._noisy(micro) for micro in step] for step in self.period]
        assert self.training.reward_data is not None
        sampled = self.training.reward_data.sample(seed, len(self.period), self.method.reward_batch_size)
        return shared(sampled, self.training)

    def _noisy(self, micro: Micro) -> Batch:
        """Mask tokens of a micro-batch at random, whatever its padding and its part of the global batch."""
        tokens = micro.batch["input_ids"]
        valid = real_tokens(micro.batch.get("attention_mask"), tokens.view(-1, tokens.shape[-1]))
        sampled = token_uniform(micro.key, "noise", valid)
        noise = (sampled < _NOISE).view(tokens.shape)
        for special in self.training.special_tokens:
            noise &= tokens != special
        assert self.training.mask_token is not None
        return micro.batch | {"input_ids": tokens.masked_fill(noise, self.training.mask_token)}


def _confidence(gaps: Tensor) -> float:
    """Estimate the probability that the expectation of ``gaps`` is above 0; one half if all gaps are 0."""
    mean, error = gaps.mean(), gaps.std(correction=min(1, len(gaps) - 1)) / len(gaps) ** 0.5
    return float(torch.special.ndtr(torch.nan_to_num(mean / error, nan=0.0)))
