"""The attribution probe of a finished run, on rows that it was not trained on, and its figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from attendrop.batches import to_device
from attendrop.devices import compute_device
from attendrop.errors import AttendropError
from attendrop.reports.attribution_probe import DIRECTIONS, Probe, probe
from attendrop.reports.figure_file import save_figure
from attendrop.reports.run_drops import RowSource
from attendrop.runs.finished_run import FinishedRun, load_finished_run
from attendrop.runs.run_folder import keeps_model
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.splits import subset
from attendrop.tasks.tokenization import columns_of
from attendrop.wording import counted_rows

_BATCH_SIZE = 16
_COLUMNS = 3


@dataclass(frozen=True)
class RunProbe:
    """Probe of a run.

    Attributes:
        run: What was trained on what, for a title.
        rows: Name of the set of rows.
        metric: Name of the score.
        score: The score without dropping.
        scores: The score of each result.
        probe: The results.
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
    """Probe the model of a run on its development rows; without any on its selection split.

    Texts that the run reads in windows are read in all their windows, and scored as in the run.

    Args:
        run_dir: Folder of the run.
        source: How many rows, sampled by the run's seed, and where; no file.
        rates: Fractions of each row of attention to drop, in (0, 1).
        on_pass: See :func:`probe`.

    Raises:
        AttendropError: There is no finished run, it kept no model, its data changed, or it has no rows that it was not
            trained on.
    """
    if not keeps_model(run_dir) and Path(run_dir).is_dir():
        raise AttendropError(f"The run in '{run_dir}' kept no model to probe; name the folder of one that did.")
    run = load_finished_run(run_dir, data_dir=source.data_dir, device=source.device)
    run.task.head.refuse("patterns --probe")
    name = "dev" if "dev" in run.parts.report else run.chosen_on
    if name is None:
        raise AttendropError(
            f"The run in '{run_dir}' has no labelled rows that it was not trained on; train it with an eval-file, or "
            "with --no-refit."
        )
    rows = run.parts.selection if name == "selection" else run.parts.report[name]
    assert rows is not None
    part = run.encoded(subset(rows, source.rows, run.config.seed))
    run.model.to(compute_device(source.device))  # type: ignore[arg-type]
    batches = [to_device(batch, run.model.device) for batch in run.batches(part, _BATCH_SIZE)]
    numbers = run.task.head.row_numbers(columns_of(part))
    found = probe(run.model, batches, rates=rates, seed=run.config.seed, row_numbers=numbers, on_pass=on_pass)
    title = f"{Path(run.metrics['model']).name} on {run.metrics['task']}, seed {run.metrics['seed']}"
    scores = [_score(run, each.logits, part) for each in found.results]
    return RunProbe(title, name, run.task.metric, _score(run, found.logits, part), tuple(scores), found)


def _score(run: FinishedRun, logits: list[Any], rows: Dataset) -> float:
    head = run.task.head
    outputs = head.row_outputs(head.concatenate(logits), columns_of(rows), run.tokenizer)
    return compute_scores(run.task, outputs, head.references(columns_of(rows)))[run.task.metric]


def plot_probe(found: RunProbe, path: Path) -> None:
    """Draw the change of the loss over the rate, for each layer and direction with its 95 % interval, as a PNG file.

    Raises:
        AttendropError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise AttendropError("A picture needs matplotlib; run `pip install attendrop[plots]`.") from None
    layers = list(dict.fromkeys(each.layer for each in found.probe.results))
    rates = sorted({each.rate for each in found.probe.results})
    columns = min(_COLUMNS, len(layers))
    lines = -(-len(layers) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.7 * lines + 0.6), layout="constrained")
    figure.suptitle(f"Probe of {found.run}: {found.sample}", fontsize="medium")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat
    for axes, layer in zip(grid, layers, strict=False):
        for direction, color in zip(DIRECTIONS, ("tab:red", "tab:blue", "tab:gray"), strict=True):
            each = [found.probe.find(layer, rate, direction) for rate in rates]
            axes.plot(rates, [one.change for one in each], "o-", color=color, markersize=3, label=direction)
            bounds = np.array([(one.low, one.high) for one in each]).T
            axes.fill_between(rates, *bounds, color=color, alpha=0.15, linewidth=0)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_title(layer, fontsize="small")
        axes.grid(alpha=0.3)
    for axes in list(grid)[len(layers) :]:
        axes.set_axis_off()
    figure.supxlabel("fraction of each row of attention dropped", fontsize="small")
    figure.supylabel("change of the mean loss", fontsize="small")
    figure.axes[0].legend(title="attribution dropped", fontsize="x-small", title_fontsize="x-small")
    save_figure(figure, path, format="png", dpi=150)
