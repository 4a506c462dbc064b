"""Charts of curves over epochs: training loss, scores on held-out rows, and both losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from attendrop.reports.figures import Chart, Looks, Mark, drawing, label_axes, methods_shown
from attendrop.reports.results import ReportedRun, ReportedSetting
from attendrop.studies.words import number
from attendrop.wording import decimals

# Values by epoch, of each seed.
Curves = list[dict[int, float]]
_LINES, _BANDS = "Lines: mean over seeds", "; bands: from the lowest to the highest seed"
# Bands of more methods cover each other.
_MOST_BANDS = 4
# Curves of more epochs have no markers; curves of more epochs have fewer tooltips.
_MOST_MARKERS, _MOST_MARKS = 12, 25
_OWN_ROWS = "rows held out of the training data, which are never those of the final score"
_REPORTED_ROWS = "the rows of the final score, which is optimistic, because the epoch is chosen on them"
_HELD_OUT = "no run has scores on held-out rows; train with --selection-fraction 0.1"


def learning_curves(setting: ReportedSetting, every: Looks) -> Chart | str:
    """Draw the training loss over epochs of each method."""
    found = _collected(setting, lambda run: run.history, lambda entry: entry["train_loss"])
    if not found:
        return "no run has a training loss of each epoch"
    caption = "Training loss over epochs, with what the method adds to it or drops. "
    return _over_epochs("learning_curves", "Learning curves", setting, every, {"training loss": found}, caption)


def convergence(setting: ReportedSetting, every: Looks) -> Chart | str:
    """Draw the score of each epoch of each method."""
    metric = setting.answer.metric
    found = _collected(setting, lambda run: run.selection_history, lambda entry: entry["selection"].get(metric))
    if not found:
        return _HELD_OUT
    caption = f"Score after each epoch on {_scored_rows(setting, found)}. "
    return _over_epochs("convergence", "Convergence", setting, every, {metric: found}, caption)


def losses(setting: ReportedSetting, every: Looks) -> Chart | str:
    """Draw training and validation loss over epochs of each method."""
    training = _collected(setting, lambda run: run.selection_history, lambda entry: entry["train_loss"])
    validation = _collected(setting, lambda run: run.selection_history, lambda entry: entry.get("selection_loss"))
    if not validation:
        return f"{_HELD_OUT} (runs of older versions kept no validation loss)"
    caption = f"Validation loss: on {_scored_rows(setting, validation)}. "
    caption += "A training loss that falls while the validation loss rises is overfitting. "
    training = {label: training[label] for label in validation if label in training}
    panels = {"training loss": training, "validation loss": validation}
    return _over_epochs("losses", "Training and validation loss", setting, every, panels, caption)


def _scored_rows(setting: ReportedSetting, labels: Collection[str]) -> str:
    """Describe the rows on which the epochs of these methods are scored."""
    runs = {label: setting.by_label[label] for label in labels}
    reported = [label for label in runs if any(run.selects_on_reported for run in runs[label])]
    if not reported:
        return _OWN_ROWS
    if all(run.selects_on_reported for each in runs.values() for run in each):
        return _REPORTED_ROWS
    return f"{_OWN_ROWS}; of runs with protocol paper ({', '.join(reported)}), on {_REPORTED_ROWS}"


def _collected(
    setting: ReportedSetting,
    history: Callable[[ReportedRun], Sequence[Mapping[str, Any]]],
    value: Callable[[Mapping[str, Any]], float | None],
) -> dict[str, Curves]:
    """Collect the finite values of each epoch of all runs, by label."""
    found: dict[str, Curves] = {}
    for label, runs in setting.by_label.items():
        for run in runs:
            values = {int(entry["epoch"]): value(entry) for entry in history(run)}
            curve = {epoch: float(each) for epoch, each in values.items() if each is not None and math.isfinite(each)}
            if curve:
                found.setdefault(label, []).append(curve)
    return found


def _over_epochs(
    kind: str,
    title: str,
    setting: ReportedSetting,
    every: Looks,
    panels: Mapping[str, Mapping[str, Curves]],
    caption: str,
) -> Chart:
    """Draw panels of curves by their name."""
    methods, left_out = methods_shown(setting, {label for panel in panels.values() for label in panel}, every)
    banded = len(methods) <= _MOST_BANDS
    with drawing(2.9 if len(panels) == 1 else 2.3, methods, len(panels)) as drawn:
        from matplotlib.ticker import MaxNLocator

        for panel, (name, curves) in zip(drawn.panels, panels.items(), strict=True):
            label_axes(panel, "epoch" if panel is drawn.axes else "", name)
            shown = (abs(value) for found in curves.values() for curve in found for value in curve.values())
            digits = decimals(max(shown, default=0) / 100, 3)
            for label, method in methods.items():
                if label not in curves:
                    continue
                found = curves[label]
                epochs = sorted({epoch for curve in found for epoch in curve})
                values = [[curve[epoch] for curve in found if epoch in curve] for epoch in epochs]
                means, lows, highs = ([of(each) for each in values] for of in (statistics.fmean, min, max))
                look = {**method, **({} if len(epochs) <= _MOST_MARKERS else {"marker": ""})}
                (drawn.entries[label],) = panel.plot(epochs, means, **look)
                if banded:
                    panel.fill_between(epochs, lows, highs, color=method["color"], alpha=0.12, linewidth=0)
                apart = -(-len(epochs) // _MOST_MARKS)
                for epoch, mean, low, high, each in zip(epochs, means, lows, highs, values, strict=True):
                    spread = f" ({number(low, digits)} to {number(high, digits)})" if len(each) > 1 else ""
                    if (epoch - epochs[-1]) % apart == 0:
                        text = f"{label}, epoch {epoch}: {name} {number(mean, digits)}{spread}"
                        drawn.marks.append(Mark(panel, epoch, mean, text))
                    ends = (number(value, digits) for value in (mean, low, high))
                    drawn.rows.append([label, str(epoch), name, *ends, str(len(each))])
        # By default there are two ticks or more, which a single epoch does not have.
        drawn.axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    header = ("method", "epoch", "value of", "mean", "lowest", "highest", "seeds")
    return drawn.chart(kind, setting.name, title, f"{caption}{_LINES}{_BANDS if banded else ''}.{left_out}", header)
