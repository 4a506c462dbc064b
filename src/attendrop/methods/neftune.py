"""NEFTune: uniform noise in the word embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attendrop.extend import Method, MethodInfo, Plan, StepContext, WordPlan, option, positive, word_noise


@dataclass(frozen=True)
class NEFTune(Method):
    """Uniform noise in the word embeddings.

    Each element of the word embeddings of a sequence of ``n`` tokens, each of width ``d``, is changed by a number that
    is uniform in ``(-a, a)`` with ``a = alpha / sqrt(n d)``. So the expected norm of the noise of a sequence is
    ``alpha / sqrt(3)``, whatever its length. One pass per step.

    Example:
        >>> with regularize(model, NEFTune(alpha=5.0)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        alpha: Strength of the noise, above 0.

    Raises:
        AttendropError: ``alpha`` is out of its range; or, in training, the model embeds no words (images).

    Source: Jain et al. (2024), https://arxiv.org/abs/2310.05914, Algorithm 1. They fine-tune decoders of 7 and more
    billion parameters on instructions, with 5, 10 or 15; the default is the least of these. As in their code, ``n``
    does not count padding, and special tokens are changed, too. Deviation: in models that normalise or add positions
    within the embedding (BERT), the noise is added before that. Of encoder-decoder models, the encoder's embeddings are
    changed.
    """

    info = MethodInfo(
        "neftune",
        "adds uniform noise to the word embeddings",
        "Jain et al. (2024), NEFTune: Noisy Embeddings Improve Instruction Finetuning",
        acts_on=("embeddings",),
        tasks="text",
    )

    alpha: float = option(5.0, positive(), search=(1.0, 10.0, 15.0))

    def plan(self, context: StepContext) -> Plan:
        def noisy(embedded: Tensor, valid: Tensor) -> Tensor:
            width = embedded.shape[-1]
            bound = self.alpha / (valid.sum(-1).clamp(min=1) * width).sqrt()
            sampled = word_noise("uniform", context.key, "words", valid, width)
            return embedded + (sampled * bound[:, None, None]).to(embedded.dtype)

        return WordPlan(context, noisy)
