"""Search of settings by optuna: options and learning rates are tuned on selection rows, alike for all methods."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from attendrop.errors import AttendropError
from attendrop.methods.core.options import searched_values
from attendrop.methods.core.registry import get_method, given_options
from attendrop.runs.config import RunConfig
from attendrop.studies.comparison import MethodSetting
from attendrop.studies.units import Result, Unit

SELECTION_FRACTION = 0.2
# How far the learning rate is searched, in both directions.
MOST_FACTOR = 8.0
# Selection splits have separate seeds: none is the seed of a final run.
_FIRST_SEED = 1_000
_LEARNING_RATE = "learning_rate"
logger = logging.getLogger(__name__)


class Trial(NamedTuple):
    """A setting, and its selection scores, one for each fold, None where it failed."""

    setting: MethodSetting
    scores: list[float | None]


def choose(trials: Sequence[Trial]) -> MethodSetting:
    """Choose the first setting, which is the default, unless another is better by more than one standard error.

    The standard error is that of the mean difference, paired by fold. Without this rule, the best of several settings
    on few selection rows is often only the luckiest; of one fold there is no standard error, and the best is chosen.
    Settings that failed are not chosen, and folds in which the default failed do not count.
    """
    default, *others = trials
    best, most = default, -math.inf
    for trial in others:
        pairs = zip(trial.scores, default.scores, strict=True)
        gains = [one - other for one, other in pairs if one is not None and other is not None]
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        if None in trial.scores or (gains and statistics.fmean(gains) <= error):
            continue
        if (mean := statistics.fmean(score for score in trial.scores if score is not None)) > most:
            best, most = trial, mean
    return best.setting


def search_settings(
    config: RunConfig,
    defaults: Sequence[MethodSetting],
    *,
    trials: int,
    folds: int,
    run_units: Callable[[Iterable[Unit]], list[Result]],
    has_time: Callable[[], bool] = lambda: True,
) -> dict[str, list[Trial]]:
    """Try up to ``trials`` settings of each method on selection rows, as long as it ``has_time``.

    They are proposed by optuna's tree-structured Parzen estimator, from the scores so far and the seed alone, so that a
    search that is begun again asks for the same runs, and finds those that are finished. A setting is trained on four
    fifths of the training rows and scored on the others, with another split in each fold. Options and learning rates
    that are given are not searched, nor are those given in other settings of the same method, so that each setting
    stays what it is compared as. One that is proposed twice is tried once.

    Returns:
        The trials by label of the default, which comes first.

    Raises:
        AttendropError: optuna is not installed, or no default can be trained.
    """
    try:
        import optuna
    except ImportError:
        raise AttendropError("--trials needs optuna; run `pip install 'attendrop[search]'`.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    studies, spaces, found = {}, {}, {each.label: list[Trial]() for each in defaults}
    for default in defaults:
        alike = [each for each in defaults if each.method == default.method]
        given = {_LEARNING_RATE for each in alike if each.learning_rate is not None}.union(
            *(each.options for each in alike)
        )
        names = [name.strip() for name in default.method.split("+")]
        space = {
            option if len(names) == 1 else f"{name}.{option}": values  # the default first
            for name in names
            for option, values in searched_values(get_method(name)).items()
        } | {_LEARNING_RATE: (1.0,)}  # as a factor of the default's
        spaces[default.label] = {name: values for name, values in space.items() if name not in given}
        sampler = optuna.samplers.TPESampler(seed=config.seed, n_startup_trials=4)
        studies[default.label] = optuna.create_study(direction="maximize", sampler=sampler)
        studies[default.label].enqueue_trial({name: values[0] for name, values in spaces[default.label].items()})
    first: dict[str, dict[str, Any]] = {}  # the metrics of the defaults
    for number in range(trials):
        if number and not has_time():
            break
        asked = {}
        for default in defaults:
            label, rate, changed = default.label, default.learning_rate, dict[str, Any]()
            if number and (not spaces[label] or label not in first):
                continue
            proposal = studies[label].ask()
            for name, values in spaces[label].items():
                if name != _LEARNING_RATE:
                    value = proposal.suggest_categorical(name, values)
                    changed |= {name: value} if value != values[0] else {}
                elif (factor := proposal.suggest_float(name, 1 / MOST_FACTOR, MOST_FACTOR, log=True)) != 1.0:
                    rate = float(f"{first[label]['training']['learning_rate'] * factor:.3g}")
            # What differs from the default differs from what the default is on these data.
            around = given_options(default.method, first[label]["options"]) if changed else {}
            setting = MethodSetting(default.method, {**around, **default.options, **changed}, rate)
            asked[label] = proposal, Trial(setting, [])
        # Scored on the selection rows of each fold, also where epochs are not, and never on the evaluation rows.
        held_out = {"selection_fraction": SELECTION_FRACTION, "refit": False, "protocol": "honest"}
        runs = list(product(asked, range(folds)))
        results = run_units(
            Unit(asked[label][1].setting.applied(config, seed=_FIRST_SEED + fold, **held_out)) for label, fold in runs
        )
        for (label, _), result in zip(runs, results, strict=True):
            if number == 0 and result.metrics is not None:
                first[label] = result.metrics
            score = (result.metrics or {}).get("selection_score")
            asked[label][1].scores.append(score if score is not None and math.isfinite(score) else None)
        if not first:
            raise AttendropError(f"No run succeeded; the first error: {results[0].error}")
        for label, (proposal, trial) in asked.items():
            scores = [score for score in trial.scores if score is not None]
            complete = len(scores) == folds
            state = optuna.trial.TrialState.COMPLETE if complete else optuna.trial.TrialState.FAIL
            studies[label].tell(proposal, statistics.fmean(scores) if complete else None, state)
            if all(trial.setting != other.setting for other in found[label]):
                found[label].append(trial)
    for label, each in found.items():
        logger.info("Method %s: %d settings were tried; chosen: %s.", label, len(each), choose(each).described)
    return found
