"""Steps of a comparison: the search of settings, the final runs, and the model that is kept."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from attendrop.errors import AttendropError
from attendrop.runs.data import fingerprint
from attendrop.runs.resolved_run import resolve_run
from attendrop.runs.run_folder import holds_run, read_run
from attendrop.runs.train import train
from attendrop.studies.answer import Answer
from attendrop.studies.best_model import add_scores, best_model
from attendrop.studies.comparison import REFERENCE, Comparison
from attendrop.studies.executor import OnEvent, Runner
from attendrop.studies.method_setting import MethodSetting
from attendrop.studies.setting_search import (
    Trial,
    number_of_selection_runs,
    search_settings,
    selection_unit,
)
from attendrop.studies.units import Result, Unit, duration

# Of the time that is left after all final runs, the search gets at most so much.
_SEARCH_FRACTION = 0.8
_MOST_TRIALS = 12
# How much longer a final run is than one on selection rows, which trains on four fifths of the rows.
_FINAL_TO_SELECTION = 1.3
logger = logging.getLogger(__name__)


class Steps:
    """Steps of a comparison. What they decide by time follows from the times in ``metrics.json`` of finished runs."""

    def __init__(
        self, comparison: Comparison, runner: Runner, on_event: OnEvent, on_plan: Callable[[int], None]
    ) -> None:
        self.comparison = comparison
        self.runner = runner
        self.on_event = on_event
        self.on_plan = on_plan
        self.defaults = {setting.label: setting for setting in comparison.methods}
        self.spent = 0.0
        self._counted: set[Path] = set()

    def run(self, units: Iterable[Unit]) -> list[Result]:
        """Run units, and add up their time."""
        results = self.runner.run(units, self.on_event)
        for result in results:
            if result.metrics is not None and result.folder not in self._counted:
                self._counted.add(result.folder)
                self.spent += _seconds(result) / self.runner.workers
        return results

    def search(self) -> dict[str, list[Trial]]:
        """Try settings of all methods; none if only the defaults are wanted, or fit into the budget."""
        comparison = self.comparison
        if comparison.trials == 1 or (comparison.trials is None and comparison.budget is None):
            return {}
        first = self.run(selection_unit(comparison.config, setting, 0) for setting in self.defaults.values())
        if all(result.metrics is None for result in first):
            raise AttendropError(f"No run succeeded; the first error: {first[0].error}")
        trials = comparison.trials or self._trials_that_fit(first)
        if trials == 1:
            return {}
        self.on_plan(
            len(comparison.methods) * number_of_selection_runs(trials, comparison.folds) + self._number_of_final_runs
        )
        rate = next(result.metrics["training"]["learning_rate"] for result in first if result.metrics is not None)
        return search_settings(
            comparison.config,
            comparison.methods,
            trials=trials,
            folds=comparison.folds,
            learning_rate=rate,
            run_units=self.run,
        )

    def _trials_that_fit(self, first: Sequence[Result]) -> int:
        """Count the settings that fit into the budget, beside all final runs."""
        comparison = self.comparison
        assert comparison.budget is not None
        once = sum(_seconds(result) for result in first) / self.runner.workers
        left = comparison.budget - self.spent - once * comparison.seeds * _FINAL_TO_SELECTION
        fitting = 1
        for trials in range(2, _MOST_TRIALS + 1):
            if once * number_of_selection_runs(trials, comparison.folds) <= left * _SEARCH_FRACTION:
                fitting = trials
        logger.info(
            "A run of each of the %d methods takes about %s: %s.",
            len(first),
            duration(once),
            f"{fitting} settings of each are tried" if fitting > 1 else "the budget leaves no time to try settings",
        )
        return fitting

    def final_runs(self, settings: Mapping[str, MethodSetting]) -> list[Result]:
        """Train all methods with one seed, then with all others that fit into the budget."""
        comparison = self.comparison
        self.on_plan(len(self._counted) + self._number_of_final_runs)
        before = self.spent
        found = self.run(self._units_of(0, settings))
        once = self.spent - before
        seeds = comparison.seeds
        if comparison.budget is not None:
            seeds = min(seeds, 1 + int(max(0.0, comparison.budget - self.spent) / max(once, 1e-3)))
        self._announce(once, seeds)
        found += self.run(unit for seed in range(1, seeds) for unit in self._units_of(seed, settings))
        if not any(each.metrics for each in found if each.unit.method == REFERENCE):
            errors = [each.error for each in found if each.unit.method == REFERENCE]
            raise AttendropError(f"No run of plain fine-tuning succeeded; the first error: {errors[0]}")
        return found

    @property
    def _number_of_final_runs(self) -> int:
        return self.comparison.seeds * (len(self.comparison.methods) + len(self.comparison.baselines))

    def _units_of(self, seed: int, settings: Mapping[str, MethodSetting]) -> list[Unit]:
        config = self.comparison.config
        plain = dataclasses.replace(config, method=REFERENCE, options={}, seed=seed)
        return [
            *(Unit(setting.applied(config, seed=seed)) for setting in settings.values()),
            *(Unit(plain, baseline=name) for name in self.comparison.baselines),
        ]

    def _announce(self, once: float, seeds: int) -> None:
        comparison = self.comparison
        logger.info(
            "A seed of all methods and baselines takes about %s: %d seeds take %s in all.",
            duration(once), seeds, duration(self.spent + once * (seeds - 1)),
        )  # fmt: skip
        if seeds < comparison.seeds:
            logger.warning("Only %d of %d seeds fit into the budget.", seeds, comparison.seeds)

    def best(self, answer: Answer, results: Sequence[Result]) -> tuple[str, Path]:
        """Train the recommended model on all rows, and keep it; see :func:`attendrop.studies.best_model.best_model`.

        Returns:
            The label of its row, and its folder.
        """
        config, folder = self.comparison.config, self.runner.folder
        label, wanted = best_model(answer, results, config, resolve_run(config).task.head, folder)
        place = Path(wanted.output_dir)
        same = holds_run(place, wanted, fingerprint(resolve_run(wanted).parts))
        try:
            train(wanted, resume=same, overwrite=not same and read_run(place) is not None)
        except AttendropError as error:
            told = f"The answer is in {folder / 'answer.md'}, but its model could not be trained and kept: {error}"
            raise AttendropError(told) from error
        add_scores(answer, label, place)
        return label, place


def _seconds(result: Result) -> float:
    """Return how long a run took, with the loading of model and data and with scoring."""
    return 0.0 if result.metrics is None else float(result.metrics["total_seconds"])
