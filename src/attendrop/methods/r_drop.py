"""R-Drop: consistency of two passes with different dropout."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.attribution.predictions import NUMBER
from attendrop.extend import (
    Batch,
    Method,
    MethodInfo,
    MethodState,
    Preset,
    StepContext,
    TrainingContext,
    choice,
    number_of_rows,
    option,
    positive,
)
from attendrop.methods.common.losses import divergence, mean, predictions

logger = logging.getLogger(__name__)


class _TwoPasses(MethodState):
    """State that checks whether the passes differ."""

    def __init__(self, method: Method, training: TrainingContext) -> None:
        super().__init__(method)
        self._steps = 0
        self._largest = torch.zeros(())

    def penalty(self, context: StepContext, outputs: Any) -> Tensor | None:
        penalty = super().penalty(context, outputs)
        assert penalty is not None
        self._largest = torch.maximum(self._largest.to(penalty.device), penalty.detach())
        return penalty

    def after_step(self, steps_taken: int) -> dict[str, float]:
        # Checked once, since it synchronizes. A zero-initialised head gives equal predictions in the first step.
        self._steps += 1
        if self._steps == 2 and not self._largest > 0:
            logger.warning(
                "R-Drop: both passes give the same predictions, so it has no effect. The model has no dropout in "
                "training; set its probability above 0 in the model's configuration, such as hidden_dropout_prob=0.1 "
                "(of T5, dropout_rate; of GPT-2, resid_pdrop; of Llama, attention_dropout)."
            )
        return {}


@dataclass(frozen=True)
class RDrop(Method):
    """Consistency of two passes that differ in their dropout.

    Every row passes through the model twice, in one batch of twice the rows. The loss is the mean over both copies,
    plus ``alpha / 2`` times the symmetric Kullback-Leibler divergence ``(KL(P1 || P2) + KL(P2 || P1)) / 2`` between
    their predictions. In regression, it is replaced by the squared difference of the predictions; in multi-label
    classification, by the sum over the labels' Bernoulli distributions.

    ``reduction="sum"`` sums the divergence over the B rows of the global batch: all micro-batches of an optimizer step,
    of all processes; ``"mean"`` averages it, so ``alpha`` of a sum must be tuned with the batch size, like a learning
    rate. Where a row has many predictions (tags, tokens), the sum is B times the mean over the labelled tokens. A
    squared difference of numbers is always averaged. In a custom loop, each call of ``reg.loss`` is a global batch.

    Correspondence of options and sources (CE1, CE2: mean cross-entropy of the copies; KL: the divergence of each row):

    ================  =====================================  ======================  ============================
    source            loss                                   options                 weight of mean KL, CE mean 1
    ================  =====================================  ======================  ============================
    the paper         ``CE1 + CE2 + alpha mean(KL)``         ``mean``, ``alpha``     ``alpha / 2``
    its BERT code     ``CE1 + CE2 + 0.5 sum(KL)``            ``sum``, ``alpha=0.5``  4 at B = 16, 8 at B = 32
    its RoBERTa code  ``(CE1 + CE2) / 2 + 0.7 sum(KL)``      ``sum``, ``alpha=1.4``  11.2 at B = 16, 22.4 at B = 32
    ================  =====================================  ======================  ============================

    Args:
        alpha: Weight of the divergence, above 0.
        reduction: ``"sum"``, as in the authors' code, or ``"mean"``, as in the paper.

    Raises:
        AttendropError: The model returns no logits.

    Source: Wu et al. (2021), https://arxiv.org/abs/2106.14448, Eq. 2 to 4, and the code of its GLUE runs, whose
    regression adds ``MSE(1, 2)`` to ``MSE1 + MSE2`` (BERT: ``alpha=1``) or ``0.8 MSE(1, 2)`` to half of that (RoBERTa:
    ``alpha=1.6``). Ours is half of the paper's loss, so that learning rates are comparable to plain fine-tuning. A
    warning is logged if both passes are equal, as for a model without dropout. The default was better than plain
    fine-tuning on held-out rows of Banking77 (5 rows per class, B = 16, six seeds) by 0.006, 95 % interval 0.001 to
    0.012; the 0.003 (-0.003 to 0.010) of ``"mean"`` is not significant, nor is the difference between both.
    """

    info = MethodInfo(
        "r-drop",
        "makes two passes with different dropout agree",
        "Wu et al. (2021), R-Drop: Regularized Dropout for Neural Networks",
        link="https://arxiv.org/abs/2106.14448",
        evidence=(
            (
                {},
                "with MiniLM, accuracy +0.006 [+0.001, +0.012] on 1,000 held-out rows of Banking77 with five rows per "
                "class, on which its form was chosen; +0.005 [+0.004, +0.006] on similar rows of Banking77 and HWU64, "
                "+0.006 [+0.004, +0.009] on random ones, +0.015 [+0.001, +0.028] on generated messages with new "
                "phrases; no significant difference on 256 rows of CoLA, MRPC and STS-B; -0.052 on entities (the "
                "project's docs/does-it-help.md).",
            ),
        ),
        compared=True,
        acts_on=("inputs", "loss"),
        forward="2 (in one batch)",
        backward="2 (in one batch)",
        tasks="all; regression: squared difference",
        order=-1,  # rows are repeated before tokens of each copy are dropped
        uses_attention=False,
    )
    state_class = _TwoPasses

    alpha: float = option(1.0, positive(), search=(0.1, 0.3, 3.0))
    reduction: str = option("sum", choice("mean", "sum"))

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """Return the reduction of the paper; its ``alpha`` depends on the task and is not published for all."""
        return Preset(options={"reduction": "mean"})

    def batch(self, context: StepContext) -> Batch:
        return repeat_rows(context.batch, 2)

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        kind, heads = predictions(context.model, outputs, context.batch, copies=2)
        values = [divergence(kind, *copies).flatten() for copies in heads]
        means = torch.stack([mean(each) for each in values])
        context.note("divergence", means.mean())
        if self.reduction == "mean" or kind == NUMBER:
            return self.alpha / 2 * means.mean()
        rows = number_of_rows(context.batch) // 2
        sums = [each.sum() if each.numel() == rows else rows * mean(each) for each in values]
        return self.alpha / 2 * torch.stack([each * context.micro_batches for each in sums]).mean()


def repeat_rows(batch: Batch, copies: int) -> dict[str, Any]:
    """Repeat each row of a batch, with adjacent copies; also in lists of as many values, such as texts.

    The outputs of an encoder that ran before (``encoder_outputs``) are repeated, too.
    """
    from transformers.utils.generic import ModelOutput

    rows = number_of_rows(batch)

    def repeated(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == rows:
            return value.repeat_interleave(copies, 0)
        if isinstance(value, list | tuple) and len(value) == rows:
            return [each for each in value for _ in range(copies)]
        if isinstance(value, ModelOutput):
            return type(value)(**{name: repeated(each) for name, each in value.items()})
        return value

    return {name: repeated(value) for name, value in batch.items()}
