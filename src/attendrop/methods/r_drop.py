"""R-Drop: two passes with different dropout must agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from attendrop.methods.base import Batch, Facts, Method, Pass, check_positive
from attendrop.methods.consistency import mean_divergence
from attendrop.rows import number_of_rows


@dataclass(frozen=True)
class RDrop(Method):
    """Consistency of two passes that differ in their dropout.

    Every row goes through the model twice, in one batch of twice the rows. The loss is the mean over both copies, plus
    ``alpha / 2`` times the mean of the symmetric Kullback-Leibler divergence ``(KL(P1 || P2) + KL(P2 || P1)) / 2``
    between their predictions. For regression, the squared difference of the predictions takes its place; for several
    labels per text, the divergence of each label's Bernoulli distribution, summed.

    Example:
        >>> with regularize(model, RDrop(alpha=1.0)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        alpha: Weight of the divergence, above 0.

    Raises:
        AttendropError: ``alpha`` is out of its range; or the model returns no logits.

    Source: Wu et al. (2021), https://arxiv.org/abs/2106.14448, Eq. 2 to 4, where the loss is the sum over both copies
    and ``alpha`` times the divergence; ours is half of both, so that the learning rate means what it means in plain
    fine-tuning. ``alpha`` is 0.1 to 1 in their GLUE runs (their code: 1.0 for CoLA, RTE, MRPC and STS-B). Means over
    tokens are over those that have a label.
    """

    name: ClassVar[str] = "r-drop"
    summary: ClassVar[str] = "makes two passes with different dropout agree"
    paper: ClassVar[str] = "Wu et al. (2021), R-Drop: Regularized Dropout for Neural Networks"
    bibtex: ClassVar[str] = """@inproceedings{wu2021rdrop,
  title     = {{R-Drop}: Regularized Dropout for Neural Networks},
  author    = {Wu, Lijun and Li, Juntao and Wang, Yue and Meng, Qi and Qin, Tao and Chen, Wei and Zhang, Min and
               Liu, Tie-Yan},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {34},
  year      = {2021},
  url       = {https://arxiv.org/abs/2106.14448}
}"""
    facts: ClassVar[Facts] = Facts(
        acts_on=("inputs", "loss"),
        forward="2 (in one batch)",
        backward="2 (in one batch)",
        tasks="all; regression: squared difference",
    )
    uses_attention: ClassVar[bool] = False

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def batch(self, step: Pass) -> Batch:
        return repeat_rows(step.batch, 2)

    def penalty(self, step: Pass, outputs: Any) -> Tensor:
        divergence = mean_divergence(step.model, outputs, step.batch)
        step.note("divergence", divergence)
        return self.alpha / 2 * divergence


def repeat_rows(batch: Batch, copies: int) -> dict[str, Any]:
    """A batch with each row so many times, copies side by side."""
    rows = number_of_rows(batch)
    return {
        name: value.repeat_interleave(copies, 0)
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == rows
        else value
        for name, value in batch.items()
    }
