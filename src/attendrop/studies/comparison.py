"""Options of a comparison of methods on custom data, and the record of what its folder compares."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NewType

from attendrop.errors import AttendropError
from attendrop.files.model_files import model_sha256
from attendrop.files.output_files import write_json
from attendrop.methods.core.options import Range
from attendrop.runs.config import PATH, RunConfig, check_fields, names, option
from attendrop.runs.run_file import located
from attendrop.runs.run_folder import read_json
from attendrop.studies.units import (
    BASELINES,
    CHEAP,
    COMPARED,
    REFERENCE,
    check_number_of_runs,
    data_sha256,
    with_evaluation,
)
from attendrop.tasks.table import files_of

if TYPE_CHECKING:
    from attendrop.methods.core.base import Method

# Folder of the model that is kept, within that of the comparison.
BEST = "best"
RECORD = "comparison.json"
# Options that may change between calls: those of single runs, paths (the content counts), and those without effect.
_NOT_RECORDED = (
    *("method", "options", "seed", "output_dir", "train_file", "eval_file", "label_map", "data_dir"),
    *("device", "eval_batch_size", "report_to", "logging_steps", "save_steps"),
)
logger = logging.getLogger(__name__)


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
Seconds = NewType("Seconds", float)


def default_methods() -> list[str]:
    """List the methods that are compared by default."""
    from attendrop.methods.core.registry import get_method, method_names

    return [name for name in method_names() if get_method(name).info.compared]


def _seconds(name: str, value: str | float) -> float:
    """Read a time such as ``30m``, ``2h``, ``90s`` or ``1.5h``, or a number of seconds."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", value.strip())
        if match is None:
            raise AttendropError(f"{name} {value!r} is not a duration; write 30m, 2h or 90s.")
        value = float(match[1]) * _UNITS[match[2]]
    if not value > 0:
        raise AttendropError(f"{name} must be above 0 seconds, not {value}.")
    return value


def _baselines(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    found = () if value in ("none", None) else names(value)
    if unknown := sorted(set(found) - set(BASELINES)):
        raise AttendropError(f"There is no baseline '{unknown[0]}'; known are {', '.join(BASELINES)}.")
    return found


def _settings(
    name: str, value: str | Sequence[str | Method | MethodSetting] | Method | MethodSetting | None
) -> tuple[MethodSetting, ...]:
    """Return the settings of methods, plain fine-tuning, of which there is one, first; refuse duplicates."""
    from attendrop.methods.core.registry import build_method, spelled_options

    found: list[MethodSetting] = []
    built: list[tuple[Method, float | None]] = []
    given = default_methods() if value is None else names(value) if isinstance(value, str) else value
    given = given if isinstance(given, Sequence) else [given]  # a method
    for setting in map(MethodSetting.of, given):
        method = build_method(setting.method, setting.options)
        setting = replace(setting, method=method.name, options=spelled_options(method.name, setting.options))
        rate = None if method.name == REFERENCE else setting.learning_rate
        if (method, rate) in built:
            raise AttendropError(f"{setting.label} is to be compared twice; leave one out.")
        found.append(setting)
        built.append((method, rate))
    if not any(setting.method == REFERENCE for setting in found):
        found.append(MethodSetting(REFERENCE))
    return tuple(sorted(found, key=lambda setting: setting.method != REFERENCE))


@dataclass(frozen=True)
class MethodSetting:
    """A method, or several joined by ``+``, with options, and a learning rate; None: the run's own."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None

    @classmethod
    def of(cls, method: str | Method | MethodSetting) -> MethodSetting:
        """Make the setting of a method, or of a name: its defaults; raises AttendropError for anything else."""
        from attendrop.methods.core.registry import check_method, given_options

        if isinstance(method, MethodSetting):
            return method
        if isinstance(method, str):
            return cls(method)
        return cls(check_method(method).name, given_options(method.name, method.options()))

    def applied(self, config: RunConfig, **changes: Any) -> RunConfig:
        """Return the options of a run with this setting."""
        if self.learning_rate is not None:
            changes["learning_rate"] = self.learning_rate
        return replace(config, method=self.method, options=dict(self.options), **changes)

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


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a comparison, their only declaration. Numbers and times may be given as text.

    Raises:
        AttendropError: An option is out of range, a method or baseline is unknown, or a setting is given twice.
    """

    config: RunConfig
    """Data, model and training of all runs; its method, seed and folder are ignored. Without evaluation data, a quarter
    of the training rows is held out."""
    output_dir: str = option("comparison", "output", "Folder of the answer; the same command continues there.", PATH)
    """Also the folder of the runs and the chosen model."""
    methods: Sequence[Any] = option(
        None,
        "methods",
        "Methods to compare with plain fine-tuning, comma-separated; `attendrop methods` lists them.",
        Range("", _settings),
        shown="those most used",
    )
    """Names, methods with options, or settings, one or several of each method; an option that is not the default, or a
    setting's learning rate, is not searched. Plain fine-tuning is always compared, once. None:
    :func:`default_methods`."""
    seeds: int = option(5, "search", "Number of seeds per method.")
    budget: Seconds | None = option(None, "search", "Time limit, such as 30m or 2h.", Range("a time", _seconds))  # noqa: RUF009
    """In seconds; None: no limit. Settings and seeds that do not fit are left out, for all methods alike."""
    trials: int = option(1, "search", "Settings to try for each method, including learning rates, with optuna.")
    """The default setting is the first of them; 1: only it. optuna is in ``attendrop[search]``."""
    folds: int = option(3, "search", "Selection splits on which settings are scored.")
    baselines: tuple[str, ...] = option(
        CHEAP, "search", "Comma-separated, or none.", Range("names of baselines", _baselines), shown="all but setfit"
    )
    """By default all but ``setfit``, which takes as long as fine-tuning."""
    keep_best: bool = option(True)
    """Train the recommended model on all rows, and keep it in ``best/``."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_number_of_runs(self.seeds * (len(self.methods) + len(self.baselines)), "The comparison")
        object.__setattr__(self, "config", with_evaluation(self.config))

    def of_baselines(self, defined: Collection[str]) -> Comparison:
        """Return the comparison without the baselines that are not defined for its kind of task."""
        if undefined := [name for name in self.baselines if name not in defined]:
            logger.info("Not defined for this kind of task, and left out: baseline %s.", ", ".join(undefined))
        return replace(self, baselines=tuple(name for name in self.baselines if name in defined))


def check_record(folder: Path, config: RunConfig) -> None:
    """Refuse a folder with the answer, or the model, of a comparison on other data, of another model or training."""
    before = read_json(folder / RECORD, {"config": dict, "data_sha256": str})
    if before is None or not ((folder / COMPARED).exists() or (folder / BEST).exists()):
        return
    now = _record(config)
    was, options, files = located(before["config"]), now["config"], before.get("model_sha256")
    if files == now["model_sha256"] != "":  # the same model, wherever it was
        was["model"] = options["model"]
    changed = [f"{name}={was.get(name)!r}, not {options[name]!r}" for name in options if was.get(name) != options[name]]
    if files not in (None, now["model_sha256"]) and was["model"] == options["model"]:
        changed.append(f"other files of the model '{was['model']}'")
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
    """Record the data, model and options that a comparison in a folder compares with."""
    write_json(folder / RECORD, _record(config))


def _record(config: RunConfig) -> dict[str, Any]:
    options = {name: value for name, value in located(config.as_dict()).items() if name not in _NOT_RECORDED}
    files = [file.name for name in (config.train_file, config.eval_file) if name for file in files_of(name)]
    record = {"config": options, "data": config.task or ", ".join(files), "data_sha256": data_sha256(config)}
    record["model_sha256"] = model_sha256(config.model)
    found: dict[str, Any] = json.loads(json.dumps(record))  # as it is read
    return found
