"""Options of a comparison of methods on one's own data, and the record of what its folder compares on."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attendrop.argument_checks import check_count
from attendrop.errors import AttendropError
from attendrop.files.output_files import write_json
from attendrop.methods.core.registry import build_method, get_method, method_names
from attendrop.runs.config import RunConfig
from attendrop.runs.run_folder import read_json
from attendrop.studies.setting_search import MethodSetting
from attendrop.studies.units import ANSWER, BASELINES, CHEAP, REFERENCE, data_sha256
from attendrop.tasks.file_formats import files_of

# Folder of the model that is kept, within that of the comparison.
BEST = "best"
RECORD = "comparison.json"
DEFAULT_TEST_FRACTION = 0.25
# Options that may change from one call to the next: of single runs, paths (the content counts), and of no effect.
_NOT_RECORDED = (
    *("method", "options", "seed", "output_dir", "train_file", "eval_file", "label_map", "data_dir"),
    *("device", "eval_batch_size", "report_to", "logging_steps", "save_steps"),
)
logger = logging.getLogger(__name__)


def default_methods() -> list[str]:
    """List the methods that are compared where none are named."""
    return [name for name in method_names() if get_method(name).info.compared]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a comparison; see :func:`attendrop.studies.compare.compare`.

    Attributes:
        config: Data, model and training of all runs; its method, seed and folder are ignored. Without evaluation data,
            a quarter of the training rows is set aside.
        methods: One or several settings of each method; plain fine-tuning is always compared.

    Raises:
        AttendropError: An option is out of range, a method or baseline is unknown, or a setting is given twice.
    """

    config: RunConfig
    output_dir: str
    methods: Sequence[MethodSetting]
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
        if unknown := sorted(set(self.baselines) - set(BASELINES)):
            raise AttendropError(f"There is no baseline '{unknown[0]}'; known are {', '.join(BASELINES)}.")
        object.__setattr__(self, "methods", _with_reference(self.methods))
        config = self.config
        if config.train_file is not None and config.eval_file is None and not config.test_fraction:
            object.__setattr__(self, "config", replace(config, test_fraction=DEFAULT_TEST_FRACTION))

    def of_baselines(self, defined: Collection[str]) -> Comparison:
        """Return the comparison without the baselines that are not defined for its kind of task."""
        if undefined := [name for name in self.baselines if name not in defined]:
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


def check_record(folder: Path, config: RunConfig) -> None:
    """Refuse a folder with the answer, or the model, of a comparison on other data, of another model or training."""
    before = read_json(folder / RECORD, {"config": dict, "data_sha256": str})
    if before is None or not ((folder / ANSWER).exists() or (folder / BEST).exists()):
        return
    now = _record(config)
    was, options = before["config"], now["config"]
    changed = [f"{name}={was[name]!r}, not {options[name]!r}" for name in options if was.get(name) != options[name]]
    if before["data_sha256"] != now["data_sha256"]:
        same_name = before["data"] == now["data"]
        data = f"other content of {now['data']}" if same_name else f"the data {before['data']}, not {now['data']}"
        changed.insert(0, data)
    if changed:
        raise AttendropError(
            f"The folder '{folder}' holds the answer of a comparison with {'; '.join(changed)}. Only methods, seeds, "
            "trials, baselines and the budget may change; name another folder with --output-dir."
        )


def write_record(folder: Path, config: RunConfig) -> None:
    """Record what a comparison in a folder compares on."""
    write_json(folder / RECORD, _record(config))


def _record(config: RunConfig) -> dict[str, Any]:
    options = {name: value for name, value in config.as_dict().items() if name not in _NOT_RECORDED}
    files = [file.name for name in (config.train_file, config.eval_file) if name for file in files_of(name)]
    record = {"config": options, "data": config.task or ", ".join(files), "data_sha256": data_sha256(config)}
    found: dict[str, Any] = json.loads(json.dumps(record))  # as it is read
    return found
