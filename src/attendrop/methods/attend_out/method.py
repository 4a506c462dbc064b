"""AttendOut: an attacker, a defender, and a generator that learns which attention to drop."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attendrop.extend import (
    DECIDES_PASSES,
    EXCHANGES_WEIGHTS,
    SCORES_ROWS,
    SECOND_MODEL,
    LayerRanking,
    MethodInfo,
    MethodState,
    Preset,
    TrainingContext,
)
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.attend_out.policy_gradient import GeneratorState

_LOGGED = ("reward", "baseline", "generator_loss", "period_share")


@dataclass(frozen=True)
class AttendOut(AttendOutOptions):
    """Attention dropout learnt from rewards.

    Two copies of the model train on the same batches: the defender with the model's own dropout only, the attacker
    with additional dropout of attention. Every ``dropout_step`` optimizer steps, a period, both are scored, and the
    attacker's advantage rewards the generator of that dropout.

    The model is the attacker; a generator network, trained by policy gradient, gives each attention score its
    probability of being dropped, and both models are merged after each period. Takes about 1.7 times the memory of
    fine-tuning, and a step 2.5 times its time. Needs the model's optimizer and labelled rows to score on; both are
    provided by :class:`attendrop.RegularizedTrainer`.

    Example:
        >>> with regularize(model, AttendOut(), optimizer=optimizer, reward_data=loader, total_steps=500) as reg:
        ...     reg.loss(batch).backward()  # also computes the second model's gradients
        ...     optimizer.step()  # also steps the second model
        ...     optimizer.zero_grad()
        ...     reg.step()  # every ``dropout_step`` steps: score, reward, and start the next period

    Args:
        variant: ``"dropout"`` (Wu et al. 2021) or ``"pruning"`` (the self-pruning version): sets the defaults of
            ``score_on`` and ``merge``.
        score_on: Data on which both models are scored. ``"reward_data"``: items sampled from it, one per step; the
            dropout version. ``"train"``: the training batches of the period; the pruning version. ``"noisy_train"``:
            these with 15 % of their tokens masked.
        reward_data: ``"split"``: ``reward_fraction`` of the training rows, held out. ``"eval"``: the development set,
            as in the paper; results on it are then biased. In your own loop, the rows that you pass.
        reward_fraction: See ``reward_data``.
        reward_batch_size: Number of examples in an item. The paper uses 1; more give rewards of lower variance.
        score: Score of an item: ``"loss"``, the negative mean loss, or ``"metric"``, the metric of the task.
        reward: ``"difference"`` of the scores, or its ``"sign"``.
        merge: Selection of the surviving model: ``"sample"``, by softmax of the mean scores over ``temperature``, the
            default of the dropout version; ``"confidence"``, the attacker with the probability that it is better,
            estimated from the difference of the scores over its standard error; ``"best"``; ``"attacker"``, the default
            of the pruning version.
        temperature: See ``merge``.
        baseline_decay: Decay of the moving average of rewards that serves as baseline.
        credit: ``"step"``: the ``t``-th action of a period is paired with the ``t``-th reward (Eq. 5). ``"return"``:
            each action is paired with the mean reward of the period.
        granularity: Unit of dropping: a ``"score"``, the scores of a ``"head"``, or those of a ``"layer"``.
        generator_heads: Number of heads of the generator, a divisor of the model's; with ``granularity="head"``, 1
            means the model's number of heads.
        generator_feed_forward: Whether the generator has a feed-forward.
        dropout_step: Number of optimizer steps in a period, ``T``.
        init_drop_prob: Initial drop probability.
        learn_bias: Whether the logit of that probability is trained.
        generator_learning_rate: Learning rate of the generator's AdamW.
        generator_schedule: ``"constant"``, or ``"linear"`` decay to zero over the generator's updates.
        layers: Layers to drop in, see :func:`attendrop.attention.layers.select_layers`; of these only the encoder's
            self-attention, or that of a decoder-only model.
        defender_device: Device of the defender, such as ``"cuda:1"``, for parallel training of both; ``"next"`` is the
            first GPU that no process trains on, plus the rank of this process. Empty: the attacker's device.

    Raises:
        AttendropError: An option is out of its range.

    Source: Wu, Zhao, Zhang (2021), two manuscripts. Choices where they are not specific: a fully dropped row attends
    equally to its valid keys; the baseline is read before the period's mean reward enters it; the actions'
    probabilities are recomputed for the generator's update. Ours are ``merge="confidence"``,
    ``reward_data="split"``, a ``reward_batch_size`` above 1, and granularities, heads and feed-forward other than the
    papers' (which name these as future work).
    """

    info = MethodInfo(
        "attendout",
        "learns from rewards which attention to drop",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need",
        link="https://arxiv.org/abs/2104.04692",
        acts_on=("scores",),
        forward="2 + scoring",
        backward="2",
        state="a second model and its optimizer, a period of batches",
        tasks="all; encoder-decoder: the encoder's self-attention",
        traits={
            DECIDES_PASSES: "",
            EXCHANGES_WEIGHTS: "",
            SECOND_MODEL: "",
            SCORES_ROWS: "score_on=reward_data",
        },
        self_attention_only=True,
        needs_loss_scale=True,
    )

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """Return the papers' setting: length 256, 3 epochs, rewards on rows of the development set."""
        training = {"max_length": 256, "epochs": 3, "patience": None}
        return Preset(training, {"reward_data": "eval", "reward_batch_size": 1})

    def dropout_steps(self, log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Collect the metrics logged at the end of each period."""
        prefix = f"{self.source}/"
        layers, survived = f"{prefix}drop_probability/", f"{prefix}attacker_survived"
        return [
            {
                "step": int(entry["step"]),
                **{name: entry[prefix + name] for name in _LOGGED if prefix + name in entry},
                **({"attacker_survived": bool(entry[survived])} if survived in entry else {}),
                "drop_probability": {k.removeprefix(layers): v for k, v in entry.items() if k.startswith(layers)},
            }
            for entry in log
            if "loss" not in entry and f"{prefix}reward" in entry
        ]

    def summary_lines(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        """Summarise how often the attacker survived and what was learnt."""
        steps = metrics["dropout_steps"]
        if not steps:
            return {}
        survived = f"attacker survived {sum(step['attacker_survived'] for step in steps)} of {len(steps)} periods"
        first, last = (statistics.fmean(steps[i]["drop_probability"].values()) for i in (0, -1))
        return {"generator": f"{survived}; drop probability {first:.3f} at first, {last:.3f} last"}

    def layer_ranking(self, metrics: Mapping[str, Any]) -> LayerRanking | None:
        """Rank layers by the generator's ``pi``, for the pruning version only."""
        pi = metrics.get("pruning", {}).get("pi")
        if pi is None or self.variant != "pruning":
            return None
        return LayerRanking("generator", pi, told_from_noise=False)

    def start(self, training: TrainingContext) -> MethodState:
        return GeneratorState(self, training)
