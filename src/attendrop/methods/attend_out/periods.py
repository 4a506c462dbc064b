"""State of an AttendOut run: periods of steps, rewards, generator updates and merging."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    AttendropError,
    Batch,
    ComputeLoss,
    MethodState,
    StepContext,
    TrainingContext,
    forked_rng,
    sample_mask,
)
from attendrop.methods.attend_out.attacker import FirstBatch, Micro, number_of
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.attend_out.policy_gradient import GeneratorPlayers
from attendrop.methods.attend_out.scoring import check, scores, shared
from attendrop.methods.attend_out.second_model import SecondModel, seed_elsewhere
from attendrop.model_support.batches import refuse_graph, to_device

_NOISE = 0.15


class GeneratorState(MethodState):
    """Algorithm 1 of both papers, for one model.

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
        self.first: FirstBatch | None = None
        self.players: GeneratorPlayers | None = None
        self._finished: tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]] | None = None

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        refuse_graph(context.batch)
        players = self._players(context)
        defender = players.defender
        defender.follow_mode()
        # The defender has the dropout of plain fine-tuning; the attacker then has the same.
        with forked_rng(self.training.model):
            seed_elsewhere(defender, context.key)
            batch = to_device(context.batch, defender.device)
            defender.backward(compute_loss(batch, None, defender.model)[0], context.loss_scale)
        micro = Micro(dict(context.batch), list(context.inputs), context.key)
        loss, outputs = compute_loss(context.batch, players.attack(context, micro, self._count))
        defender.follow(loss)
        self.period[-1].append(micro)
        return loss, outputs

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if self.players is None or not self.period[-1]:
            return {}
        self.players.defender.discard()
        if len(self.period) == self.method.dropout_step:
            return self._dropout_step(self.players)
        self.period.append([])
        return {}

    def finish(self) -> dict[str, float]:
        steps = [step for step in self.period if step]
        if self.players is None or not steps:
            return {}
        self.period = steps
        return self._dropout_step(self.players)

    def state_dict(self) -> dict[str, Any]:
        if self.players is None or self.first is None:
            return {}
        return {"updates": self.updates, "first": self.first.state_dict(), **self.players.state_dict()}

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
        self.players = self._create(FirstBatch.load(state["first"], device))
        self.players.load_state_dict(state)

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        return {} if self.players is None else self.players.final_report(self.training.model, batches)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {} if self.players is None else self.players.tensors()

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._finished = metrics, tensors

    def close(self) -> None:
        if self.players is not None:
            self.players.defender.close()

    def _count(self, key: str, probabilities: Tensor, units: Tensor | None) -> None:
        """Accumulate the drop probabilities of one layer over its units."""
        total = probabilities.sum() if units is None else (probabilities * units).sum()
        pair = torch.stack([total, number_of(units, probabilities)])
        self.probabilities[key] = self.probabilities.get(key, torch.zeros_like(pair)) + pair

    def _players(self, context: StepContext) -> GeneratorPlayers:
        if self.players is None:
            if self.method.score_on == "noisy_train" and "input_ids" not in context.batch:
                raise AttendropError(
                    f"score_on='noisy_train' masks tokens, and the batch for {type(context.model).__name__} has no "
                    "'input_ids'; use score_on='train' or 'reward_data'."
                )
            self.players = self._create(FirstBatch.of(context))
            if self._finished is not None:
                self.players.restore(*self._finished)
        return self.players

    def _create(self, first: FirstBatch) -> GeneratorPlayers:
        self.first = first
        return GeneratorPlayers(self.method, self.training, first)

    def _dropout_step(self, players: GeneratorPlayers) -> dict[str, float]:
        """End a period: score both networks, reward and update the generator, and merge the networks."""
        seed = self.period[0][0].key.seed
        chance = random.Random(f"{seed}/{self.updates}")
        attacker, defender = scores(
            self.method,
            self.training,
            (self.training.model, players.defender.model),
            self._items(chance.getrandbits(62)),
        )
        rewards = attacker - defender if self.method.reward == "difference" else (attacker - defender).sign()
        metrics = {"reward": rewards.mean().item(), "period_share": len(self.period) / self.method.dropout_step}
        metrics |= players.learn(self.period, rewards, self.training.processes.total)
        survived = self._merge(players.defender, attacker, defender, chance.random())
        metrics["attacker_survived"] = float(survived)
        nothing = torch.zeros(2, device=next(self.training.model.parameters()).device)
        for layer in players.attention_layers:
            total, number = self.training.processes.total(self.probabilities.get(layer.key, nothing)).tolist()
            if number:  # 0 if the layer was skipped in the whole period
                metrics[f"drop_probability/{layer.key}"] = total / number
        self.updates += 1
        self.probabilities = {}
        self.period = [[]]
        return metrics

    def _merge(self, defender: SecondModel, attacked: Tensor, defended: Tensor, chance: float) -> bool:
        """Replace both networks by the survivor; returns whether that is the attacker.

        Args:
            defender: The second network.
            attacked: Scores of the attacker on each item.
            defended: Scores of the defender on each item.
            chance: Random number from [0, 1).
        """
        gaps = attacked - defended
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
        mask = micro.batch.get("attention_mask")
        valid = torch.ones_like(tokens) if mask is None or mask.shape != tokens.shape else mask
        sequences, length = tokens[..., 0].numel(), tokens.shape[-1]
        first = valid.view(sequences, length).bool().int().argmax(-1)
        origins = torch.stack([torch.zeros_like(first), first], -1)
        shape = (sequences, 1, 1, length)
        noise = sample_mask(_NOISE, micro.key, "noise", shape, origins, tokens.device).view(tokens.shape)
        for special in self.training.special_tokens:
            noise &= tokens != special
        assert self.training.mask_token is not None
        return micro.batch | {"input_ids": tokens.masked_fill(noise, self.training.mask_token)}


def _confidence(gaps: Tensor) -> float:
    """Estimate the probability that the expectation of ``gaps`` is above 0; one half if all gaps are 0."""
    mean, error = gaps.mean(), gaps.std(correction=min(1, len(gaps) - 1)) / len(gaps) ** 0.5
    return float(torch.special.ndtr(torch.nan_to_num(mean / error, nan=0.0)))
