"""Options of a comparison of methods on one's own data."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from attendrop.argument_checks import check_count
from attendrop.errors import AttendropError
from attendrop.methods.core.registry import build_method, get_method, method_names
from attendrop.runs.config import RunConfig
from attendrop.studies.baseline_names import BASELINES, CHEAP
from attendrop.studies.method_setting import MethodSetting

logger = logging.getLogger(__name__)
REFERENCE = "finetune"
# Folder of the model that is kept, within that of the comparison.
BEST = "best"
DEFAULT_TEST_FRACTION = 0.25


def default_methods() -> list[str]:
    """List the methods that are compared where none are named."""
    return [name for name in method_names() if get_method(name).info.compared]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a comparison.

    Attributes:
        config: Data, model and training of all runs; its method, seed and folder are ignored. Without evaluation data,
            a quarter of the training rows is set aside.
        output_dir: Folder of the answer, the runs and the chosen model.
        methods: Methods with options, one or several settings of each; plain fine-tuning is always compared. Default:
            :func:`default_methods`.
        seeds: Number of seeds of each method.
        budget: Time in seconds; None: no limit. Seeds that do not fit are left out, for all methods alike, and what
            time is left goes into the search of settings.
        trials: Settings to try of each method, its default included; None: as many as fit into the budget, and only
            the default without a budget.
        folds: Number of selection splits on which settings are scored.
        baselines: Names of baselines, see :mod:`attendrop.studies.baselines`.
        keep_best: Whether to train the recommended model on all rows, and keep it in ``best/``.

    Raises:
        AttendropError: An option is out of range, a method or baseline is unknown, or a setting is given twice.
    """

    config: RunConfig
    output_dir: str
    methods: Sequence[MethodSetting] = field(
        default_factory=lambda: [MethodSetting(name) for name in default_methods()]
    )
    seeds: int = 5
    budget: float | None = None
    trials: int | None = None
    folds: int = 3
    baselines: Sequence[str] = CHEAP
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
        object.__setattr__(self, "methods", _with_reference(self.methods))
        config = self.config
        if config.train_file is not None and config.eval_file is None and not config.test_fraction:
            object.__setattr__(self, "config", replace(config, test_fraction=DEFAULT_TEST_FRACTION))

    def of_baselines(self, defined: Collection[str]) -> Comparison:
        """Return the comparison without the baselines that are not defined for its kind of task."""
        undefined = [name for name in self.baselines if name not in defined]
        if undefined:
            logger.info("Not defined for this kind of task, and left out: baseline %s.", ", ".join(undefined))
        return replace(self, baselines=[name for name in self.baselines if name in defined])


def _with_reference(settings: Sequence[MethodSetting]) -> tuple[MethodSetting, ...]:
    """Return the settings, plain fine-tuning first; refuse what would be compared with itself."""
    found, built = [MethodSetting(REFERENCE)], [build_method(REFERENCE)]
    for setting in settings:
        method = build_method(setting.method, setting.options)
        if method.name == REFERENCE:
            continue
        if method in built:
            raise AttendropError(f"{setting.label} is to be compared twice; leave one out.")
        found.append(replace(setting, method=method.name))
        built.append(method)
    return tuple(found)
