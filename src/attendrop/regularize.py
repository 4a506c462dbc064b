"""Regularise a training loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention import Attachment, Plan
from attendrop.errors import AttendropError
from attendrop.masks import DrawKey
from attendrop.methods.base import Batch, ComputeLoss, Method, Pass


@contextmanager
def regularize(model: nn.Module, method: Method, *, seed: int = 0) -> Iterator[Regularization]:
    """Regularise the training of ``model`` by ``method`` within a ``with`` block.

    At the end of the block, also after an exception, the model is exactly as it would be without the library, but for
    what training did to its weights.

    Example:
        >>> with regularize(model, ADDrop(p=0.3, q=0.3)) as reg:
        ...     for epoch in range(4):
        ...         reg.set_epoch(epoch)
        ...         for batch in loader:
        ...             loss = reg.loss(batch)
        ...             loss.backward()
        ...             optimizer.step()
        ...             optimizer.zero_grad()
        ...             reg.step()

    Args:
        model: A transformers model, without wrappers such as DistributedDataParallel.
        method: What to do, such as ``ADDrop(p=0.3, q=0.3)``.
        seed: Seed of the method's own random draws. They do not touch torch's global random state.

    Raises:
        AttendropError: The model is not supported by the method.
    """
    regularization = Regularization(model, method, seed=seed)
    try:
        yield regularization
    finally:
        regularization.close()


class Regularization:
    """One method at work on one model: what :func:`regularize` gives, and :class:`RegularizedTrainer` drives.

    Args:
        model: The model, without wrappers.
        method: What to do.
        seed: Seed of the method's own random draws.
        rank: Number of this process among those that train together.
        world_size: How many these are. Each must be given as many sequences as the others.

    Attributes:
        loss_scale: The factor by which gradients are multiplied under float16.
        withholds_labels: Whether the pass that trains does not hand the labels to the model, because the loss is
            computed outside of it.
    """

    def __init__(self, model: nn.Module, method: Method, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        self.model = model
        self.method = method
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch: int | None = None
        self.steps_taken = 0
        self.loss_scale = 1.0
        self.withholds_labels = False
        self._sequences = 0
        self._statistics = _Statistics()
        self._attachment: Attachment | None = None
        if method.regularized_epochs(0) is not None:
            self._attachment = Attachment(model)
            self._attachment.attach()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins, counted from 0. Methods that alternate, as cross-tuning does, need it."""
        self.epoch = epoch

    def begin_step(self, steps_taken: int) -> None:
        """Say how many optimizer steps were taken before the micro-batches that follow (:meth:`step` counts them)."""
        self.steps_taken = steps_taken
        self._sequences = 0

    def step(self) -> None:
        """Call after each ``optimizer.step()``."""
        self.begin_step(self.steps_taken + 1)

    def loss(self, batch: Batch) -> Tensor:
        """Compute the training loss of one micro-batch, with all passes that the method needs.

        Args:
            batch: The model's inputs as a mapping, with labels.

        Returns:
            The loss, a scalar to call ``backward`` on.

        Raises:
            AttendropError: The method alternates between epochs and :meth:`set_epoch` was not called.
        """
        return self.compute(batch, self._plain)[0]

    def compute(self, batch: Batch, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """As :meth:`loss`, with the pass that trains given as ``compute_loss(batch, plan) -> (loss, outputs)``.

        A plan that it is handed must reach the model as the keyword ``attendrop_plan``.
        """
        if not self.model.training:
            return compute_loss(batch, None)
        active = self._attachment is not None and self._active()
        rows = _rows(batch)
        first = self._sequences * self.world_size + self.rank * rows
        self._sequences += rows
        self._statistics.passes += 1
        if not active or self._attachment is None:
            return compute_loss(batch, None)
        inputs = {name: value for name, value in batch.items() if name != "labels" or not self.withholds_labels}
        self._attachment.probe(inputs)
        self._statistics.active += 1
        key = DrawKey(self.seed, self.steps_taken, first, rows)
        step = Pass(self._attachment, batch, inputs, key, self.loss_scale, self._statistics.report)
        return self.method.loss(step, self._bound(compute_loss))

    def logs(self, total: Callable[[Tensor], Tensor] = lambda counts: counts) -> dict[str, float]:
        """What happened since the last call.

        ``<method>/active``: share of passes in which the method acted. If it did: ``<method>/dropped``, the share of
        positions dropped among those in rows that could have candidates, and ``<method>/dropped/<kind>.<layer>``.

        Args:
            total: Adds a tensor of counts up over the processes that train together.
        """
        if self._attachment is None:
            return {}
        prefix = self.method.name.replace("-", "_")
        found = {f"{prefix}/{name}": value for name, value in self._statistics.summary(total).items()}
        self._statistics = _Statistics()
        return found

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold, as plain values."""
        return {"seed": self.seed, "steps_taken": self.steps_taken, "statistics": self._statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
        self.seed = state["seed"]
        self.begin_step(state["steps_taken"])
        self._statistics = _Statistics(**state["statistics"])

    def close(self) -> None:
        """Give the model back as it was. Idempotent."""
        if self._attachment is not None:
            self._attachment.detach()

    def _active(self) -> bool:
        if self.epoch is None and self.method.needs_epoch():
            raise AttendropError(
                f"Method '{self.method.name}' alternates between epochs; call set_epoch(epoch), from 0, at the start "
                "of each, or set cross_tuning=False."
            )
        return self.method.active(self.epoch or 0)

    def _plain(self, batch: Batch, plan: Plan | None) -> tuple[Tensor, Any]:
        outputs = self.model(**batch) if plan is None else self._attached.forward(batch, plan)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
        if loss is None:
            raise AttendropError("The model returned no loss; the batch needs 'labels'.")
        return loss, outputs

    def _bound(self, compute_loss: ComputeLoss) -> ComputeLoss:
        def bound(batch: Batch, plan: Plan | None) -> tuple[Tensor, Any]:
            return compute_loss(batch, None if plan is None else self._attached.bind(plan))

        return bound

    @property
    def _attached(self) -> Attachment:
        assert self._attachment is not None
        return self._attachment


class _Statistics:
    """Counts of dropped positions; kept on their device, so that counting does not wait for it."""

    def __init__(self, passes: int = 0, active: int = 0, counts: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.passes = passes
        self.active = active
        self.counts = {site: torch.tensor(pair) for site, pair in (counts or {}).items()}

    def report(self, site: str, dropped: Tensor, possible: Tensor) -> None:
        pair = torch.stack([dropped, possible])
        self.counts[site] = pair + self.counts[site].to(pair.device) if site in self.counts else pair

    def state_dict(self) -> dict[str, Any]:
        counts = {site: pair.tolist() for site, pair in self.counts.items()}
        return {"passes": self.passes, "active": self.active, "counts": counts}

    def summary(self, total: Callable[[Tensor], Tensor]) -> dict[str, float]:
        sites = sorted(self.counts, key=lambda site: (site.split(".")[0], int(site.split(".")[1])))
        pairs = [torch.tensor([self.active, self.passes]), *(self.counts[site].cpu() for site in sites)]
        activity, *counts = total(torch.stack(pairs)).tolist()
        found = {"active": _ratio(activity)}
        if counts:
            found["dropped"] = _ratio([sum(pair[i] for pair in counts) for i in (0, 1)])
            found |= {f"dropped/{site}": _ratio(pair) for site, pair in zip(sites, counts, strict=True)}
        return found


def _ratio(pair: Sequence[int]) -> float:
    return pair[0] / max(pair[1], 1)


def _rows(batch: Batch) -> int:
    """How many sequences a batch holds: the length of its first tensor."""
    for value in batch.values():
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    raise AttendropError("The batch holds no tensors.")
