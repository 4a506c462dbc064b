"""Regularise a training loop of one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention import Attachment, Plan
from attendrop.errors import AttendropError
from attendrop.masks import DrawKey
from attendrop.methods.base import Batch, ComputeLoss, Method, Pass, Session, Setup
from attendrop.rewards import reward_data_of


@contextmanager
def regularize(
    model: nn.Module,
    method: Method,
    *,
    seed: int = 0,
    total_steps: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    max_grad_norm: float | None = None,
    reward_data: Any = None,
) -> Iterator[Regularization]:
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
        total_steps: How many optimizer steps are planned. Methods that follow a schedule need it.
        optimizer: The model's optimizer. AttendOut, which trains a second model with another like it, needs it.
        max_grad_norm: To which norm you clip the model's gradients, so that AttendOut clips its second model's alike.
        reward_data: What AttendOut scores models on: a ``DataLoader`` over labelled rows that are not trained on, or a
            list of batches.

    Raises:
        AttendropError: The model is not supported by the method, or the method needs something that is not given.
    """
    device = next(model.parameters()).device

    def evaluate(model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        return loss_and_outputs(model(**batch))

    setup = Setup(
        model=model,
        evaluate=evaluate,
        seed=seed,
        total_steps=total_steps,
        optimizer=optimizer,
        max_grad_norm=max_grad_norm,
        reward_data=reward_data_of(reward_data, device),
    )
    regularization = Regularization(setup, method)
    try:
        yield regularization
        regularization.finish()
    finally:
        regularization.close()


class Regularization:
    """One method at work on one model: what :func:`regularize` gives, and :class:`RegularizedTrainer` drives.

    Args:
        setup: The model, and what else a method may need.
        method: What to do.

    Attributes:
        session: What the method keeps while it trains.
        steps_taken: Optimizer steps so far.
        loss_scale: The factor by which gradients are multiplied under float16.
        withholds_labels: Whether the pass that trains does not hand the labels to the model, because the loss is
            computed outside of it.
    """

    def __init__(self, setup: Setup, method: Method) -> None:
        self.model = setup.model
        self.method = method
        self.setup = setup
        self.epoch: int | None = None
        self.steps_taken = 0
        self.loss_scale = 1.0
        self.withholds_labels = False
        self._sequences = 0
        self._statistics = _Statistics()
        self._figures: dict[str, float] = {}
        self._attachment: Attachment | None = None
        self.session = Session(method)
        if method.regularized_epochs(0) is not None:
            self._attachment = Attachment(setup.model)
            self.session = method.start(setup)
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
        self._figures |= self.session.after_step(self.steps_taken)

    def finish(self) -> None:
        """Call after the last step: a method that works in periods completes the one that it is in."""
        self._figures |= self.session.finish()

    def figures(self) -> dict[str, float]:
        """What the method had to tell of single steps since the last call; :meth:`logs` has it, too."""
        found, self._figures = self._named(self._figures), {}
        return found

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
        """As :meth:`loss`, with the pass that trains given as ``compute_loss(batch, plan, model) -> (loss, outputs)``.

        A plan that it is handed must reach the model as the keyword ``attendrop_plan``.
        """
        if not self.model.training:
            return compute_loss(batch, None)
        active = self._attachment is not None and self._active()
        rows = _rows(batch)
        processes = self.setup.processes
        first = self._sequences * processes.world_size + processes.rank * rows
        self._sequences += rows
        self._statistics.passes += 1
        if not active or self._attachment is None:
            return compute_loss(batch, None)
        inputs = {name: value for name, value in batch.items() if name != "labels" or not self.withholds_labels}
        self._attachment.probe(inputs)
        self._statistics.active += 1
        key = DrawKey(self.setup.seed, self.steps_taken, first, rows)
        total = self.setup.total_steps
        progress = None if total is None else min(1.0, self.steps_taken / max(total, 1))
        report = self._statistics.report
        step = Pass(self._attachment, batch, inputs, key, self.loss_scale, report, progress)
        return self.session.loss(step, self._bound(compute_loss))

    def logs(self) -> dict[str, float]:
        """What happened since the last call.

        ``<method>/active``: share of passes in which the method acted. If it did: ``<method>/dropped``, the share of
        positions dropped among those in rows that could have candidates, and ``<method>/dropped/<kind>.<layer>``.
        Beside them :meth:`figures`.
        """
        if self._attachment is None:
            return {}
        found = self._named(self._statistics.summary(self.setup.processes.total)) | self.figures()
        self._statistics = _Statistics()
        return found

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold, but for what the method keeps, as plain values."""
        return {"seed": self.setup.seed, "steps_taken": self.steps_taken, "statistics": self._statistics.state_dict()}

    def session_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the method keeps, tensors and plain values: the same in all processes, and of this one alone."""
        return self.session.state_dict(), self.session.own_state_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], session: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    ) -> None:
        """Go on from a :meth:`state_dict` and a :meth:`session_state`."""
        self.setup = dataclasses.replace(self.setup, seed=state["seed"])
        self.begin_step(state["steps_taken"])
        self._statistics = _Statistics(**state["statistics"])
        self.session.load_state_dict(*session)

    def close(self) -> None:
        """Give the model back as it was. Idempotent."""
        self.session.close()
        if self._attachment is not None:
            self._attachment.detach()

    def _named(self, figures: Mapping[str, float]) -> dict[str, float]:
        prefix = self.method.name.replace("-", "_")
        return {f"{prefix}/{name}": value for name, value in figures.items()}

    def _active(self) -> bool:
        if self.epoch is None and self.method.needs_epoch():
            raise AttendropError(
                f"Method '{self.method.name}' alternates between epochs; call set_epoch(epoch), from 0, at the start "
                "of each, or set cross_tuning=False."
            )
        return self.method.active(self.epoch or 0)

    def _plain(self, batch: Batch, plan: Plan | None = None, model: nn.Module | None = None) -> tuple[Tensor, Any]:
        if plan is None:
            return loss_and_outputs((model or self.model)(**batch))
        return loss_and_outputs(self._attached.forward(batch, plan))

    def _bound(self, compute_loss: ComputeLoss) -> ComputeLoss:
        def bound(batch: Batch, plan: Plan | None = None, model: nn.Module | None = None) -> tuple[Tensor, Any]:
            plan = None if plan is None else self._attached.bind(plan)
            return compute_loss(batch, plan) if model is None else compute_loss(batch, plan, model)

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


def loss_and_outputs(outputs: Any) -> tuple[Tensor, Any]:
    """The loss that a model returned, and all that it returned; raises AttendropError if there is no loss."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
    if loss is None:
        raise AttendropError("The model returned no loss; the batch needs 'labels'.")
    return loss, outputs


def _ratio(pair: Sequence[int]) -> float:
    return pair[0] / max(pair[1], 1)


def _rows(batch: Batch) -> int:
    """How many sequences a batch holds: the length of its first tensor."""
    for value in batch.values():
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    raise AttendropError("The batch holds no tensors.")
