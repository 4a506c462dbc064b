"""Replay of optimizer steps with the same micro-batches and the same random state of the model's own dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

from torch import Tensor, nn

from attendrop.attention.isolation import random_state, set_random_state
from attendrop.errors import AttendropError
from attendrop.model_support.batches import Batch, refuse_graph, to_device


class Replay:
    """Recorder of the micro-batches of the first ``length`` steps, which replace those of later steps.

    Attributes:
        steps: Micro-batches of each recorded step: the batch, on the CPU; the number of items in the global batch, if
            known; and the random state before the pass.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.steps: list[list[dict[str, Any]]] = []
        self._step = -1  # number of the last call's step in the whole run
        self._calls = 0  # number of micro-batches passed in that step
        self._next = 0  # the first micro-batch of that step that has not run

    def micro_batches(
        self, steps_taken: int, batch: Batch, items: Tensor | int | None, calls: int | None
    ) -> tuple[list[tuple[Batch, Tensor | int | None]], int | None]:
        """Return the micro-batches to train on in place of ``batch``, and their number in the step.

        Each has the number of ``items`` in its global batch, if known. If the step has fewer ``calls`` than the
        recorded one, as at the end of an epoch, several recorded micro-batches are returned at once; if it has more,
        the first calls return none.

        Raises:
            AttendropError: There are more calls than ``calls`` or, if that is None, than in the recorded step.
        """
        if steps_taken != self._step:
            self._step, self._calls, self._next = steps_taken, 0, 0
        if steps_taken < self.length:
            refuse_graph(batch)
            self.steps = self.steps[: steps_taken + 1]
            if len(self.steps) <= steps_taken:
                self.steps.append([])
            kept = {name: value.to("cpu", copy=True) if _is_tensor(value) else value for name, value in batch.items()}
            self.steps[-1].append({"batch": kept, "items": items})
            return [(batch, items)], calls
        device = next(value.device for value in batch.values() if _is_tensor(value))
        recorded = self.steps[steps_taken % self.length]
        call, self._calls = self._calls, self._calls + 1
        calls = len(recorded) if calls is None else calls
        if call >= calls:
            raise _mismatch(len(recorded))
        chosen = recorded[call * len(recorded) // calls : (call + 1) * len(recorded) // calls]
        return [(to_device(entry["batch"], device), entry["items"]) for entry in chosen], len(recorded)

    @contextmanager
    def one_pass(self, model: nn.Module, steps_taken: int, epoch: int | None) -> Iterator[tuple[int, int | None]]:
        """Run the model on the next micro-batch within the block, with the random state of the recorded pass.

        Yields its step and epoch numbers.
        """
        entry = self.steps[steps_taken % self.length][self._next]
        self._next += 1
        if steps_taken < self.length:
            entry |= {"random": random_state(model), "epoch": epoch}
            yield steps_taken, epoch
            return
        before = random_state(model)
        set_random_state(model, entry["random"])
        try:
            yield steps_taken % self.length, entry["epoch"]
        finally:
            set_random_state(model, before)

    def check(self, steps_taken: int) -> None:
        """Raise AttendropError unless all micro-batches of the step that follows ``steps_taken`` steps have run."""
        if steps_taken != self._step:
            raise AttendropError("reg.step was called without reg.loss; call reg.loss before each optimizer step.")
        recorded = self.steps[steps_taken % self.length]
        if self._next < len(recorded):
            raise _mismatch(len(recorded))


def _mismatch(count: int) -> AttendropError:
    return AttendropError(
        f"The recorded step of the first trial had {count} micro-batches, and this one has a different number. Call "
        "reg.loss equally often before each optimizer step; skip leftover micro-batches at the end of an epoch."
    )


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor)
