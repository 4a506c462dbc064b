"""The attribution probe: loss and score of a trained model while attention of high or low attribution is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.edits import AttentionCall, AttentionEdit
from attendrop.attention.isolation import evaluating
from attendrop.attention.model_outputs import logits_of
from attendrop.attention.plan import Plan
from attendrop.attribution.gradient import gradient_attribution
from attendrop.attribution.targets import fix_target
from attendrop.errors import AttendropError
from attendrop.model_support.batches import Batch, number_of_rows, to_device
from attendrop.model_support.devices import compute_device
from attendrop.randomness.candidates import candidate_region
from attendrop.randomness.keyed_random import SampleKey, sample_mask
from attendrop.reports.figures import picture_file, run_title, wrapped
from attendrop.reports.run_drops import RowSource
from attendrop.runs.finished_run import FinishedRun, load_finished_run
from attendrop.studies.statistics import mean_interval
from attendrop.tasks.long_texts import DOCUMENT, document_means
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.splits import subset
from attendrop.tasks.tokenization import columns_of
from attendrop.text_tables import csv_table
from attendrop.wording import counted_rows

DIRECTIONS = ("high", "low", "random")


@dataclass(frozen=True)
class ProbeResult:
    """Effect of dropping in one layer.

    Attributes:
        rate: Fraction of each row of attention that is dropped.
        direction: ``"high"``, ``"low"`` or ``"random"``.
        loss: Mean loss of the rows.
        change: Difference of the mean loss from that without dropping.
        low, high: Ends of its 95 % interval, from the differences of the rows; NaN for a single row.
        logits: The model's logits, an array for each batch.
    """

    layer: str
    rate: float
    direction: str
    loss: float
    change: float
    low: float
    high: float
    logits: list[Any]


@dataclass(frozen=True)
class Probe:
    """Results of a probe.

    Attributes:
        windows: Number of encoded rows; where texts are read in windows, there are more than rows.
        loss: Mean loss without dropping; the loss of a row is the mean over its windows.
        logits: Logits without dropping, an array for each batch.
        results: For each layer, rate and direction.
        rows_with_signal: Fraction of the rows of attention whose attributions are not all equal, by layer; only in
            these, positions of high or low attribution can be dropped.
    """

    rows: int
    windows: int
    loss: float
    logits: list[Any]
    results: tuple[ProbeResult, ...]
    rows_with_signal: Mapping[str, float]

    @property
    def by_place(self) -> dict[tuple[str, float, str], ProbeResult]:
        """Results by layer, rate and direction."""
        return {(each.layer, each.rate, each.direction): each for each in self.results}

    def csv(self, scores: Sequence[float], name: str) -> str:
        """Write the results as CSV, with a score of each and its name."""
        rows = []
        for result, score in zip(self.results, scores, strict=True):
            numbers = (score, result.loss, result.change, result.low, result.high)
            values = ("" if math.isnan(value) else f"{value:.6f}" for value in numbers)
            rows.append((result.layer, result.rate, result.direction, *values))
        return csv_table(("layer", "rate", "direction", name, "loss", "loss_change", "low", "high"), rows)


def probe(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    *,
    rates: Sequence[float],
    seed: int = 0,
    row_numbers: Sequence[Any] | None = None,
    on_pass: Callable[[int, int], None] | None = None,
) -> Probe:
    """Evaluate a model while attention positions are dropped from the scores of one layer at a time.

    ``"high"`` and ``"low"`` drop whole candidate regions, see
    :func:`attendrop.randomness.candidates.candidate_region`, with the rate as ``p``; ``"random"`` drops each position
    with that probability. The model's own dropout is off.

    Deviations: rows of attention whose attributions are all equal keep all their positions, where the authors' code
    drops them whole for ``"high"``; ``"random"`` is a third direction, as in section 2.2.

    Args:
        model: The model.
        batches: Labelled rows, on the model's device.
        rates: Fractions, in (0, 1).
        seed: Seed of the random positions.
        row_numbers: For each example of the batches, the number of its row, which several examples share if texts are
            in windows; None: each is a row.
        on_pass: Called before each pass with the number of passes done, and the number of all.

    Raises:
        AttendropError: A rate is out of its range, or there are no rows; or the model is not supported.
    """
    if not batches:
        raise AttendropError("There are no rows to probe on.")
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise AttendropError(f"rates={list(rates)} must be above 0 and below 1, such as 0.1,0.3,0.5.")
    found: dict[tuple[str, float, str] | None, tuple[list[Tensor], list[Any]]] = {}
    signal: dict[str, list[tuple[int, int]]] = {}
    done = windows = 0
    with ModelAdapter(model) as adapter, evaluating(model):
        for batch in batches:
            layers = adapter.trace(batch)
            attributions = gradient_attribution(adapter, batch, layers, "gold_label")
            count = number_of_rows(batch)
            key = SampleKey(seed, 0, windows, count)
            windows += count
            plans: dict[tuple[str, float, str] | None, Plan | None] = {None: None}
            for name, rate, direction in product(attributions, rates, DIRECTIONS):
                region = _DropRegion(name, attributions[name], rate, direction, key, signal)
                plans[name, rate, direction] = region
            for entry, plan in plans.items():
                if on_pass is not None:
                    on_pass(done, len(plans) * len(batches))
                done += 1
                with torch.no_grad():
                    outputs = adapter.forward(batch, plan)
                losses, logits = found.setdefault(entry, ([], []))
                losses.append(_row_losses(model, outputs, batch))
                logits.append(logits_of(outputs).float().cpu().numpy())
    texts = {} if row_numbers is None else {DOCUMENT: row_numbers}
    means = {entry: document_means(torch.cat(losses).numpy(), texts) for entry, (losses, _) in found.items()}
    plain = means[None]
    results = []
    for entry, (_, logits) in found.items():
        if entry is not None:
            change = mean_interval(means[entry] - plain)
            low, high = (end if math.isfinite(end) else math.nan for end in (change.low, change.high))
            results.append(ProbeResult(*entry, float(means[entry].mean()), change.value, low, high, logits))
    shares = {layer: sum(of[0] for of in each) / max(sum(of[1] for of in each), 1) for layer, each in signal.items()}
    return Probe(len(plain), windows, float(plain.mean()), found[None][1], tuple(results), shares)


class _DropRegion(Plan):
    """Plan that drops a region of one layer, and counts attention rows, and those with a signal."""

    acts_on = frozenset({"attention"})

    def __init__(
        self,
        layer: str,
        attribution: Tensor,
        rate: float,
        direction: str,
        key: SampleKey,
        signal: dict[str, list[tuple[int, int]]],
    ) -> None:
        super().__init__()
        self.layer_keys = (layer,)
        self.attribution, self.rate, self.direction = attribution, rate, direction
        self.key, self.signal = key, signal

    def edit(self, call: AttentionCall) -> AttentionEdit:
        if self.direction == "random":
            name = f"{call.layer.key}/{self.rate}"
            drop = sample_mask(self.rate, self.key, name, call.shape, call.origins(), call.device)
            return AttentionEdit(drop=drop)
        region = candidate_region(self.attribution, call.valid, self.rate, self.direction)
        rows = call.valid_queries()
        if self.direction == "high":
            tokens = torch.ones_like(region.signal) if rows is None else rows.expand(region.signal.shape)
            self.signal.setdefault(call.layer.key, []).append((int((region.signal & tokens).sum()), int(tokens.sum())))
        return AttentionEdit(drop=region.mask if rows is None else region.mask & rows)


def _row_losses(model: torch.nn.Module, outputs: Any, batch: Batch) -> Tensor:
    """Compute the loss of each row: cross-entropy of classes, otherwise minus the attributed score of gold labels."""
    labels, logits = batch.get("labels"), logits_of(outputs)
    if labels is not None and logits.ndim == 2 and labels.ndim == 1 and not labels.is_floating_point():
        losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    else:
        losses = -fix_target(model, outputs, batch, "gold_label")(outputs)
    return losses.detach().double().cpu()


_BATCH_SIZE = 16
_COLUMNS = 3


@dataclass(frozen=True)
class RunProbe:
    """Probe of a run.

    Attributes:
        run: What was trained on what, for a title.
        rows: Name of the set of rows.
        score, scores: The score without dropping, and that of each result.
    """

    run: str
    rows: str
    metric: str
    score: float
    scores: tuple[float, ...]
    probe: Probe

    @property
    def sample(self) -> str:
        """The rows in words, such as "16 rows of dev, 40 windows"."""
        return counted_rows(self.probe.rows, f"rows of {self.rows}", self.probe.windows)


def probe_run(
    run_dir: str, source: RowSource, rates: Sequence[float], on_pass: Callable[[int, int], None] | None = None
) -> RunProbe:
    """Probe the model of a run on its development rows; if there are none, on its selection split.

    Texts that the run reads in windows are read in all their windows, and scored as in the run. The rows are sampled
    with the run's seed. See :func:`probe` for the other options.

    Raises:
        AttendropError: There is no finished run, it kept no model, its data changed, or it has no rows that it was not
            trained on.
    """
    run = load_finished_run(run_dir, data_dir=source.data_dir, device=source.device)
    run.task.head.refuse("patterns --probe")
    run.check_held_out()
    name, rows = ("dev", run.parts.report["dev"]) if "dev" in run.parts.report else ("selection", run.parts.selection)
    assert rows is not None
    part = run.encoded(subset(rows, source.rows, run.config.seed))
    run.model.to(compute_device(source.device))  # type: ignore[arg-type]
    batches = [to_device(batch, run.model.device) for batch in run.batches(part, _BATCH_SIZE)]
    numbers = run.task.head.row_numbers(columns_of(part))
    found = probe(run.model, batches, rates=rates, seed=run.config.seed, row_numbers=numbers, on_pass=on_pass)
    score, *scores = [_score(run, logits, part) for logits in (found.logits, *(each.logits for each in found.results))]
    return RunProbe(run_title(run.metrics), name, run.task.metric, score, tuple(scores), found)


def _score(run: FinishedRun, logits: list[Any], rows: Dataset) -> float:
    head, columns = run.task.head, columns_of(rows)
    outputs = head.row_outputs(head.concatenate(logits), columns, run.tokenizer)
    return compute_scores(run.task, outputs, head.references(columns))[run.task.metric]


def plot_probe(found: RunProbe, path: Path) -> None:
    """Draw the change of the loss over the rate, for each layer and direction with its 95 % interval, as a PNG file."""
    layers = list(dict.fromkeys(each.layer for each in found.probe.results))
    rates = sorted({each.rate for each in found.probe.results})
    columns = min(_COLUMNS, len(layers))
    lines = -(-len(layers) // columns)
    with picture_file(path, (3.6 * columns, 2.7 * lines + 0.6), lines, columns, sharex=True, sharey=True) as grid:
        figure = grid[0, 0].figure
        figure.suptitle("\n".join(wrapped(f"Probe of {found.run}: {found.sample}", 3.6 * columns)), fontsize="medium")
        for axes, layer in zip(grid.flat, layers, strict=False):
            for direction, color in zip(DIRECTIONS, ("tab:red", "tab:blue", "tab:gray"), strict=True):
                each = [found.probe.by_place[layer, rate, direction] for rate in rates]
                axes.plot(rates, [one.change for one in each], "o-", color=color, markersize=3, label=direction)
                bounds = np.array([(one.low, one.high) for one in each]).T
                axes.fill_between(rates, *bounds, color=color, alpha=0.15, linewidth=0)
            axes.axhline(0, color="black", linewidth=0.8)
            axes.set_title(layer, fontsize="small")
            axes.grid(alpha=0.3)
        for axes in grid.flat[len(layers) :]:
            axes.set_axis_off()
        figure.supxlabel("fraction of each row of attention dropped", fontsize="small")
        figure.supylabel("change of the mean loss", fontsize="small")
        grid[0, 0].legend(title="attribution dropped", fontsize="x-small", title_fontsize="x-small")
