"""Comparison of methods on custom data: which one should be used to fine-tune on it?"""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendrop.argument_checks import did_you_mean
from attendrop.attention.adapter import find_attention_layers
from attendrop.errors import AttendropError
from attendrop.methods.core.registry import build_method, labelled_method
from attendrop.runs.config import RunConfig, declared, takes_options
from attendrop.runs.data import fingerprint
from attendrop.runs.model_loading import load_for, load_tokenizer
from attendrop.runs.resolved_run import resolve_run
from attendrop.runs.run_file import partial_of
from attendrop.runs.run_folder import holds_run, read_metrics
from attendrop.runs.train import train
from attendrop.studies.answer import Answer, answer
from attendrop.studies.baselines import defined_for, run_baseline
from attendrop.studies.best_model import add_scores, best_model
from attendrop.studies.comparison import Comparison, MethodSetting, check_record, write_record
from attendrop.studies.executor import LOCAL, OnEvent, Runner, open_runner
from attendrop.studies.setting_search import Trial, choose, search_settings
from attendrop.studies.study import check_study_folder, write_compared, write_reports
from attendrop.studies.units import REFERENCE, Event, Job, Result, Unit, check_evaluation, duration
from attendrop.studies.worker import StepReports
from attendrop.tasks.base import Task
from attendrop.text_tables import in_markdown
from attendrop.wording import counted

# How much longer a final run is than one on selection rows, which trains on four fifths of the rows.
_FINAL_TO_SELECTION = 1.3
OnPlan = Callable[[Sequence[Unit], int], None]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Result of a comparison.

    Attributes:
        trials: The settings that were tried, by label of the one they began with; empty without a search.
        kept: Label of the row whose model was kept; None if none was.
        best: Folder of this model.
    """

    answer: Answer
    trials: Mapping[str, Sequence[Trial]] = field(default_factory=dict)
    kept: str | None = None
    best: Path | None = None

    @property
    def chosen(self) -> dict[str, MethodSetting]:
        """The chosen settings, by label of the one they began with; empty without a search."""
        return {label: choose(each) for label, each in self.trials.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return self.answer.as_dict() | {
            "trials": {
                name: [{"setting": trial.setting.described, "scores": trial.scores} for trial in each]
                for name, each in self.trials.items()
            },
            "chosen": {name: setting.described for name, setting in self.chosen.items()},
            "kept": self.kept,
            "best": None if self.best is None else str(self.best),
        }

    @property
    def choices(self) -> list[str]:
        """Describe the chosen settings, and what they were chosen from; empty without a search."""
        lines = []
        for name, setting in self.chosen.items():
            failed = sum(None in trial.scores for trial in self.trials[name])
            tried = f"{len(self.trials[name])} settings{f' ({failed} failed)' if failed else ''}"
            lines.append(f"{name}: {setting.described}, of {tried} on selection rows.")
        return lines

    def markdown(self) -> str:
        """Return the answer as Markdown, with the chosen settings."""
        return self.answer.markdown() + "".join(f"\n{in_markdown(line)}\n" for line in self.choices)

    def lines(self) -> list[str]:
        """Return the answer in words, the table, and the chosen settings."""
        lines = [*self.answer.lines(), *([""] if self.trials else []), *self.choices]
        if self.best is not None:
            model = "The model" if self.kept == self.answer.use else f"The model of {self.kept}"  # none is recommended
            lines += ["", f"{model} is in {self.best}: attendrop predict {shlex.quote(str(self.best))} ..."]
        return lines


@takes_options(Comparison, RunConfig)
def compare(*, output_dir: str, workers: int | None = None, backend: str = LOCAL, **options: Any) -> Outcome:
    """Find out which method to fine-tune data with: ``attendrop compare`` from Python.

    Example:
        >>> outcome = attendrop.compare(
        ...     train_file="train.csv", text_columns=["text"], label_column="label",
        ...     methods=[attendrop.ADDrop(p=0.1), attendrop.ADDrop(p=0.3)], seeds=6, output_dir="runs/answer",
        ... )
        >>> print(*outcome.lines())

    Args:
        output_dir: Folder of the answer, the runs and the chosen model. Another call continues there.
        workers: Number of processes; 0: this one; None: one for each GPU or core.
        backend: See :func:`attendrop.studies.executor.run_units`.
        **options: ``methods``, ``seeds``, ``budget``, ``trials``, ``folds``, ``baselines`` and ``keep_best``, see
            :class:`attendrop.studies.comparison.Comparison`, and options of
            :class:`attendrop.runs.config.RunConfig`; ``model`` is ``"minilm"`` by default.

    Raises:
        AttendropError: An option or the data cannot be used, or no run of plain fine-tuning succeeded.
    """
    own = {name: options.pop(name) for name in declared(Comparison) if name in options}
    known = ({field.name for field in dataclasses.fields(RunConfig)} | {*declared(Comparison)}) - {"method"}
    if unknown := [name for name in options if name not in known]:
        hint = did_you_mean(unknown[0], sorted(known)) or "; help(attendrop.compare) lists them."
        raise AttendropError(f"compare has no option {unknown[0]!r}{hint}")
    check_evaluation(options)
    config = RunConfig(**({"model": "minilm", "output_dir": output_dir} | options | {"method": REFERENCE}))
    return run_comparison(Comparison(config=config, output_dir=output_dir, **own), workers=workers, backend=backend)


def run_comparison(
    comparison: Comparison,
    *,
    workers: int | None = None,
    backend: str = LOCAL,
    on_event: OnEvent = lambda event: None,
    on_plan: OnPlan = lambda units, more: None,
) -> Outcome:
    """Run a comparison, or its missing runs.

    All methods train on the same rows, in the same batches and with the same number of steps for the same seed. The
    evaluation rows are scored once for each run. It can be stopped at any moment and started again: finished runs are
    kept, and the answer is the same. See :func:`attendrop.studies.executor.run_units` for the other options;
    ``on_plan`` is called with the runs, as far as they are known, and the number of further ones.

    Raises:
        AttendropError: The data cannot be used, or a method on the model, the folder holds the answer of another
            comparison, or no run of plain fine-tuning succeeded.
    """
    folder = Path(comparison.output_dir)
    check_study_folder(folder, comparison=True)
    run = resolve_run(comparison.config)  # bad data and models are to be refused once, and not by each run
    load_tokenizer(comparison.config.model, run.task)
    _refuse_unusable(comparison, run.task)
    check_record(folder, comparison.config)
    parts = run.parts
    if "dev" not in parts.report:
        raise AttendropError("A comparison needs evaluation data: this task has none; give a file with --train-file.")
    unlike = f", {len(parts.report['shifted'])} for those on unlike rows" if "shifted" in parts.report else ""
    logger.info(
        "%s: %s, %s to train on, %d for the final scores%s.",
        run.data.source, run.task.head.labels_are, parts.trained_on(run.config.label_names), len(parts.report["dev"]),
        unlike,
    )  # fmt: skip
    if run.data.looks_grouped:
        logger.warning("%s", run.data.looks_grouped)
    comparison = comparison.of_baselines(defined_for(run.task))
    with open_runner(folder, workers=workers, backend=backend) as runner:
        write_record(folder, comparison.config)
        steps = Steps(comparison, runner, on_event, on_plan)
        trials = steps.search()
        results = steps.final_runs(steps.defaults | {label: choose(each) for label, each in trials.items()})
        failed = [each.failure() for each in results if each.metrics is None]
        found = answer([each.metrics for each in results if each.metrics is not None], failed=failed)
        outcome = Outcome(found, trials)
        write_compared(folder, {"": results}, REFERENCE)
        write_reports(folder, outcome.markdown(), outcome.as_dict(), found.csv())  # whatever becomes of the model
        if comparison.keep_best:
            runner.release()
            kept, best = _keep_best(comparison.config, found, results, folder, on_event)
            outcome = dataclasses.replace(outcome, kept=kept, best=best)
            write_reports(folder, outcome.markdown(), outcome.as_dict(), found.csv())
    return outcome


def _refuse_unusable(comparison: Comparison, task: Task) -> None:
    """Raise AttendropError for methods that cannot act on the attention of the model, before others train for hours."""
    methods = {setting.label: build_method(setting.method, setting.options) for setting in comparison.methods}
    acting = {label: method for label, method in methods.items() if method.info.uses_attention}
    if not acting:
        return
    model, refused = load_for(comparison.config.model, task, comparison.config.pooling).model, {}
    for label, method in acting.items():
        try:
            method.selected_layers(find_attention_layers(model))
        except AttendropError as error:
            refused[label] = str(error)
    if refused:
        names, reason = ", ".join(refused), next(iter(refused.values()))
        model_name = comparison.config.model
        raise AttendropError(f"{names} cannot act on {model_name!r}; name other methods by --methods. {reason}")


def _keep_best(
    config: RunConfig, found: Answer, results: Sequence[Result], folder: Path, on_event: OnEvent
) -> tuple[str, Path]:
    """Train the recommended model on all rows; return the label of its row, and its folder."""
    wanted = best_model(found, results, config, resolve_run(config).task.head, folder)
    job = Job(wanted, Path(wanted.config.output_dir))
    place, rows = job.folder, fingerprint(resolve_run(wanted.config).parts)
    try:
        finished = read_metrics(place) if holds_run(place, wanted.config, rows, wanted.baseline) else None
        same = holds_run(partial_of(place), wanted.config, rows, wanted.baseline)
        if finished is None:
            on_event(Event("started", job))
        reports = StepReports(lambda message: on_event(Event(job=job, **message)))
        if finished is not None:
            metrics = finished
        elif wanted.baseline is None:
            metrics = train(wanted.config, resume=same, overwrite=not same, callbacks=[reports])
        else:
            metrics = run_baseline(wanted.config, wanted.baseline, keep_model=True, overwrite=not same)
        on_event(Event("kept" if finished is not None else "finished", job, metrics=metrics))
    except AttendropError as error:
        told = f"The answer is in {folder / 'answer.md'}, but its model could not be trained and kept: {error}"
        raise AttendropError(told) from error
    kept = found.use or REFERENCE
    add_scores(found, kept, place)
    return kept, place


class Steps:
    """The runs of a comparison.

    What depends on time follows from the times in ``metrics.json`` of finished runs, and of runs that failed now.
    """

    def __init__(self, comparison: Comparison, runner: Runner, on_event: OnEvent, on_plan: OnPlan) -> None:
        self.comparison, self.runner, self.on_event, self.on_plan = comparison, runner, on_event, on_plan
        self.defaults = {setting.label: setting for setting in comparison.methods}
        self._seconds: dict[Path, float] = {}  # of each run

    @property
    def spent(self) -> float:
        """Time of all runs, including loading of model and data, and scoring, divided among the workers."""
        return sum(self._seconds.values()) / self.runner.workers

    def run(self, units: Iterable[Unit]) -> list[Result]:
        """Run units, and note their time."""
        results = self.runner.run(units, self.on_event)
        for result in results:
            self._seconds[result.folder] = float((result.metrics or {}).get("total_seconds", result.seconds))
        return results

    def search(self) -> dict[str, list[Trial]]:
        """Try settings of all methods; none if only the defaults are requested."""
        comparison = self.comparison
        if comparison.trials == 1:
            return {}
        final = comparison.seeds * (len(comparison.methods) + len(comparison.baselines))
        self.on_plan([], len(comparison.methods) * comparison.trials * comparison.folds + final)
        return search_settings(
            comparison.config,
            comparison.methods,
            trials=comparison.trials,
            folds=comparison.folds,
            run_units=self.run,
            has_time=self._has_time,
        )

    def _has_time(self) -> bool:
        """Whether another setting of each method fits into the budget, beside all final runs, which take longer."""
        comparison = self.comparison
        once = self.spent / len(self._seconds) * len(comparison.methods)
        needed = once * (comparison.folds + comparison.seeds * _FINAL_TO_SELECTION)
        return comparison.budget is None or self.spent + needed <= comparison.budget

    def final_runs(self, settings: Mapping[str, MethodSetting]) -> list[Result]:
        """Train all methods with one seed, then with all others that fit into the budget."""
        seeds, budget = self.comparison.seeds, self.comparison.budget
        more = len(self._seconds) + self.comparison.keep_best  # trials, and the model that is kept
        units = [unit for seed in range(seeds) for unit in self._units_of(seed, settings)]
        self.on_plan(units, more)
        before = self.spent
        found = self.run(units[: len(units) // seeds])
        once = self.spent - before
        if budget is not None:
            seeds = min(seeds, 1 + int(max(0.0, budget - self.spent) / max(once, 1e-3)))
            units = units[: seeds * len(found)]
            self.on_plan(units, more)
        logger.info(
            "A seed of all methods and baselines takes about %s: %s %s in all.",
            duration(once), f"{counted(seeds, 'seed')} take{'s' * (seeds == 1)}",
            duration(self.spent + once * (seeds - 1)),
        )  # fmt: skip
        if seeds < self.comparison.seeds:
            logger.warning("Only %d of %d seeds fit into the budget.", seeds, self.comparison.seeds)
        found += self.run(units[len(found) :])
        plain = [each for each in found if each.unit.method == REFERENCE]
        if not any(each.metrics for each in plain):
            raise AttendropError(f"No run of plain fine-tuning succeeded; the first error: {plain[0].error}")
        labels = self._labels(seeds, settings)
        return [each.labelled(labels.get(each.unit.key())) for each in found]

    def _labels(self, seeds: int, settings: Mapping[str, MethodSetting]) -> dict[str, str]:
        """Name the runs of methods with a learning rate of their own by it, too: other rows have that of all runs."""
        labels: dict[str, str] = {}
        for label, setting in settings.items():
            rate = self.defaults[label].learning_rate
            if rate is not None and setting.method != REFERENCE:
                named = f"{labelled_method(setting.method, setting.options)} learning_rate={rate:g}"
                units = [Unit(setting.applied(self.comparison.config, seed=seed)) for seed in range(seeds)]
                labels |= {unit.key(): named for unit in units}
        return labels

    def _units_of(self, seed: int, settings: Mapping[str, MethodSetting]) -> list[Unit]:
        config = self.comparison.config
        plain = dataclasses.replace(config, method=REFERENCE, options={}, seed=seed)
        return [
            *(Unit(setting.applied(config, seed=seed)) for setting in settings.values()),
            *(Unit(plain, baseline=name) for name in self.comparison.baselines),
        ]
