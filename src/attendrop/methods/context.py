"""What a method is given: the training it is part of, and the micro-batch at hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import Plan
from attendrop.batches import Batch
from attendrop.errors import AttendropError
from attendrop.methods.running_statistics import RunningStatistics
from attendrop.sampling import SampleKey


class ComputeLoss(Protocol):
    """A pass and its loss: ``(loss, outputs)`` of a batch, with a plan for the attention if there is one.

    The loss is a mean over the micro-batch. What a method makes of it is weighted afterwards, as accumulation and DDP
    need it, together with what the method adds to it.

    ``model`` is the model to run where it is not the one that trains: a copy of it, without wrappers.
    """

    def __call__(self, batch: Batch, plan: Plan | None = None, model: nn.Module | None = None, /) -> tuple[Tensor, Any]:
        """Run the model."""
        ...


@dataclass(frozen=True)
class Processes:
    """Those that train together.

    Attributes:
        rank: Number of this one.
        world_size: How many there are. Each is given as many sequences as the others.
        total: Adds a tensor up over them.
    """

    rank: int = 0
    world_size: int = 1
    total: Callable[[Tensor], Tensor] = lambda tensor: tensor


@runtime_checkable
class LabelledData(Protocol):
    """Rows with labels that a method may look at beside the batches that train."""

    def sample(self, seed: int, count: int, size: int) -> Sequence[Batch]:
        """Draw ``count`` items of ``size`` samples each, on the model's device; the seed decides which."""
        ...

    def iter_batches(self, size: int, processes: Processes) -> Iterator[Batch]:
        """All rows once, ``size`` at a time, on the model's device; of these batches the share of this process."""
        ...


@dataclass(frozen=True)
class TrainingContext:
    """What a method finds when training begins.

    Attributes:
        model: The model without wrappers.
        seed: Seed of the method's own random draws.
        processes: Those that train together.
        total_steps: How many optimizer steps are planned, if that is known.
        optimizer: The model's optimizer, if it is known.
        max_grad_norm: Gradients are clipped to this norm, if any.
        scaler: The gradient scaler of float16 training, if there is one.
        reward_data: What models may be scored on, if anything.
        train_data: The training rows, if they are known.
        evaluate: The mean loss of a model on a batch, and its outputs.
        metric: From logits and labels to a score of which more is better, if there is one.
        mask_token: The id that stands for a masked token, if there is one.
        special_tokens: Ids that are never masked.
        act_on_second_model: To be called with a second model that a method trains beside: whatever else regularises the
            first is then done to it, too. Returns what to call before each step of its optimizer.
    """

    model: nn.Module
    evaluate: Callable[[nn.Module, Batch], tuple[Tensor, Any]]
    seed: int = 0
    processes: Processes = field(default_factory=Processes)
    total_steps: int | None = None
    optimizer: torch.optim.Optimizer | None = None
    max_grad_norm: float | None = None
    scaler: torch.amp.GradScaler | None = None
    reward_data: LabelledData | None = None
    train_data: LabelledData | None = None
    metric: Callable[[Any, Any], float] | None = None
    mask_token: int | None = None
    special_tokens: tuple[int, ...] = ()
    act_on_second_model: Callable[[nn.Module], Callable[[], None]] = lambda model: lambda: None


@dataclass(frozen=True)
class StepContext:
    """What a method is given for one micro-batch.

    Attributes:
        model: The model without wrappers.
        batch: Its inputs, with labels.
        key: What fixes the random draws.
        statistics: What happens is counted here; see :meth:`report` and :meth:`note`.
        source: The method's name in logs.
        epoch: Number of the epoch, from 0, if it is known.
        progress: Share of the planned optimizer steps that were taken, in [0, 1]; None if it is not known how many.
        micro_batches: How many micro-batches like this one the global batch holds, by the items that losses average
            over: a penalty that is a sum over this one, times this, is a sum over the global batch.
        loss_scale: The factor by which gradients are multiplied under float16, else 1.
        model_columns: Names of the batch's columns that the pass that trains gives the model (a loss that is computed
            outside of the model keeps the labels from it); None for all.
        extra: Columns of the batch that the method asked for and the model does not know; see :attr:`Method.columns`.
        adapter: The model's attention layers, and passes of its own making; None for methods that say that they do not
            use attention.
    """

    model: nn.Module
    batch: Batch
    key: SampleKey
    statistics: RunningStatistics
    source: str
    epoch: int | None = None
    progress: float | None = None
    micro_batches: float | Tensor = 1.0
    loss_scale: float = 1.0
    model_columns: Collection[str] | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    adapter_if_any: ModelAdapter | None = None

    @property
    def adapter(self) -> ModelAdapter:
        """The model without wrappers, its attention layers, and passes of the method's own making."""
        assert self.adapter_if_any is not None
        return self.adapter_if_any

    @property
    def inputs(self) -> Batch:
        """What of ``batch`` the pass that trains gives the model."""
        if self.model_columns is None:
            return self.batch
        return {name: value for name, value in self.batch.items() if name in self.model_columns}

    def report(self, layer: str, dropped: Tensor, possible: Tensor) -> None:
        """Log the share of what was dropped in a layer: how many, of how many that could have been."""
        self.statistics.count(self.source, layer, dropped, possible)

    def note(self, name: str, value: Tensor | float) -> None:
        """Log a number; the log has its mean over the passes."""
        self.statistics.note(self.source, name, value)

    def planned_progress(self) -> float:
        """``progress``; raises AttendropError if it is not known."""
        if self.progress is None:
            raise AttendropError(
                f"Method '{self.source.replace('_', '-')}' follows the training progress; pass total_steps=, the "
                "number of optimizer steps that are planned, to regularize(...)."
            )
        return self.progress


def tokens_of(tokenizer: Any) -> dict[str, Any]:
    """What a :class:`TrainingContext` says of tokens, given a tokenizer, another processor of inputs, or None."""
    return {
        "mask_token": getattr(tokenizer, "mask_token_id", None),
        "special_tokens": tuple(getattr(tokenizer, "all_special_ids", ())),
    }
