"""Comparison of methods on one's own data: what should this data be fine-tuned with?"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendrop.argument_checks import check_count
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.methods.core.registry import build_method, flat_options, get_method, method_names
from attendrop.output_files import write_json, write_text
from attendrop.runs.config import RunConfig
from attendrop.runs.resolved_run import ResolvedRun, resolve_run
from attendrop.runs.run_folder import read_run
from attendrop.runs.train import train
from attendrop.studies.answer import Answer, answer
from attendrop.studies.baseline_names import BASELINES, FROZEN
from attendrop.studies.durations import duration
from attendrop.studies.method_rows import method_label
from attendrop.studies.setting_search import (
    Setting,
    Trial,
    choose,
    number_of_selection_runs,
    search_settings,
    selection_unit,
)
from attendrop.studies.study import check_study_folder
from attendrop.studies.units import Result, Unit
from attendrop.studies.workers import LOCAL, OnEvent, Runner, open_runner

REFERENCE = "finetune"
DEFAULT_TEST_FRACTION = 0.25
BEST = "best"
# Of the time that is left after all final runs, the search gets at most so much.
_SEARCH_FRACTION = 0.8
_MOST_TRIALS = 12
# How much longer a final run is than one on selection rows, which trains on four fifths of the rows.
_FINAL_TO_SELECTION = 1.3
logger = logging.getLogger(__name__)


def default_methods() -> list[str]:
    """List the methods that are compared where none are named."""
    return [name for name in method_names() if get_method(name).compared]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a comparison.

    Attributes:
        config: Data, model and training of all runs; its method, seed and folder are ignored. Without evaluation data,
            a quarter of the training rows is set aside.
        output_dir: Folder of the answer, the runs and the chosen model.
        methods: Options by method; plain fine-tuning is always compared. Default: :func:`default_methods`.
        seeds: Number of seeds of each method.
        budget: Time in seconds; None: no limit. Seeds that do not fit are left out, for all methods alike, and what
            time is left goes into the search of settings.
        trials: Settings to try of each method, its default included; None: as many as fit into the budget, and only
            the default without a budget.
        folds: Number of selection splits on which settings are scored.
        baselines: Names of baselines, see :mod:`attendrop.studies.baselines`.
        keep_best: Whether to train the recommended model on all rows, and keep it in ``best/``.

    Raises:
        AttendropError: An option is out of range, or a method or baseline is unknown.
    """

    config: RunConfig
    output_dir: str
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {name: {} for name in default_methods()})
    seeds: int = 5
    budget: float | None = None
    trials: int | None = None
    folds: int = 3
    baselines: Sequence[str] = BASELINES
    keep_best: bool = True

    def __post_init__(self) -> None:
        check_count("seeds", self.seeds)
        check_count("folds", self.folds)
        if self.trials is not None:
            check_count("trials", self.trials)
        if self.budget is not None and not self.budget > 0:
            raise AttendropError(f"budget must be above 0 seconds, not {self.budget}.")
        unknown = sorted(set(self.baselines) - set(BASELINES))
        if unknown:
            raise AttendropError(f"There is no baseline '{unknown[0]}'; known are {', '.join(BASELINES)}.")
        methods: dict[str, Mapping[str, Any]] = {REFERENCE: {}} | {
            build_method(name, given).name: given for name, given in self.methods.items()
        }
        object.__setattr__(self, "methods", methods)
        config = self.config
        if config.train_file is not None and config.eval_file is None and not config.test_fraction:
            object.__setattr__(self, "config", dataclasses.replace(config, test_fraction=DEFAULT_TEST_FRACTION))


@dataclass(frozen=True)
class Outcome:
    """Result of a comparison.

    Attributes:
        answer: The table, and the answer in words.
        trials: The settings that were tried, by method; empty without a search.
        best: Folder of the chosen model; None if none was kept.
    """

    answer: Answer
    trials: Mapping[str, Sequence[Trial]] = field(default_factory=dict)
    best: Path | None = None

    @property
    def chosen(self) -> dict[str, Setting]:
        """The chosen setting of each method; empty without a search."""
        return {name: choose(each) for name, each in self.trials.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return self.answer.as_dict() | {
            "trials": {
                name: [{"setting": trial.setting.described, "scores": trial.scores} for trial in each]
                for name, each in self.trials.items()
            },
            "chosen": {name: setting.described for name, setting in self.chosen.items()},
            "best": None if self.best is None else str(self.best),
        }

    def lines(self) -> list[str]:
        """Return the answer in words, and the table."""
        tried = [
            f"{name}: {setting.described}, of {len(self.trials[name])} settings on selection rows."
            for name, setting in self.chosen.items()
        ]
        kept = [] if self.best is None else ["", f"The model is in {self.best}: attendrop predict {self.best} ..."]
        return [*self.answer.lines(), *(["", *tried] if tried else []), *kept]


def run_comparison(
    comparison: Comparison,
    *,
    workers: int | None = None,
    backend: str = LOCAL,
    on_event: OnEvent = lambda event: None,
    on_plan: Callable[[int], None] = lambda units: None,
) -> Outcome:
    """Run a comparison, or what is missing of it.

    All methods train on the same rows, in the same batches and with the same number of steps for the same seed. The
    evaluation rows are scored once for each run. Stopped at any moment and started again, it goes on: finished runs
    are kept, and the answer is the same.

    Args:
        comparison: What to compare.
        workers: Number of processes.
        backend: See :func:`attendrop.studies.workers.run_units`.
        on_event: Called with what happens to runs.
        on_plan: Called with the number of runs, as far as it is known.

    Raises:
        AttendropError: The data cannot be used, or no run of plain fine-tuning succeeded.
    """
    folder = Path(comparison.output_dir)
    check_study_folder(folder)
    announce_splits(resolve_run(comparison.config))  # bad data are to be refused once, and not by each run
    with open_runner(folder, workers=workers, backend=backend) as runner:
        steps = Steps(comparison, runner, on_event, on_plan)
        trials = steps.search()
        found = steps.final_runs(steps.defaults | {name: choose(each) for name, each in trials.items()})
        outcome = Outcome(_answer(found), trials)
        outcome = dataclasses.replace(outcome, best=steps.best(outcome.answer, found) if comparison.keep_best else None)
    write_json(folder / "answer.json", outcome.as_dict())
    write_text(folder / "answer.md", outcome.answer.markdown())
    write_text(folder / "answer.csv", outcome.answer.csv())
    return outcome


def announce_splits(run: ResolvedRun) -> None:
    """Log how many rows there are to train on, and to score the final runs on."""
    parts = run.parts
    if "dev" not in parts.report:
        raise AttendropError("A comparison needs evaluation data: this task has none; give a file with --train-file.")
    logger.info(
        "%s: %s, %d rows to train on, %d for the final scores.",
        run.data.source, run.task.head.labels_are, len(parts.train), len(parts.report["dev"]),
    )  # fmt: skip


def _answer(results: Sequence[Result]) -> Answer:
    failed: list[dict[str, Any]] = [
        {"method": each.unit.method, "options": {}, "seed": each.unit.config.seed, "error": each.error}
        for each in results
        if each.metrics is None
    ]
    return answer([each.metrics for each in results if each.metrics is not None], REFERENCE, failed=failed)


class Steps:
    """Steps of a comparison. What they decide by time follows from the times in ``metrics.json`` of finished runs."""

    def __init__(
        self, comparison: Comparison, runner: Runner, on_event: OnEvent, on_plan: Callable[[int], None]
    ) -> None:
        self.comparison = comparison
        self.runner = runner
        self.on_event = on_event
        self.on_plan = on_plan
        self.defaults = {name: Setting(name, tuple(given.items())) for name, given in comparison.methods.items()}
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

    def final_runs(self, settings: Mapping[str, Setting]) -> list[Result]:
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

    def _units_of(self, seed: int, settings: Mapping[str, Setting]) -> list[Unit]:
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

    def best(self, answer: Answer, results: Sequence[Result]) -> Path:
        """Train the recommended model on all rows, and keep it.

        Where a baseline is recommended that is no model of transformers, this is the best of the fine-tuned models.
        """
        config = self.comparison.config
        chosen = answer.use or REFERENCE
        units = {method_label(each.metrics): each.unit for each in results if each.metrics is not None}
        unit = units[chosen]
        if unit.baseline is not None and unit.baseline != FROZEN:
            unit = units[max((row for row in answer.rows if not row.is_baseline), key=lambda row: row.mean).label]
        changes: dict[str, Any] = {"seed": config.seed, "output_dir": str(self.runner.folder / BEST)}
        changes |= {"selection_fraction": 0.0, "refit": False, "test_fraction": 0.0}
        if unit.baseline == FROZEN:
            changes |= {"max_steps": 0, "head_start": "frozen", "pooling": "mean"}
        wanted = dataclasses.replace(unit.config, **changes)
        place = Path(wanted.output_dir)
        begun = read_run(place)
        same = begun is not None and begun["config"] == wanted.as_dict()
        train(wanted, resume=same, overwrite=begun is not None and not same)
        return place


def _seconds(result: Result) -> float:
    """Return how long a run took, with the loading of model and data and with scoring."""
    return 0.0 if result.metrics is None else float(result.metrics["total_seconds"])


def compare(
    *,
    output_dir: str,
    methods: Sequence[str | Method] | None = None,
    seeds: int = 5,
    budget: float | None = None,
    trials: int | None = None,
    folds: int = 3,
    baselines: Sequence[str] = BASELINES,
    keep_best: bool = True,
    workers: int | None = None,
    backend: str = LOCAL,
    **options: Any,
) -> Outcome:
    """Find out what data should be fine-tuned with: ``attendrop compare`` from Python.

    Example:
        >>> outcome = attendrop.compare(
        ...     train_file="train.csv", text_columns=["text"], label_column="label",
        ...     methods=[attendrop.ADDrop(p=0.2)], seeds=6, output_dir="runs/answer",
        ... )
        >>> print(*outcome.lines())

    Args:
        output_dir: Folder of the answer, the runs and the chosen model. Called again, it goes on there.
        methods: Names or methods with options; an option that is not the default is not searched. Default:
            :func:`default_methods`.
        seeds: Number of seeds of each method.
        budget: Time in seconds; None: no limit.
        trials: Settings to try of each method; None: as many as fit into the budget.
        folds: Number of selection splits on which settings are scored.
        baselines: Names of baselines.
        keep_best: Whether to train the recommended model on all rows, and keep it.
        workers: Number of processes; None: one for each GPU or core.
        backend: See :func:`attendrop.studies.workers.run_units`.
        **options: Options of :class:`attendrop.runs.config.RunConfig`; ``model`` is ``"minilm"`` by default.

    Raises:
        AttendropError: An option or the data cannot be used, or no run of plain fine-tuning succeeded.
    """
    config = RunConfig(**({"model": "minilm", "output_dir": output_dir} | options | {"method": REFERENCE}))
    given = {
        each.name if isinstance(each, Method) else each: changed_options(each) if isinstance(each, Method) else {}
        for each in (default_methods() if methods is None else methods)
    }
    comparison = Comparison(
        config=config,
        output_dir=output_dir,
        methods=given,
        seeds=seeds,
        budget=budget,
        trials=trials,
        folds=folds,
        baselines=baselines,
        keep_best=keep_best,
    )
    return run_comparison(comparison, workers=workers, backend=backend)


def changed_options(method: Method) -> dict[str, Any]:
    """Return the options of a method that are not its defaults."""
    defaults = flat_options(build_method(method.name).options())
    return {name: value for name, value in flat_options(method.options()).items() if value != defaults[name]}
