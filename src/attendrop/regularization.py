"""Regularise a training loop of one's own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention import PLAN_KEYWORD, Attachment, Plan
from attendrop.errors import AttendropError
from attendrop.masks import DrawKey
from attendrop.methods.base import Batch, ComputeLoss, Method, Pass, Session, Setup, overrides, tokens_of
from attendrop.outputs import named_outputs
from attendrop.rows import labelled_data, number_of_rows
from attendrop.tally import Tally

logger = logging.getLogger(__name__)

# No loop weights the loss of a micro-batch by more than this; gradient scalers do, from their first step on.
_LARGEST_WEIGHT = 100.0


@contextmanager
def regularize(
    model: nn.Module,
    method: Method,
    *,
    seed: int = 0,
    total_steps: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    max_grad_norm: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    reward_data: Any = None,
    train_data: Any = None,
    tokenizer: Any = None,
) -> Iterator[Regularization]:
    """Regularise the training of ``model`` by ``method`` within a ``with`` block.

    At the end of the block, also after an exception, the model is exactly as it would be without the library, but for
    what training did to its weights.

    Example:
        >>> model.train()  # models come from ``from_pretrained`` in evaluation mode
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
        model: A transformers model, compiled or not; without wrappers such as DistributedDataParallel.
        method: What to do, such as ``ADDrop(p=0.3, q=0.3)``.
        seed: Seed of the method's own random draws. They do not touch torch's global random state.
        total_steps: How many optimizer steps are planned. Methods that follow a schedule need it.
        optimizer: The model's optimizer. Methods that act on gradients need it, and AttendOut, which trains a second
            model with another like it.
        max_grad_norm: To which norm you clip the model's gradients, so that AttendOut clips its second model's alike.
        scaler: The gradient scaler, if you train in float16 with one. Methods that read gradients themselves need it.
        reward_data: What AttendOut scores models on: a ``DataLoader`` over labelled rows that are not trained on, or a
            list of batches.
        train_data: The training rows, in the same forms, for methods that look at them beforehand (Child-Tuning-D).
        tokenizer: The tokenizer of the model, for methods that change tokens (UniDrop, AttendOut with
            ``scored="noisy_train"``) and have to know which are special.

    Raises:
        AttendropError: The model is not supported by the method, or the method needs something that is not given.
    """
    run, model = model, getattr(model, "_orig_mod", model)
    _refuse_wrapper(model)
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
        scaler=scaler,
        reward_data=labelled_data("reward_data", reward_data, device),
        train_data=labelled_data("train_data", train_data, device),
        **tokens_of(tokenizer),
    )
    regularization = Regularization(setup, method, run)
    try:
        yield regularization
        regularization.finish()
        regularization.warn_of_idleness()
    finally:
        regularization.close()


class Regularization:
    """One method at work on one model: what :func:`regularize` gives, and :class:`RegularizedTrainer` drives.

    Args:
        setup: The model, and what else a method may need.
        method: What to do.
        run: What the pass that trains calls, if not the model itself: the compiled model.

    Attributes:
        session: What the method keeps while it trains.
        steps_taken: Optimizer steps so far.
        batches: Micro-batches so far in this epoch.
        loss_scale: The factor by which gradients are multiplied under float16.
        share: The weight of a mean over the micro-batch in the loss of the step.
        averaged: Micro-batches whose losses are averaged after :meth:`compute`; 1 where ``share`` stands for that.
        advised: Methods of which it was said before training in which epochs they act, and how to make them act in all.
        given: Names of the batch's columns that the pass that trains gives the model; None for all.
    """

    def __init__(self, setup: Setup, method: Method, run: nn.Module | None = None) -> None:
        self.model = setup.model
        self._run = setup.model if run is None else run
        self.method = method
        self.setup = setup
        self.epoch: int | None = None
        self.steps_taken = 0
        self.batches = 0
        self.loss_scale = 1.0
        self.share: float | Tensor = 1.0
        self.averaged = 1
        self.given: Collection[str] | None = None
        self.advised: set[Method] = set()
        self._sequences = 0
        self._acted: set[str] = set()
        self._scale_is_known = setup.scaler is not None or not method.needs_loss_scale
        self._tally = Tally()
        self._figures: dict[str, float] = {}
        self._attachment: Attachment | None = None
        self._hook: Any = None
        self.session = Session(method)
        self.idle = method.regularized_epochs(0) is None
        if not self.idle:
            if method.uses_attention:
                self._attachment = Attachment(setup.model)
            self.session = method.start(setup)
            self._watch_optimizer()
            if self._attachment is not None:
                self._attachment.attach()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins, counted from 0. Methods that alternate, as cross-tuning does, need it."""
        if epoch != self.epoch:  # a resumed run begins within one
            self.batches = 0
        self.epoch = epoch

    def begin_step(self, steps_taken: int) -> None:
        """Say how many optimizer steps were taken before the micro-batches that follow (:meth:`step` counts them)."""
        self.steps_taken = steps_taken
        self._sequences = 0

    @property
    def was_asked(self) -> bool:
        """Whether a loss was computed since the last step."""
        return self._sequences > 0

    def step(self) -> None:
        """Call after each ``optimizer.step()``."""
        self.begin_step(self.steps_taken + 1)
        self._figures |= self.session.named(self.session.after_step(self.steps_taken))

    def finish(self) -> None:
        """Call after the last step: a method that works in periods completes the one that it is in."""
        self._figures |= self.session.named(self.session.finish())

    def warn_of_idleness(self) -> None:
        """Call after training: warns of each method that never acted, or of whose dropping nothing ever came."""
        self._remember_acting()
        if self.idle or self.setup.processes.rank or not (self.steps_taken or self.batches):
            return
        for session in self.session.parts:
            method = session.method
            if method.source not in self._acted:
                advice = "" if method in self.advised else f" {method.rests}".rstrip()
                logger.warning("Method %s never took effect: the model was fine-tuned plainly.%s", method.name, advice)

    @property
    def reads_outputs(self) -> bool:
        """Whether the loss of a step depends on what the model returned, so that it must be one call's."""
        return any(
            overrides(session, Session, "loss")
            or overrides(session, Session, "penalty")
            or overrides(session.method, Method, "penalty")
            for session in self.session.parts
        )

    def figures(self) -> dict[str, float]:
        """What the method had to tell of single steps since the last call; :meth:`logs` has it, too."""
        found, self._figures = self._figures, {}
        return found

    def loss(self, batch: Batch) -> Tensor:
        """Compute the training loss of one micro-batch, with all passes that the method needs.

        Args:
            batch: The model's inputs as a mapping, with labels.

        Returns:
            The loss, a scalar to call ``backward`` on.

        Raises:
            AttendropError: The model is in evaluation mode, and gradients are on; or the method alternates between
                epochs and :meth:`set_epoch` was not called.
        """
        if self.model.training:
            ((batch, _),), _ = self.replayed(batch)
        return self.compute(batch, self._plain)[0]

    def replayed(
        self, batch: Batch, items: Tensor | int | None = None, calls: int | None = None
    ) -> tuple[list[tuple[Batch, Tensor | int | None]], int | None]:
        """The micro-batches to train on in place of a given one: that one, unless the method takes earlier steps again.

        See :meth:`Replay.micro_batches`.

        Args:
            batch: The given one.
            items: How many items the global batch holds, if that is known.
            calls: How many micro-batches the optimizer step has, if that is known.
        """
        self.batches += 1
        replay = self.session.replay()
        if replay is None:
            return [(batch, items)], calls
        return replay.micro_batches(self.steps_taken, batch, items, calls)

    def compute(self, batch: Batch, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """As :meth:`loss`, with the pass that trains given as ``compute_loss(batch, plan, model) -> (loss, outputs)``.

        A plan that it is handed must reach the model as the keyword ``attendrop_plan``.
        """
        extra = {name: batch[name] for name in self.method.columns if name in batch}
        batch = {name: value for name, value in batch.items() if name not in extra} if extra else batch
        if not self.model.training:
            if torch.is_grad_enabled():
                raise AttendropError(
                    "The model is in evaluation mode, in which nothing is regularised: call model.train() before you "
                    "train. To evaluate, switch gradients off: torch.no_grad()."
                )
            return compute_loss(batch, None)
        replay = self.session.replay()
        if replay is None:
            return self._compute(batch, compute_loss, extra, self.steps_taken, self.epoch)
        with replay.one_pass(self.model, self.steps_taken, self.epoch) as (number, epoch):
            return self._compute(batch, compute_loss, extra, number, epoch)

    def _compute(
        self, batch: Batch, compute_loss: ComputeLoss, extra: Mapping[str, Tensor], steps_taken: int, epoch: int | None
    ) -> tuple[Tensor, Any]:
        """The pass after ``steps_taken`` steps, in ``epoch``."""
        rows = number_of_rows(batch)
        processes = self.setup.processes
        first = self._sequences * processes.world_size + processes.rank * rows
        self._sequences += rows
        acting = [] if self.idle else self._acting(epoch)
        self._tally.begin([session.method.source for session in acting])
        if not acting:
            return compute_loss(batch, None)
        if self.setup.scaler is not None:
            self.loss_scale = self.setup.scaler.get_scale()
        total = self.setup.total_steps
        step = Pass(
            model=self.model,
            batch=batch,
            key=DrawKey(self.setup.seed, steps_taken, first, rows),
            tally=self._tally,
            source=self.method.source,
            epoch=epoch,
            progress=None if total is None else min(1.0, steps_taken / max(total, 1)),
            micro_batches=self.averaged * processes.world_size / torch.as_tensor(self.share).clamp(min=1e-12),
            loss_scale=self.loss_scale,
            given=self.given,
            extra=extra,
            attached=self._attachment,
        )
        if self._attachment is not None:
            self._attachment.probe(step.inputs)
        loss, outputs = self.session.loss(step, self._bound(compute_loss))
        loss = loss * torch.as_tensor(self.share).to(loss)
        if not self._scale_is_known and loss.requires_grad:
            loss.register_hook(self._refuse_unknown_scale)  # type: ignore[no-untyped-call]
            self._scale_is_known = True
        return loss, outputs

    def logs(self) -> dict[str, float]:
        """What happened since the last call.

        ``<method>/active``: share of passes in which the method acted. If it did: ``<method>/dropped``, the share of
        positions dropped among those in rows that could have candidates, ``<method>/dropped/<kind>.<layer>``, and what
        else it has to tell. Of several methods at once, each under its own name. Beside them :meth:`figures`.
        """
        if self.idle:
            return {}
        sources = [session.method.source for session in self.session.parts]
        found = self._tally.summary(sources, self.setup.processes.total) | self.figures()
        self._remember_acting()
        self._tally = Tally()
        return found

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold, but for what the method keeps, as plain values."""
        return {
            "seed": self.setup.seed,
            "steps_taken": self.steps_taken,
            "epoch": self.epoch,
            "batches": self.batches,
            "acted": sorted(self._acted),
            "tally": self._tally.state_dict(),
        }

    def session_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the method keeps, tensors and plain values: the same in all processes, and of this one alone."""
        return self.session.state_dict(), self.session.own_state_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], session: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    ) -> None:
        """Go on from a :meth:`state_dict` and a :meth:`session_state`."""
        self.setup = dataclasses.replace(self.setup, seed=state["seed"])
        self.begin_step(state["steps_taken"])
        self.epoch, self.batches = state["epoch"], state["batches"]
        self._acted = set(state["acted"])
        self._tally = Tally(**state["tally"])
        self.session.load_state_dict(*session)

    def close(self) -> None:
        """Give the model back as it was. Idempotent."""
        if self._hook is not None:
            self._hook.remove()
        self.session.close()
        if self._attachment is not None:
            self._attachment.detach()

    def _watch_optimizer(self) -> None:
        """Let what acts on gradients do so just before each step of the optimizer."""
        acting = [session for session in self.session.parts if overrides(session, Session, "edit_gradients")]
        if not acting:
            return
        if self.setup.optimizer is None:
            raise AttendropError(
                f"Method '{acting[0].method.name}' acts on gradients just before the optimizer does: pass your "
                "optimizer, regularize(..., optimizer=optimizer)."
            )
        parameters = dict(self.model.named_parameters())
        self._hook = self.setup.optimizer.register_step_pre_hook(lambda *_: self.session.edit_gradients(parameters))

    def _remember_acting(self) -> None:
        for method in (session.method for session in self.session.parts):
            acted = self._tally.active.get(method.source, 0) > 0
            if acted and (not method.counts_all or self._tally.took_effect(method.source)):
                self._acted.add(method.source)

    def _refuse_unknown_scale(self, gradient: Tensor) -> None:
        """Raise if the loss was scaled for float16, of which nobody told: called with the gradient of the loss."""
        weight = float(gradient) / self.loss_scale
        if abs(weight) > _LARGEST_WEIGHT:
            raise AttendropError(
                f"The loss was multiplied by {weight:g} before the backward pass. Method '{self.method.name}' reads "
                "gradients, and must know by how much these are scaled: pass your gradient scaler, "
                "regularize(..., scaler=scaler)."
            )

    def _acting(self, epoch: int | None) -> list[Session]:
        """The sessions whose methods act in an epoch."""
        if epoch is None and self.method.needs_epoch():
            alternating = next(part for part in self.method.parts if part.needs_epoch())
            raise AttendropError(
                f"Method '{alternating.name}' acts in some epochs: call set_epoch(epoch), from 0, at the start of "
                f"each. {alternating.rests}"
            )
        return [session for session in self.session.parts if session.method.active(epoch or 0)]

    def _plain(self, batch: Batch, plan: Plan | None = None, model: nn.Module | None = None) -> tuple[Tensor, Any]:
        keywords = {} if plan is None else {PLAN_KEYWORD: plan}
        return loss_and_outputs((self._run if model is None else model)(**batch, **keywords))

    def _bound(self, compute_loss: ComputeLoss) -> ComputeLoss:
        def bound(batch: Batch, plan: Plan | None = None, model: nn.Module | None = None) -> tuple[Tensor, Any]:
            plan = None if plan is None else self._attached.bind(plan)
            loss, outputs = compute_loss(batch, plan) if model is None else compute_loss(batch, plan, model)
            share = torch.as_tensor(self.share).to(loss)
            # Sessions see means. Of a micro-batch without labels the loss is 0, and stays so.
            return loss / share.where(share != 0, 1), named_outputs(outputs, batch)

        return bound

    @property
    def _attached(self) -> Attachment:
        assert self._attachment is not None
        return self._attachment


def _refuse_wrapper(model: nn.Module) -> None:
    children = dict(model.named_children())
    around = not hasattr(model, "config") and any(hasattr(child, "config") for child in children.values())
    if around or list(children) in (["module"], ["_fsdp_wrapped_module"]):
        raise AttendropError(
            f"{type(model).__name__} is a wrapper around the model; pass the model itself, its "
            f".{next(iter(children))}, and take one device. RegularizedTrainer trains on several (torchrun)."
        )


def loss_and_outputs(outputs: Any) -> tuple[Tensor, Any]:
    """The loss that a model returned, and all that it returned; raises AttendropError if there is no loss."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
    if loss is None:
        raise AttendropError("The model returned no loss; the batch needs 'labels'.")
    return loss, outputs
