"""Options of a comparison of methods on custom data, and the record of what its folder compares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError
from attendrop.methods.core.options import Range
from attendrop.runs.config import PATH, RunConfig, by_content, check_fields, names, option
from attendrop.runs.run_folder import read_json
from attendrop.studies import BASELINES, CHEAP
from attendrop.studies.executor import COMPARED, REFERENCE, check_number_of_runs, data_sha256
from attendrop.support.files import MINILM, model_sha256
from attendrop.tasks.class_names import AUTO

if TYPE_CHECKING:
    from attendrop.methods.core.base import Method

# Folder of the model that is kept, within that of the comparison.
BEST = "best"
RECORD = "comparison.json"
# In it, how the encoder was chosen, and of what.
ENCODERS = "encoders"


def default_methods() -> list[str]:
    """List the methods that are compared by default."""
    from attendrop.methods.core.registry import get_method, method_names

    return [name for name in method_names() if get_method(name).info.compared]


@dataclass(frozen=True)
class MethodSetting:
    """A method, or several joined by ``+``, with options, and a learning rate; None: the run's own."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None

    def applied(self, config: RunConfig, **changes: Any) -> RunConfig:
        """Return the options of a run with this setting."""
        if self.learning_rate is not None:
            changes["learning_rate"] = self.learning_rate
        return replace(config, method=self.method, options=dict(self.options), **changes)

    @property
    def described(self) -> str:
        """What differs from the defaults."""
        found = [f"{name}={value}" for name, value in self.options.items()]
        found += [] if self.learning_rate is None else [f"learning_rate={self.learning_rate:g}"]
        return " ".join(found) or "its defaults"

    @property
    def label(self) -> str:
        """Name of the method with its options, such as "METHOD p=0.9"."""
        return self.method if self.described == "its defaults" else f"{self.method} {self.described}"


def _baselines(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    found = () if value in ("none", None) else names(value)
    if unknown := sorted(set(found) - set(BASELINES)):
        raise AttendropError(f"There is no baseline '{unknown[0]}'; known are {', '.join(BASELINES)}.")
    return found


def _settings(name: str, value: str | Sequence[Any] | Method | MethodSetting | None) -> tuple[MethodSetting, ...]:
    """Return the settings of methods, plain fine-tuning, of which there is one, first; refuse duplicates."""
    from attendrop.methods.core.registry import build_method, check_method, given_options, method_names, spelled_options

    given = default_methods() if value is None else names(value) if isinstance(value, str) else value
    found: list[MethodSetting] = []
    built: list[tuple[Method, float | None]] = []
    each: Any
    for each in given if isinstance(given, Sequence) else [given]:
        setting = MethodSetting(each) if isinstance(each, str) else each
        if not isinstance(setting, MethodSetting):
            own = (type(part).__name__ for part in check_method(each).parts if part.name not in method_names())
            if unknown := next(own, None):
                raise AttendropError(f"{unknown} is not registered; call attendrop.register_method({unknown}) first.")
            setting = MethodSetting(each.name, given_options(each.name, each.options()))
        method = build_method(setting.method, setting.options)
        setting = replace(setting, method=method.name, options=spelled_options(method.name, setting.options))
        if method.name == REFERENCE and setting.learning_rate is not None:  # which no row would name
            raise AttendropError("Plain fine-tuning has the learning rate of the comparison; give it there.")
        if (method, setting.learning_rate) in built:
            raise AttendropError(f"{setting.label} is to be compared twice; leave one out.")
        found.append(setting)
        built.append((method, setting.learning_rate))
    if not any(setting.method == REFERENCE for setting in found):
        found.append(MethodSetting(REFERENCE))
    return tuple(sorted(found, key=lambda setting: setting.method != REFERENCE))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a comparison, their only declaration. Numbers and times may be given as text.

    Raises:
        AttendropError: An option is out of range, a method or baseline is unknown, or a setting is given twice.
    """

    config: RunConfig
    """Data, model and training of all runs; its method, seed and folder are ignored."""
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
    trials: int = option(1, "search", "Settings to try for each method, including learning rates, with optuna.")
    """The default setting is the first of them; 1: only it. optuna is in ``attendrop[search]``."""
    folds: int = option(3, "search", "Selection splits on which settings are scored.")
    models: tuple[str, ...] = option(
        (), "search", "Instead of --model: encoders to choose from on training rows, comma-separated, or auto."
    )
    """See :func:`attendrop.studies.screening.screen`; ``"auto"`` are those of
    :data:`attendrop.studies.screening.PUBLISHED` that can be loaded. Methods are compared on the chosen one."""
    baselines: tuple[str, ...] = option(
        CHEAP, "search", "Comma-separated, or none.", Range("names of baselines", _baselines), shown="all but setfit"
    )
    """By default all but ``setfit``, which takes as long as fine-tuning."""
    curve: bool = option(False, "search", "Also say what more rows would bring, from runs on fewer.")
    """See :mod:`attendrop.studies.learning_curve`."""
    keep_best: bool = option(True)
    """Train the recommended model on all rows, and keep it in ``best/``."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.models and AUTO not in self.models and self.config.model not in (MINILM, *self.models):
            raise AttendropError(f"model '{self.config.model}' is not one of models; add it there, or omit it.")
        check_number_of_runs(self.seeds * (len(self.methods) + len(self.baselines)), "The comparison")

    def check_record(self) -> None:
        """Refuse a folder with the answer, or model, of a comparison on other data, of another model or training."""
        folder = Path(self.output_dir)
        before = read_json(folder / RECORD, {})
        if before is None or not ((folder / COMPARED).exists() or (folder / BEST).exists()):
            return
        content = {"data_sha256": "other content of the data", "model_sha256": "other files of the model"}
        changed = [
            content.get(name) or f"{name}={before.get(name)!r}, not {value!r}"
            for name, value in self.record().items()
            if before.get(name) != value
        ]
        if changed:
            raise AttendropError(
                f"The folder '{folder}' holds the answer of a comparison with {'; '.join(changed)}. Only methods, "
                "seeds, trials and baselines may change; name another folder with --output-dir."
            )

    def record(self) -> dict[str, Any]:
        """Return the data, model and options that are compared with, wherever the files are: JSON values."""
        config, options = self.config, by_content(self.config.as_dict())
        without_effect = ("device", "eval_batch_size", "report_to", "logging_steps", "save_steps", "accept")
        for name in ("method", "options", "seed", *without_effect):  # those of single runs, too, may change
            options.pop(name, None)
        if files := model_sha256(config.model):  # of a local model
            options["model"] = Path(config.model).name
        digests = {"data_sha256": data_sha256(config), "model_sha256": files}
        found: dict[str, Any] = json.loads(json.dumps(digests | options))  # as it is read
        return found
