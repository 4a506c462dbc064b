"""Comparison of methods on one's own data: what should this data be fine-tuned with?"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.output_files import write_json, write_text
from attendrop.runs.config import RunConfig
from attendrop.runs.model_loading import load_preprocessor
from attendrop.runs.resolved_run import ResolvedRun, resolve_run
from attendrop.studies.answer import Answer, answer
from attendrop.studies.baselines import defined_for
from attendrop.studies.comparison import REFERENCE, Comparison, default_methods
from attendrop.studies.comparison_outcome import Outcome
from attendrop.studies.comparison_record import check_record, write_record
from attendrop.studies.comparison_steps import Steps
from attendrop.studies.executor import LOCAL, OnEvent, open_runner
from attendrop.studies.method_setting import MethodSetting
from attendrop.studies.setting_search import choose
from attendrop.studies.study import check_study_folder
from attendrop.studies.units import CHEAP, Result

logger = logging.getLogger(__name__)


def compare(
    *,
    output_dir: str,
    methods: Sequence[str | Method] | None = None,
    seeds: int = 5,
    budget: float | None = None,
    trials: int | None = None,
    folds: int = 3,
    baselines: Sequence[str] = CHEAP,
    keep_best: bool = True,
    workers: int | None = None,
    backend: str = LOCAL,
    **options: Any,
) -> Outcome:
    """Find out what data should be fine-tuned with: ``attendrop compare`` from Python.

    Example:
        >>> outcome = attendrop.compare(
        ...     train_file="train.csv", text_columns=["text"], label_column="label",
        ...     methods=[attendrop.ADDrop(p=0.1), attendrop.ADDrop(p=0.3)], seeds=6, output_dir="runs/answer",
        ... )
        >>> print(*outcome.lines())

    Args:
        output_dir: Folder of the answer, the runs and the chosen model. Called again, it goes on there.
        methods: Names or methods with options, one or several settings of each; an option that is not the default is
            not searched. Default: :func:`default_methods`.
        seeds: Number of seeds of each method.
        budget: Time in seconds; None: no limit.
        trials: Settings to try of each method; None: as many as fit into the budget.
        folds: Number of selection splits on which settings are scored.
        baselines: Names of baselines: those above, or ``setfit``, too, which takes as long as a fine-tuning.
        keep_best: Whether to train the recommended model on all rows, and keep it.
        workers: Number of processes; None: one for each GPU or core.
        backend: See :func:`attendrop.studies.executor.run_units`.
        **options: Options of :class:`attendrop.runs.config.RunConfig`; ``model`` is ``"minilm"`` by default.

    Raises:
        AttendropError: An option or the data cannot be used, or no run of plain fine-tuning succeeded.
    """
    config = RunConfig(**({"model": "minilm", "output_dir": output_dir} | options | {"method": REFERENCE}))
    settings = [MethodSetting.of(each) for each in (default_methods() if methods is None else methods)]
    comparison = Comparison(
        config=config,
        output_dir=output_dir,
        methods=settings,
        seeds=seeds,
        budget=budget,
        trials=trials,
        folds=folds,
        baselines=baselines,
        keep_best=keep_best,
    )
    return run_comparison(comparison, workers=workers, backend=backend)


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
        backend: See :func:`attendrop.studies.executor.run_units`.
        on_event: Called with what happens to runs.
        on_plan: Called with the number of runs, as far as it is known.

    Raises:
        AttendropError: The data cannot be used, the folder holds the answer of another comparison, or no run of plain
            fine-tuning succeeded.
    """
    folder = Path(comparison.output_dir)
    check_study_folder(folder, comparison=True)
    run = resolve_run(comparison.config)  # bad data and models are to be refused once, and not by each run
    load_preprocessor(comparison.config.model, run.task)
    check_record(folder, comparison.config)
    announce_splits(run)
    comparison = comparison.of_baselines(defined_for(run.task))
    with open_runner(folder, workers=workers, backend=backend) as runner:
        write_record(folder, comparison.config)
        steps = Steps(comparison, runner, on_event, on_plan)
        trials = steps.search()
        found = steps.final_runs(steps.defaults | {label: choose(each) for label, each in trials.items()})
        outcome = Outcome(_answer(found), trials)
        _write(outcome, folder)  # whatever becomes of the model
        if comparison.keep_best:
            runner.release()
            kept, best = steps.best(outcome.answer, found)
            outcome = dataclasses.replace(outcome, kept=kept, best=best)
            _write(outcome, folder)
    return outcome


def _write(outcome: Outcome, folder: Path) -> None:
    """Write the files of the answer."""
    write_json(folder / "answer.json", outcome.as_dict())
    write_text(folder / "answer.md", outcome.answer.markdown())
    write_text(folder / "answer.csv", outcome.answer.csv())


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
        {"method": each.unit.method, "options": each.unit.options, "seed": each.unit.config.seed, "error": each.error}
        for each in results
        if each.metrics is None
    ]
    return answer([each.metrics for each in results if each.metrics is not None], REFERENCE, failed=failed)
