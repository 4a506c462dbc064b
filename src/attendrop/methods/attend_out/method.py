"""AttendOut: an attacker, a defender, and a generator that learns which attention to drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attendrop.methods.attend_out import report
from attendrop.methods.attend_out.generator import Generator
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.attend_out.periods import AttendOutState
from attendrop.methods.common.citations import WU_2021
from attendrop.methods.core.base import MethodState
from attendrop.methods.core.compatibility import DECIDES_PASSES, EXCHANGES_WEIGHTS, SCORES_ROWS, SECOND_MODEL
from attendrop.methods.core.context import TrainingContext
from attendrop.methods.core.info import LayerRanking, MethodInfo, Preset

__all__ = ["AttendOut", "Generator"]


@dataclass(frozen=True)
class AttendOut(AttendOutOptions):
    """Attention dropout that is learnt by policy gradient.

    Two copies of the model train on the same batches: the defender with its own dropout only, the attacker also with
    what is dropped from its attention scores. Every ``dropout_step`` optimizer steps both are scored, what
    drops is rewarded by how much better the attacker is, and the two become one again. The attacker is the model
    that is evaluated and saved.

    Takes about twice the memory and time of fine-tuning. Needs the model's optimizer, and data to score on, both of
    which :class:`attendrop.RegularizedTrainer` provides.

    Example:
        >>> with regularize(model, AttendOut(), optimizer=optimizer, reward_data=loader) as reg:
        ...     reg.loss(batch).backward()  # the defender's gradients are computed within
        ...     optimizer.step()  # the defender takes its step with the attacker
        ...     optimizer.zero_grad()
        ...     reg.step()  # every ``dropout_step`` steps: scores, rewards, one model again

    Args:
        variant: ``"dropout"`` (Wu et al. 2021) or ``"pruning"`` (the self-pruning version): decides ``score_on`` and
            ``merge`` where these are not given.
        learner: What decides what is dropped. ``"policy_gradient"``: the papers' generator, a network that is trained
            by policy gradient. ``"effects"``, ours, for little data: each layer is dropped or not for a whole period.
            Its probability starts at ``init_drop_prob`` and moves by as much as the evidence of all periods says, see
            :class:`attendrop.methods.attend_out.layer_effects.LayerEffects`. There is no network then; the options of
            the generator, ``credit`` and ``baseline_decay`` have no meaning.
        score_on: What both models are scored on. ``"reward_data"``: items drawn from it, one for each step; the dropout
            version. ``"train"``: the batches just trained on; the pruning version. ``"noisy_train"``: these with 15 %
            of their tokens masked.
        reward_data: ``"split"``: ``reward_fraction`` of the training rows, set aside for it. ``"eval"``: the
            development set, as in the paper; results on it are then no longer honest.
        reward_fraction: See ``reward_data``.
        reward_batch_size: Samples in an item. The paper has 1; 4 give steadier rewards.
        score: Of an item: ``"loss"``, its negative mean, or ``"metric"``, that of the task.
        reward: ``"difference"`` of the scores, or its ``"sign"``.
        merge: How the two become one: ``"sample"``, the survivor drawn by softmax of the mean scores over
            ``temperature``; ``"confidence"``, the attacker with the probability that it is the better one, by the
            difference of the scores over its standard error (the default of ``learner="effects"``); ``"best"``;
            ``"attacker"``, the pruning version.
        temperature: See ``merge``.
        baseline_decay: Of the moving average of rewards that is subtracted from them.
        credit: ``"step"``: the ``t``-th action of a period is paired with the ``t``-th reward (Eq. 5). ``"return"``:
            each is paired with the mean reward of the period.
        granularity: What is dropped at once: a ``"score"`` (the default), the scores of a ``"head"``, or those of a
            ``"layer"`` (all that ``learner="effects"`` drops).
        generator_heads: Heads of the generator, a divisor of the model's; with ``granularity="head"``, 1 stands for as
            many as the model has.
        generator_feed_forward: Whether the generator has a feed-forward.
        dropout_step: Optimizer steps in a period, ``T``.
        init_drop_prob: The probability of dropping at which the generator starts.
        learn_bias: Whether the logit of that probability is trained.
        generator_learning_rate: Of the generator's AdamW.
        generator_schedule: ``"constant"``, or ``"linear"`` down to zero over the generator's updates.
        layers: Where to drop: see :func:`attendrop.attention.layers.select_layers`; of these the encoder's
            self-attention, or that of a decoder-only model.
        defender_device: A device for the defender, such as ``"cuda:1"``, so that both train at the same time;
            ``"next"`` is the first GPU that no process trains on, plus the number of this process. Empty: the same.

    Raises:
        AttendropError: An option is out of its range.

    Source: Wu, Zhao, Zhang (2021), two manuscripts. Points that they leave open: a dropped row attends equally to its
    valid keys; the baseline is read before the period's mean reward enters it; the actions' probabilities are
    recomputed when the generator learns. Ours are ``learner="effects"``, ``merge="confidence"``,
    ``reward_data="split"``, ``reward_batch_size=4``, and granularities, heads and feed-forward other than the papers'
    (which name these as outlook).
    """

    name: ClassVar[str] = "attendout"
    summary: ClassVar[str] = "learns, by policy gradient, which attention to drop"
    paper: ClassVar[str] = "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need"
    bibtex: ClassVar[str] = WU_2021

    info: ClassVar[MethodInfo] = MethodInfo(
        acts_on=("scores",),
        forward="2 + generator + scoring",
        backward="2 + generator",
        state="a second model and its optimizer, the generator, a period of batches",
        tasks="all; encoder-decoder: the encoder's self-attention",
    )

    traits: ClassVar[Mapping[str, str]] = {
        DECIDES_PASSES: "",
        EXCHANGES_WEIGHTS: "",
        SECOND_MODEL: "",
        SCORES_ROWS: "score_on=reward_data",
    }
    needs_loss_scale: ClassVar[bool] = True

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """The papers give length 256, and rewards on the development set, one sample at a time."""
        return Preset({"max_length": 256}, {"reward_data": "eval", "reward_batch_size": 1})

    def dropout_steps(self, log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return report.dropout_steps(log, f"{self.source}/")

    def summary_lines(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        steps = metrics["dropout_steps"]
        return {"generator": report.summary(steps)} if steps else {}

    def layer_ranking(self, metrics: Mapping[str, Any]) -> LayerRanking | None:
        """Only the pruning version learns what can be left out."""
        pi = metrics.get("pruning", {}).get("pi")
        return None if pi is None or self.variant != "pruning" else LayerRanking("generator", pi)

    def start(self, training: TrainingContext) -> MethodState:
        return AttendOutState(self, training)
