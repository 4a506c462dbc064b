"""Contexts passed to methods: the training run, the current micro-batch, and the statistics of its log."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import digits
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from attendrop.attention.plan import Plan
from attendrop.errors import AttendropError
from attendrop.randomness.keyed_random import SampleKey
from attendrop.support.models import Batch, model_inputs, number_of_rows, to_device

if TYPE_CHECKING:
    from attendrop.attention.adapter import ModelAdapter


ComputeLoss = Callable[..., tuple[Tensor, Any]]
"""Forward pass, ``compute_loss(batch, plan=None, model=None) -> (loss, outputs)``, positional arguments only.

The loss is a mean over the micro-batch. The loss that a method returns, with its penalties, is weighted afterwards for
gradient accumulation and DDP. ``model`` is an unwrapped copy to run in place of the trained model.
"""


@dataclass(frozen=True)
class Processes:
    """Distributed process group, in which each process trains on the same number of sequences."""

    rank: int = 0
    world_size: int = 1
    total: Callable[[Tensor], Tensor] = lambda tensor: tensor  # sum over the processes
    gather: Callable[[Any], list[Any]] = lambda value: [value]  # what they pass, in the order of their ranks


@dataclass
class LabelledRows:
    """Labelled rows that a method may read beside the training batches; raises AttendropError if there are none."""

    rows: Any  # a data set with random access, or a list of batches
    collate: Callable[[list[Any]], Any] | None  # makes a batch of rows; None: rows are batches, whatever the size asked
    device: torch.device  # the model's

    def __post_init__(self) -> None:
        if not len(self.rows):
            raise AttendropError("The data is empty.")

    def __len__(self) -> int:
        return len(self.rows) if self.collate else sum(map(number_of_rows, self.rows))

    def sample(self, seed: int, count: int, size: int) -> list[Batch]:
        """Sample ``count`` batches of ``size`` different rows each (all, if there are fewer)."""
        generator, rows = random.Random(seed), range(len(self.rows))
        size = min(size if self.collate else 1, len(rows))
        return [self._batch(generator.sample(rows, size)) for _ in range(count)]

    def iter_batches(self, size: int, processes: Processes) -> Iterator[Batch]:
        """Iterate once over all rows in batches of ``size``; each rank gets its part of them."""
        size = size if self.collate else 1
        for start in range(processes.rank * size, len(self.rows), size * processes.world_size):
            yield self._batch(range(start, min(start + size, len(self.rows))))

    def _batch(self, numbers: Iterable[int]) -> Batch:
        rows = [self.rows[i] for i in numbers]
        return to_device(self.collate(rows) if self.collate else rows[0], self.device)


@dataclass(frozen=True)
class TrainingContext:
    """Context of a training run, passed to :meth:`Method.start`; what is not known, or not there, is None.

    Attributes:
        model: The model without wrappers.
        seed: Seed of the method's random numbers.
        processes: The distributed process group.
        total_steps: Number of optimizer steps planned.
        optimizer: The model's optimizer.
        max_grad_norm: Norm to which gradients are clipped.
        scaler: The gradient scaler of float16 training.
        reward_data: Rows to score models on.
        train_data: The training rows.
        evaluate: Computes the mean loss of a model on a batch, and its outputs, in the model's own mixed precision
            unless within :func:`attendrop.attention.hooks.in_full_precision`. A third argument is a plan for the
            pass, bound to the model.
        metric: Computes a score (higher is better) from logits and their labelled batch.
        mask_token: Id of the mask token.
        special_tokens: Ids of tokens that are never masked.
        act_on_second_model: Applies the other methods of a composition to a second model that this method trains.
            Returns a function to call before each step of its optimizer.
        leaves_out_padding: Whether linear layers may leave out padding on a CPU.
        on_rewind: Functions to call when a method starts again from the initial weights; a state that keeps a record of
            the weights adds one that discards it.
    """

    model: nn.Module
    evaluate: Callable[..., tuple[Tensor, Any]]
    seed: int = 0
    processes: Processes = field(default_factory=Processes)
    total_steps: int | None = None
    optimizer: torch.optim.Optimizer | None = None
    max_grad_norm: float | None = None
    scaler: torch.amp.GradScaler | None = None
    reward_data: LabelledRows | None = None
    train_data: LabelledRows | None = None
    metric: Callable[[Tensor, Batch], float] | None = None
    mask_token: int | None = None
    special_tokens: tuple[int, ...] = ()
    leaves_out_padding: bool = False
    act_on_second_model: Callable[[nn.Module], Callable[[], None]] = lambda model: lambda: None
    on_rewind: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class LayerCounts:
    """Numbers of dropped and of possible units of some layers of a pass."""

    names: Sequence[str]  # ``source/layer``
    pairs: Tensor  # ``(layers, 2)``
    ran: set[int] = field(default_factory=set)  # the places of those that have run; the others count nothing


class RunningStatistics:
    """Statistics of the training passes, kept on their device to avoid synchronization.

    ``active`` is the number of ``passes`` in which each source was active. ``sums`` holds pairs: the numbers of dropped
    and of possible units by ``SOURCE/dropped/LAYER``, and the sum and number of values by ``SOURCE/NAME``.
    """

    def __init__(
        self,
        passes: int = 0,
        active: Mapping[str, int] | None = None,
        sums: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.passes = passes
        self.active = Counter(active)
        self._sums: dict[tuple[str, ...], Tensor] = {}  # by the names that are counted together, ``(names, 2)``
        for name, pair in (sums or {}).items():
            self.add([name], torch.tensor([pair], dtype=torch.float64))
        self._pending: list[tuple[int, LayerCounts]] = []  # with the number of the pass

    @property
    def sums(self) -> dict[str, Tensor]:
        """Pairs of numbers, ``(2,)``, by name."""
        self._settle(math.inf)
        found: dict[str, Tensor] = {}
        for names, pairs in self._sums.items():
            for name, pair in zip(names, pairs, strict=True):
                found[name] = pair + found[name].to(pair.device) if name in found else pair
        return found

    def add(self, names: Sequence[str], pairs: Tensor) -> None:
        """Add pairs of numbers, ``(names, 2)``, to those of their names."""
        key = tuple(names)
        self._sums[key] = pairs + self._sums[key].to(pairs.device) if key in self._sums else pairs

    def count(self, counts: LayerCounts) -> None:
        """Add the counts of layers, once the pass has shown which of them run."""
        self._settle(self.passes)
        self._pending.append((self.passes, counts))

    def _settle(self, before: float) -> None:
        """Add what passes have counted that began before a number of them."""
        for began, each in self._pending:
            if began < before and (ran := sorted(each.ran)):
                pairs = each.pairs if len(ran) == len(each.names) else each.pairs[ran]
                self.add([each.names[place] for place in ran], pairs)
        self._pending = [pending for pending in self._pending if pending[0] >= before]

    def state_dict(self) -> dict[str, Any]:
        """Return the constructor arguments that restore this object, as plain values."""
        sums = {name: pair.tolist() for name, pair in self.sums.items()}
        return {"passes": self.passes, "active": dict(self.active), "sums": sums}

    @classmethod
    def merged(cls, states: Iterable[Mapping[str, Any]]) -> RunningStatistics:
        """Sum the :meth:`state_dict` of several processes."""
        found = cls()
        for each in (cls(**state) for state in states):
            found.passes += each.passes
            found.active.update(each.active)
            for name, pair in each.sums.items():
                found.add([name], pair[None])
        return found

    def summary(
        self, sources: Sequence[str], total: Callable[[Tensor], Tensor], gather: Callable[[Any], list[Any]]
    ) -> dict[str, float]:
        """Return the metrics of these sources, over all processes, which may have counted different ones.

        ``SOURCE/active``: the fraction of passes in which it was active; ``SOURCE/dropped`` and
        ``SOURCE/dropped/LAYER``: the fractions of dropped units, if it counts any; ``SOURCE/NAME``: means of metrics.
        """
        own_sums = self.sums
        known = {name for names in gather(list(own_sums)) for name in names}
        # Layers of a kind in the order of their numbers.
        names = sorted(known, key=lambda name: (name.rstrip(digits), len(name), name))
        pairs = [torch.tensor([self.active[source], self.passes]) for source in sources]
        pairs += [own_sums.get(name, torch.zeros(2)).cpu() for name in names]
        summed = iter(total(torch.stack([pair.double() for pair in pairs])).tolist() if pairs else [])
        active, sums = ({name: next(summed) for name in each} for each in (sources, names))
        found: dict[str, float] = {}
        for source in sources:
            own = {name: pair for name, pair in sums.items() if name.startswith(f"{source}/")}
            layers = {name: pair for name, pair in own.items() if name.startswith(f"{source}/dropped/")}
            ratios = {f"{source}/active": active[source]}
            if layers:
                ratios[f"{source}/dropped"] = [sum(column) for column in zip(*layers.values(), strict=True)]
            found |= {name: pair[0] / max(pair[1], 1) for name, pair in (ratios | layers | own).items()}
        return found


@dataclass(frozen=True)
class StepContext:
    """Context of one micro-batch.

    Attributes:
        model: The model without wrappers.
        batch: Inputs and labels.
        key: Key of the random numbers.
        statistics: Collects the logged values; see :meth:`report` and :meth:`note`.
        source: The method's name in logs.
        epoch: Number of the epoch, from 0, if known.
        progress: Fraction of the planned optimizer steps taken so far, in [0, 1]; None if their number is unknown.
        micro_batches: Size of the global batch relative to this micro-batch, in the items over which losses average:
            the sum over the micro-batch times this number estimates the sum over the global batch.
        loss_scale: Factor by which gradients are multiplied under float16, for methods that declare
            ``needs_loss_scale``; otherwise 1.
        as_inputs: Returns what the model receives for a batch: some of its columns (not the labels, if the loss is
            computed outside the model), or what a trainer makes of them. None: all columns.
        evaluate: That of the :class:`TrainingContext`; None where nothing is trained.
        adapter: The model's adapter: its attention layers, and additional passes of the method. None, which no method
            meets that declares that it acts on attention, if :attr:`Method.uses_attention` is False.
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
    as_inputs: Callable[[Batch], Batch] | None = None
    evaluate: Callable[..., tuple[Tensor, Any]] | None = None
    adapter: ModelAdapter = cast("ModelAdapter", None)  # noqa: RUF009

    @cached_property
    def inputs(self) -> Batch:
        """What the model receives for ``batch``."""
        return model_inputs(self.batch) if self.as_inputs is None else self.as_inputs(self.batch)

    def run_loss(self, plan: Plan) -> Any:
        """Run an additional pass of the training loss with a plan, and return outputs with ``loss``, a mean."""
        if self.evaluate is None:
            return self.adapter.forward(self.batch, plan)
        return SimpleNamespace(loss=self.evaluate(self.model, self.batch, self.adapter.bind(plan))[0])

    def report(self, layer: str, dropped: Tensor, possible: Tensor) -> None:
        """Log the fraction of dropped units of a layer, given the numbers of dropped and of possible units."""
        self.report_layers([layer], dropped[None], possible[None]).ran.add(0)

    def report_layers(self, layers: Sequence[str], dropped: Tensor, possible: Tensor) -> LayerCounts:
        """Log the fractions of several layers, numbers of units ``(layers,)``: of those that are marked as run."""
        names = [f"{self.source}/dropped/{layer}" for layer in layers]
        counts = LayerCounts(names, torch.stack([dropped, possible], -1))
        self.statistics.count(counts)
        return counts

    def note(self, name: str, value: Tensor | float) -> None:
        """Log a number, averaged over the passes."""
        if isinstance(value, Tensor):
            value = value.detach().double()
            pair = torch.stack([value, torch.ones_like(value)])
        else:
            pair = torch.tensor([value, 1.0], dtype=torch.float64)
        self.statistics.add([f"{self.source}/{name}"], pair[None])

    def planned_progress(self) -> float:
        """Return ``progress``; raises AttendropError if it is unknown."""
        if self.progress is None:
            raise AttendropError(
                f"Method '{self.source.replace('_', '-')}' depends on the training progress, and the number of planned "
                "optimizer steps is unknown; pass total_steps= to regularize(...)."
            )
        return self.progress


def tokens_of(tokenizer: Any) -> dict[str, Any]:
    """Return the token fields of a :class:`TrainingContext`, given a tokenizer, another processor, or None."""
    return {
        "mask_token": getattr(tokenizer, "mask_token_id", None),
        "special_tokens": tuple(getattr(tokenizer, "all_special_ids", ())),
    }
