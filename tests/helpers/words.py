"""The word embeddings of a tiny BERT: what a method added to them, and passes of the stock model with such changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import functional

from attendrop import Method
from attendrop.training.regularization import Regularization
from helpers import zoo


def stepped(model: Any, method: Method, batch: zoo.Batch, *, step: int = 0) -> tuple[Tensor, list[Tensor]]:
    """The loss of a step, and the change of the word embeddings ``(batch, n, width)`` in each of its passes."""
    words = model.bert.embeddings.word_embeddings(batch["input_ids"])
    sums = []
    hook = model.bert.embeddings.LayerNorm.register_forward_pre_hook(lambda _, args: sums.append(args[0].detach()))
    model(**batch)  # words, positions and types
    stock = sums.pop()
    regularization = Regularization(zoo.training(model), method)
    regularization.begin_step(step)
    regularization.adapter.trace(batch)  # type: ignore[union-attr]
    sums.clear()
    try:
        loss = regularization.loss(batch)
    finally:
        regularization.close()
        hook.remove()
    assert words.shape == stock.shape
    return loss, [total - stock for total in sums]


@contextmanager
def changed(model: Any, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the word embeddings of the stock model within the block."""
    hook = model.bert.embeddings.word_embeddings.register_forward_hook(lambda _, args, output: change(output))
    try:
        yield
    finally:
        hook.remove()


def added(model: Any, batch: zoo.Batch, change: Tensor) -> Any:
    """The outputs of the stock model with ``change`` added to its word embeddings."""
    with changed(model, lambda words: words + change):
        return model(**batch)


def symmetric_kl(one: Tensor, other: Tensor) -> Tensor:
    """Mean over rows of ``KL(P || Q) + KL(Q || P)`` of two sets of logits ``(rows, classes)``."""
    p, q = functional.log_softmax(one, -1), functional.log_softmax(other, -1)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1).mean()
