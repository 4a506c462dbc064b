"""Learner ``"policy_gradient"``: the papers' generator, beside the defender."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attendrop.extend import (
    AttendropError,
    Batch,
    ModelAdapter,
    StepContext,
    TrainingContext,
    evaluating,
    forked_rng,
)
from attendrop.methods.attend_out.attacker import Attack, Count, Decide, FirstBatch, Micro, Policy, replayed
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.attend_out.second_model import second_model


class GeneratorPlayers(Policy):
    """The generator, with its policy gradient updates, and the defender.

    Args:
        method: The options.
        training: The attacker and its optimizer.
        first: The first batch.
    """

    def __init__(self, method: AttendOutOptions, training: TrainingContext, first: FirstBatch) -> None:
        super().__init__(method, training, first)
        self.defender = second_model(method, training)
        self.baseline = 0.0
        self.learned = [parameter for parameter in self.generator.parameters() if parameter.requires_grad]
        rate = method.generator_learning_rate
        self.optimizer = torch.optim.AdamW(self.learned, lr=rate, weight_decay=0.0)
        lessons = -(-(training.total_steps or 1) // method.dropout_step)
        linear = method.generator_schedule == "linear"
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda lesson: max(0.0, 1 - lesson / lessons) if linear else 1.0
        )

    def attack(self, context: StepContext, micro: Micro, count: Count) -> Attack:
        """Return the plan of the attacker's pass; ``count`` is called with the probabilities of each layer."""
        return Attack(self, context, micro, count)

    def learn(
        self, period: Sequence[Sequence[Micro]], rewards: Tensor, total: Callable[[Tensor], Tensor]
    ) -> dict[str, float]:
        """Learn from a period; return metrics to log.

        Args:
            period: Micro-batches of each step.
            rewards: Reward of each step, ``(steps,)``, the same in all processes.
            total: Sums a tensor over the processes.
        """
        mean = rewards.mean()
        paired = rewards if self.method.credit == "step" else mean.expand(len(rewards))
        baseline = self.baseline
        objective = self.teach(period, paired - baseline, total)
        decay = self.method.baseline_decay
        self.baseline = decay * baseline + (1 - decay) * mean.item()
        return {"baseline": baseline, "generator_loss": objective}

    def final_report(self, model: torch.nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report ``pi`` for ``metrics.json``, see :meth:`drop_fractions`."""
        adapter = ModelAdapter(model)
        adapter.attach()
        try:
            return {"pruning": {"pi": self.drop_fractions(adapter, batches)}}
        finally:
            adapter.detach()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"generator": {name: value.detach() for name, value in self.generator.named_parameters()}}

    @torch.no_grad()
    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        if "generator" not in tensors:
            raise AttendropError("The run kept no generator.safetensors, so what it drops is not known.")
        for name, parameter in self.generator.named_parameters():
            parameter.copy_(tensors["generator"][name])

    def teach(self, period: Sequence[Sequence[Micro]], advantages: Tensor, total: Callable[[Tensor], Tensor]) -> float:
        """Take one policy gradient step; returns the objective.

        ``- sum over steps of the mean over sequences of advantage * mean over units of log P(action)``: Eq. 5 of the
        dropout paper, Eq. 4 of the pruning paper. The mean is over the valid units of a sequence, in all layers.
        """
        device = next(self.generator.parameters()).device
        counts = torch.tensor([sum(micro.sequences for micro in step) for step in period], device=device)
        sequences: list[int] = total(counts).tolist()
        objective = torch.zeros((), device=device)
        for step, advantage, number in zip(period, advantages.tolist(), sequences, strict=True):
            for micro in step:
                if not micro.sequences:
                    continue
                lesson = -advantage * self.log_likelihood(micro).sum() / number
                lesson.backward()
                objective += lesson.detach()
        for parameter in self.learned:
            if parameter.grad is not None:
                parameter.grad.copy_(total(parameter.grad))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return float(total(objective))

    def log_likelihood(self, micro: Micro) -> Tensor:
        """Compute the mean log-probability of the actions of each sequence, over its units in all layers.

        Skipped layers are excluded.
        """
        device = next(self.generator.parameters()).device
        with self.precision(device):
            outcomes = list(replayed(self, micro))
        total = number = torch.zeros((), device=device)
        for outcome in outcomes:
            likelihood = functional.logsigmoid(torch.where(outcome.dropped, outcome.logits, -outcome.logits))
            if outcome.units is not None:
                likelihood = likelihood * outcome.units
                number = number + outcome.units.expand(likelihood.shape).sum((1, 2, 3))
            else:
                number = number + likelihood[0].numel()
            total = total + likelihood.sum((1, 2, 3))
        return total / number.clamp(min=1)

    def drop_fractions(self, adapter: ModelAdapter, batches: Iterable[Batch]) -> dict[str, float]:
        """Compute the fraction of each layer's units that the generator drops with a probability above 1/2.

        This is ``pi`` of the pruning paper.

        Args:
            adapter: The attached model.
            batches: Calibration data, on the model's device.
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
        return {
            "baseline": self.baseline,
            "defender": self.defender.state_dict(),
            "generator": self.generator.state_dict(),
            "generator_optimizer": self.optimizer.state_dict(),
            "generator_schedule": self.schedule.state_dict(),
            "autocast": self.autocast,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baseline = state["baseline"]
        self.defender.load_state_dict(state["defender"])
        self.generator.load_state_dict(state["generator"])
        self.optimizer.load_state_dict(state["generator_optimizer"])
        self.schedule.load_state_dict(state["generator_schedule"])
        self.autocast = state["autocast"]
