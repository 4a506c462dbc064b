"""Settings of methods, and tuning of options and learning rates on selection rows, alike for all methods."""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from attendrop.methods.core.base import Method
from attendrop.methods.core.options import searched_values
from attendrop.methods.core.registry import check_method, get_method, given_options
from attendrop.runs.config import RunConfig
from attendrop.studies.units import Result, Unit

SELECTION_FRACTION = 0.2
# One for each setting tried by default, at most: plain fine-tuning has nothing else to search.
LEARNING_RATE_FACTORS = (1.0, 0.125, 0.25, 0.35, 0.5, 0.7, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
# Selection splits have separate seeds: none is the seed of a final run.
_FIRST_SEED = 1_000
_LEARNING_RATE = "learning_rate"
logger = logging.getLogger(__name__)
RunUnits = Callable[[Iterable[Unit]], list[Result]]


@dataclass(frozen=True)
class MethodSetting:
    """A method, or several joined by ``+``, with options, and a learning rate; None: the run's own."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None

    @classmethod
    def of(cls, method: str | Method | MethodSetting) -> MethodSetting:
        """Make the setting of a method, or of a name: its defaults; raises AttendropError for anything else."""
        if isinstance(method, MethodSetting):
            return method
        if isinstance(method, str):
            return cls(method)
        return cls(check_method(method).name, given_options(method.name, method.options()))

    def applied(self, config: RunConfig, **changes: Any) -> RunConfig:
        """Return the options of a run with this setting."""
        if self.learning_rate is not None:
            changes["learning_rate"] = self.learning_rate
        return dataclasses.replace(config, method=self.method, options=dict(self.options), **changes)

    @property
    def label(self) -> str:
        """Name of the method with its options, such as "METHOD p=0.9"."""
        return " ".join([self.method, *self._changes])

    @property
    def described(self) -> str:
        """What differs from the defaults."""
        return " ".join(self._changes) or "its defaults"

    @property
    def _changes(self) -> list[str]:
        found = [f"{name}={value}" for name, value in self.options.items()]
        return found if self.learning_rate is None else [*found, f"learning_rate={self.learning_rate:g}"]


@dataclass(frozen=True)
class Trial:
    """A setting, and its selection scores, one for each fold, None if it failed; fewer if it was stopped early."""

    setting: MethodSetting
    scores: list[float | None] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether it has no score in one of its folds."""
        return None in self.scores

    @property
    def mean(self) -> float:
        """Mean of the scores so far; below all others if one is missing, whatever the metric."""
        return -math.inf if self.failed else statistics.fmean(score for score in self.scores if score is not None)


def choose(trials: Sequence[Trial]) -> MethodSetting:
    """Choose the first setting, which is the default, unless another is better by more than one standard error.

    The standard error is that of the mean difference, paired by fold. Without this rule, the best of several settings
    on few selection rows is often only the luckiest; of one fold there is no standard error, and the best is chosen.
    Settings that failed or were stopped early are not chosen, and folds in which the default failed do not count.
    """
    default, *others = trials
    best = default
    for trial in others:
        if trial.failed or len(trial.scores) < len(default.scores):
            continue
        pairs = zip(trial.scores, default.scores, strict=True)
        gains = [one - other for one, other in pairs if one is not None and other is not None]
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        if (not gains or statistics.fmean(gains) > error) and trial.mean > best.mean:
            best = trial
    return best.setting


def search_settings(
    config: RunConfig,
    defaults: Sequence[MethodSetting],
    *,
    trials: int,
    folds: int,
    learning_rate: float,
    run_units: RunUnits,
    decided: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, list[Trial]]:
    """Try settings of methods on selection rows.

    Each setting is trained on four fifths of the training rows and scored on the others, with another split in each
    fold. After each fold, only the better half of a method's settings, and its default, remain. All methods have the
    same number of settings, plain fine-tuning included, for which only the learning rate is searched: up to 12, since
    there are no more of these. Options and learning rates that are given are not searched, nor are those given in other
    settings of the same method, so that each setting stays what it is compared as.

    For each default, at most ``trials`` trials are made, itself included; ``learning_rate`` is that of the defaults
    that have none, and ``decided`` has, by their label, the options that the data decided.

    Returns:
        The trials by label of the default, which comes first.
    """
    given: dict[str, set[str]] = {}
    for default in defaults:
        rate = () if default.learning_rate is None else (_LEARNING_RATE,)
        given.setdefault(default.method, set()).update(default.options, rate)
    found = {}
    for default in defaults:
        around = (decided or {}).get(default.label, {})
        settings = _settings(default, given[default.method], around, trials, learning_rate, config.seed)
        found[default.label] = [Trial(setting) for setting in settings]
    alive = dict(found)
    for fold in range(folds):
        asked = [trial for each in alive.values() for trial in each]
        results = run_units(selection_unit(config, trial.setting, fold) for trial in asked)
        for trial, result in zip(asked, results, strict=True):
            score = (result.metrics or {}).get("selection_score")
            trial.scores.append(score if score is not None and math.isfinite(score) else None)
        alive = {name: _better_half(each) for name, each in alive.items()}
    for name, each in found.items():
        logger.info("Method %s: %d settings were tried; chosen: %s.", name, len(each), choose(each).described)
    return found


def _better_half(trials: Sequence[Trial]) -> list[Trial]:
    default, *others = trials
    return [default, *sorted(others, key=lambda trial: -trial.mean)[: len(trials) // 2]]


def selection_unit(config: RunConfig, setting: MethodSetting, fold: int) -> Unit:
    """Make the run of a setting that is scored on the selection rows of a fold, also where epochs are not."""
    held_out = {"selection_fraction": SELECTION_FRACTION, "refit": False, "protocol": "honest"}
    return Unit(setting.applied(config, seed=_FIRST_SEED + fold, **held_out))


def number_of_selection_runs(trials: int, folds: int) -> int:
    """Count the runs that :func:`search_settings` needs for a method, at most."""
    runs, alive = 0, trials
    for _ in range(folds):
        runs += alive
        alive = 1 + min(alive - 1, alive // 2)
    return runs


def _settings(
    default: MethodSetting,
    given: Collection[str],
    around: Mapping[str, Any],
    trials: int,
    learning_rate: float,
    seed: int,
) -> list[MethodSetting]:
    """Propose settings, each once: the default, then others at random that keep the given options.

    The others differ from what the default is on these data, ``around``.
    """
    space = {name: values for name, values in search_space(default.method).items() if name not in given}
    if _LEARNING_RATE not in given:
        space[_LEARNING_RATE] = tuple(learning_rate * factor for factor in LEARNING_RATE_FACTORS)
    defaults = {name: values[0] for name, values in space.items()}
    found = [default]

    grid = list(product(*space.values()))
    for values in random.Random(seed).sample(grid, min(trials, len(grid))):
        changed = {name: value for name, value in zip(space, values, strict=True) if value != defaults[name]}
        rate = changed.pop(_LEARNING_RATE, default.learning_rate)
        options = {**(around if changed else {}), **default.options, **changed}
        setting = MethodSetting(default.method, options, rate)
        if setting not in found:
            found.append(setting)
    return found[:trials]


def search_space(method: str) -> dict[str, tuple[Any, ...]]:
    """Return the values that are tried of each option of a method, the default first.

    Options of a composition, several methods joined by ``+``, are called ``METHOD.OPTION``.
    """
    names = [name.strip() for name in method.split("+")]
    return {
        option if len(names) == 1 else f"{name}.{option}": values
        for name in names
        for option, values in searched_values(get_method(name)).items()
    }
