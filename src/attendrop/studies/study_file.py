"""Study as a YAML file: a grid of data, models, methods and seeds, made into units.

```yaml
data:                       # tasks by name, or options of a run; a list is a grid
  - cola
  - {task: mrpc, max_train_samples: [256, 1000]}
  - {name: tickets, train_file: train.csv, eval_file: test.csv, text_columns: text, label_column: label, shots: 5}
  - {task: rte, methods: [finetune, METHOD]}      # in place of the methods below
models: [minilm]            # default: minilm
methods:                    # names, or a name with options; a list is a grid
  - finetune
  - {name: METHOD, options: {p: [0.1, 0.3], q: 0.3}}
  - {name: METHOD, label: OWN NAME, options: {p: 0.5}}   # its name in tables; default: the method and these options
baselines: [majority, frozen]   # default: none
seeds: 5                    # seeds 0 to 4, or a list
run:                        # further options of all runs, by the names of the command line; a list is a grid
  max_steps: 240
  learning_rate: [1e-4, 3e-4]
reference: finetune         # the method that the others are compared with
```

A value that is itself a list, such as of layers, is written as on the command line: ``"0,3"``. Paths may name
environment variables, ``$ATTENDROP_DATA/tickets.csv``, and begin with ``~``.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from attendrop.argument_checks import check_choice, suggestion
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.run_file import convert_option, read_yaml
from attendrop.studies.units import BASELINES, REFERENCE, Unit, check_evaluation, check_number_of_runs, with_evaluation
from attendrop.tasks.class_names import AUTO
from attendrop.tasks.inspection import check_files
from attendrop.tasks.table import default_columns, files_of

_KEYS = ("data", "models", "methods", "baselines", "seeds", "run", "reference")
_EXAMPLES = {"run": "{epochs: 4}", "data": "{task: rte}", "methods": "{name: METHOD}", "options": "{p: 0.3}"}
# What the file says elsewhere, or the study decides.
_NOT_OF_RUN = ("model", "method", "options", "seed", "output_dir")
_OF_RUN = tuple(field.name for field in dataclasses.fields(RunConfig) if field.name not in _NOT_OF_RUN)
_PATHS = ("train_file", "eval_file", "label_map", "label_names", "unlabelled", "data_dir")


@dataclass(frozen=True)
class Setting:
    """Runs of a study that are compared with each other: they differ in method and seed only.

    Attributes:
        name: Such as "mrpc, max_train_samples=256".
        units: The runs.
        labels: What the file calls the method of a run, by the key of the run; without those that it gives no label.
    """

    name: str
    units: tuple[Unit, ...]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study: its settings, and the method that the others are compared with."""

    settings: tuple[Setting, ...]
    reference: str = REFERENCE

    @property
    def units(self) -> list[Unit]:
        """All different runs, seed by seed: a study that was stopped has complete comparisons of its first seeds."""
        units = {unit.key(): unit for setting in self.settings for unit in setting.units}
        return sorted(units.values(), key=lambda unit: unit.config.seed)


def read_study(path: str, *, check_data: bool = False) -> Study:
    """Read a study from a file; ``check_data`` also looks into the data files, before PyTorch is loaded.

    Raises:
        AttendropError: There is no such file, it has an unknown key, or one of its runs or data files is not valid.
    """
    content = read_yaml(path, "study file")
    if not isinstance(content, dict):
        raise AttendropError(f"The study file '{path}' must hold keys such as 'data', 'methods' and 'seeds'.")
    return _Reader(path, check_data).study(content)


class _MethodEntry(NamedTuple):
    """A method of a file, with options; the label is empty if the file gives none."""

    name: str
    options: dict[str, Any]
    label: str


@dataclass(frozen=True)
class _Reader:
    """Reader of the content of a file, which errors name."""

    path: str
    check_data: bool

    @property
    def named(self) -> str:
        return f"The study file '{self.path}'"

    def error(self, what: str) -> AttendropError:
        return AttendropError(f"{self.named} {what}")

    def study(self, content: Mapping[str, Any]) -> Study:
        self.check_keys("", content, _KEYS)
        for key in ("data", "methods", "seeds"):
            if not content.get(key):
                raise self.error(f"has no {key}.")
        if isinstance(seeds := content["seeds"], bool):
            raise self.error(f"has seeds={seeds!r}; give their number, or a list.")
        if isinstance(seeds, int) and seeds < 1:
            raise self.error(f"has {seeds} seeds; give at least one, or a list.")
        if isinstance(seeds, str) and seeds.strip().isdecimal():
            raise self.error(f"has the text {seeds!r} as seeds: a number of them is without quotation marks.")
        baselines = self.baselines(content.get("baselines"))
        if isinstance(seeds, int):
            check_number_of_runs(seeds, self.named)
            seeds = range(seeds)
        else:
            seeds = convert_option(self.named, "seed", seeds)
        shared = {"model": self.models(content)} | self.options("run", content.get("run") or {})
        points = []
        for entry in _listed(content["data"]):
            given = {"task": entry} if isinstance(entry, str) else dict(self.mapping("data", entry))
            name = "" if (name := given.pop("name", None)) is None else " ".join(str(name).split())
            methods = self.methods(given.pop("methods", content["methods"]))
            own = self.baselines(given.pop("baselines")) if "baselines" in given else baselines
            for point, varied in self.grid(shared | self.options("data", given)):
                source = "task" if "task" in point else "train_file"
                if not name:
                    varied.pop(source, None)
                named = name or Path(point.get(source, "files")).stem
                points.append((", ".join([named, *varied.values()]), point, methods, own))
        check_number_of_runs(len(seeds) * sum(len(methods) + len(own) for _, _, methods, own in points), self.named)
        names = [name for name, *_ in points]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise self.error(f"has two data named {twice!r}; give each a 'name'.")
        for _, options, *_ in points if self.check_data else ():
            _check_files(options)
        # Only now, when all that can be known of methods and files is right: what follows loads PyTorch.
        labels = {
            label: method.name
            for _, _, methods, own in points
            for label, method in zip(self.labels(methods, own), methods, strict=True)
        }
        plain = [label for label, name in labels.items() if name == REFERENCE]
        default = plain[0] if len(plain) == 1 else REFERENCE  # by what the file calls it
        reference = content.get("reference", default)
        if "reference" in content and (not isinstance(reference, str) or reference not in labels):
            told = suggestion(str(reference), tuple(labels))
            raise self.error(f"has a reference that is not one of its methods, {reference!r}.{told}")
        if len(plain) > 1 and reference in (REFERENCE, *plain):  # the settings of one would be compared with nothing
            raise self.error(f"calls {REFERENCE} {plain[0]!r} and {plain[1]!r}; give it one label, as the reference.")
        settings = [_setting(*point, seeds) for point in points]
        return Study(tuple(settings), reference)

    def check_keys(self, where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
        if unknown := next((key for key in given if key not in known), None):
            within = f" in {where}" if where else ""
            raise self.error(f"has an unknown key {unknown!r}{within}.{suggestion(str(unknown), known)}")

    def mapping(self, where: str, given: Any) -> Mapping[str, Any]:
        if not isinstance(given, dict):
            raise self.error(f"has {given!r} as {where}; write names with values, such as {_EXAMPLES[where]}.")
        if empty := next((name for name, value in given.items() if value == [] and name != "baselines"), None):
            raise self.error(f"has no {empty}.")
        return {str(name).replace("-", "_"): value for name, value in given.items()}

    def options(self, where: str, given: Any) -> dict[str, Any]:
        """Convert options of a run, or lists of their values, to the types of its fields."""
        given = self.mapping(where, given)
        self.check_keys(where, given, _OF_RUN)
        return {name: self.option(name, value) for name, value in given.items()}

    def option(self, name: str, value: Any) -> Any:
        if isinstance(value, list) and name != "text_columns":
            return [self.option(name, each) for each in value]
        found = convert_option(self.named, name, value)
        if name not in _PATHS or found in (None, AUTO):
            return found
        return ",".join(str(file.absolute()) for file in files_of(self.expanded(name, found)))

    def expanded(self, name: str, given: str) -> str:
        """Replace environment variables by their values, then ``~``."""
        found = os.path.expandvars(given)
        if unset := re.search(r"\$\{?(\w+)", found):
            raise self.error(f"names '{given}', but {unset[1]} is not set; set it to the folder.")
        return str(convert_option(self.named, name, found))

    def models(self, content: Mapping[str, Any]) -> list[str]:
        given = _listed(content.get("models") or "minilm")
        if wrong := next((name for name in given if not isinstance(name, str)), None):
            raise self.error(f"has a model that is not a name: {wrong!r}.")
        models = (self.expanded("model", name) for name in given)
        return [str(Path(name).absolute()) if Path(name).is_dir() else name for name in models]

    def baselines(self, given: Any) -> list[str]:
        for name in (names := _listed(given or [])):
            check_choice("baseline", name, BASELINES)
        return names

    def methods(self, entries: Any) -> list[_MethodEntry]:
        if not entries:
            raise self.error("has no methods.")
        return [method for entry in _listed(entries) for method in self.method(entry)]

    def labels(self, methods: Sequence[_MethodEntry], baselines: Sequence[str]) -> list[str]:
        """Return what the methods are called, each differently."""
        from attendrop.methods.core.registry import labelled_method

        labels = [method.label or labelled_method(method.name, method.options) for method in methods]
        given = [method.label for method in methods if method.label]
        if twice := next((label for label in given if [*labels, *baselines].count(label) > 1), None):
            raise self.error(f"has two methods with the label {twice!r}; change one.")
        return labels

    def method(self, entry: Any) -> Iterator[_MethodEntry]:
        """Yield a method with each point of the grid of its options."""
        given = {"name": entry} if isinstance(entry, str) else self.mapping("methods", entry)
        self.check_keys("methods", given, ("name", "label", "options"))
        if "name" not in given:
            raise self.error("has a method without a name.")
        if not isinstance(given["name"], str):
            raise self.error(f"has a method whose name is not text: {given['name']!r}; write an entry for each method.")
        label = given.get("label", "")
        if not isinstance(label, str):
            raise self.error(f"has a label that is not text: {label!r}; quote it.")
        label = " ".join(label.split())  # tables have a line for each method
        options = self.mapping("options", given.get("options") or {})
        for point, varied in self.grid(options):
            yield _MethodEntry(given["name"], point, " ".join([label, *varied.values()]) if label else "")

    def grid(self, options: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """Yield each point of a grid, and by its name what varies, such as "shots=5"."""
        values = {name: [value] if name == "text_columns" else _listed(value) for name, value in options.items()}
        check_number_of_runs(math.prod(map(len, values.values())), self.named)
        varied = [name for name in values if len(values[name]) > 1]
        here = f"{Path.cwd()}{os.sep}"  # tables and figures are to show paths as the file has them
        for point in product(*values.values()):
            found = dict(zip(values, point, strict=True))
            yield found, {name: f"{name}={str(found[name]).replace(here, '')}" for name in varied}


def _check_files(options: Mapping[str, Any]) -> None:
    """Refuse files of a setting that no run could read."""
    if (train_file := options.get("train_file")) is None:
        return
    texts, label = default_columns(train_file)
    check_files(
        train_file,
        options.get("eval_file"),
        skip_bad_rows=options.get("skip_bad_rows", False),
        text_columns=options.get("text_columns") or texts,
        label_column=options.get("label_column", label),
        label_type=options.get("label_type", "auto"),
        label_map=options.get("label_map"),
    )


def _setting(
    name: str,
    options: Mapping[str, Any],
    methods: Sequence[_MethodEntry],
    baselines: Sequence[str],
    seeds: Sequence[int],
) -> Setting:
    from attendrop.methods.core.registry import labelled_method

    check_evaluation(options)
    units: dict[str, Unit] = {}
    labels: dict[str, str] = {}
    for seed in dict.fromkeys(seeds):
        called: dict[str, Unit] = {}
        for method in methods:
            config = RunConfig(**options, method=method.name, options=method.options, seed=seed, output_dir="")
            unit = Unit(with_evaluation(config))
            label = method.label or labelled_method(config.method, config.options)
            same = called.setdefault(label, unit)
            if same.config.regularizer != config.regularizer:
                raise AttendropError(f"The study has two methods that are called {label!r}; give one a 'label'.")
            if same is not unit:
                continue  # written otherwise, such as 1 and 1.0
            units[unit.key()] = unit
            if method.label and labels.setdefault(unit.key(), method.label) != method.label:
                names = f"'{labels[unit.key()]}' and '{method.label}'"
                raise AttendropError(f"The study has {method.name} twice with the same options, as {names}; omit one.")
        for baseline in baselines:
            config = RunConfig(**options, method=REFERENCE, seed=seed, output_dir="")
            unit = Unit(with_evaluation(config), baseline)
            units[unit.key()] = unit
    return Setting(name, tuple(units.values()), labels)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
