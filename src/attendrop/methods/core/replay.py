"""Optimizer steps that are taken again: with the same micro-batches, and the same dropout of the model's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

from torch import Tensor, nn

from attendrop.attention.isolation import random_state, set_random_state
from attendrop.batches import Batch, refuse_graph, to_device
from attendrop.errors import AttendropError


class Replay:
    """Records the micro-batches of the first steps, and gives them again in place of those of later steps.

    Args:
        length: How many optimizer steps are recorded, and then taken again and again.

    Attributes:
        steps: The micro-batches of each recorded step: the batch, on the CPU, the number of items in the global batch,
            if that is known, and the random state before the pass.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.steps: list[list[dict[str, Any]]] = []
        self._step = -1  # of the whole run, that of the last call
        self._calls = 0  # micro-batches that were given in it
        self._next = 0  # the first micro-batch of it that has not run

    def micro_batches(
        self, steps_taken: int, batch: Batch, items: Tensor | int | None, calls: int | None
    ) -> tuple[list[tuple[Batch, Tensor | int | None]], int | None]:
        """Those to train on in place of one that was given, and how many the step has.

        Args:
            steps_taken: Optimizer steps so far.
            batch: What was given.
            items: How many items the global batch holds, if that is known.
            calls: How many micro-batches the step has, if that is known. Where it has fewer than the recorded one, as
                the last step of an epoch may, some of the recorded ones come together; where it has more, there are
                none for the first ones.

        Returns:
            Micro-batches, each with the number of items in its global batch; and ``calls`` of the recorded step.

        Raises:
            AttendropError: The step has more micro-batches than the recorded one, by count of the calls.
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
        """Run a pass of the model on the micro-batch that is next, within the block.

        Yields:
            The numbers of its step and of its epoch: those of the recorded pass. So is the random state.
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
        """Call when the step after ``steps_taken`` steps was taken; raises AttendropError if some of it did not run."""
        recorded = self.steps[steps_taken % self.length]
        if self._next < len(recorded):
            raise _mismatch(len(recorded))


def _mismatch(count: int) -> AttendropError:
    return AttendropError(
        f"A trial takes the steps of the first one again, and this one had {count} micro-batches. Call reg.loss as "
        "often before each optimizer step; leave out micro-batches that are left over at the end of an epoch."
    )


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor)
