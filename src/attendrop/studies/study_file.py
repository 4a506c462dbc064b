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

from attendrop.errors import AttendropError, check_choice, suggestion
from attendrop.runs.config import RunConfig, convert_option, read_yaml
from attendrop.studies.units import BASELINES, REFERENCE, Unit, check_evaluation, check_number_of_runs, with_evaluation
from attendrop.tasks.class_names import AUTO
from attendrop.tasks.inspection import check_files
from attendrop.tasks.table import default_columns, files_of

_KEYS = ("data", "models", "methods", "baselines", "seeds", "run", "reference")
_EXAMPLES = {
    "study": "{data: cola, methods: finetune, seeds: 5}",
    "run": "{epochs: 4}",
    "data": "{task: rte}",
    "methods": "{name: METHOD}",
    "options": "{p: 0.3}",
}
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


class _Method(NamedTuple):
    """A method of a file, with options; the label is empty if the file gives none."""

    name: str
    options: dict[str, Any]
    label: str


class _Point(NamedTuple):
    """A setting of a file: the options of its runs, its methods, and its baselines."""

    name: str
    options: dict[str, Any]
    methods: list[_Method]
    baselines: list[str]


def read_study(path: str, *, check_data: bool = False) -> Study:
    """Read a study from a file; ``check_data`` also looks into the data files, before PyTorch is loaded.

    Raises:
        AttendropError: There is no such file, it has an unknown key, or one of its runs or data files is not valid.
    """
    reader = _Reader(f"The study file '{path}'")
    content = reader.mapping("study", read_yaml(path, "study file"), _KEYS)
    for key in ("data", "methods", "seeds"):
        if not content.get(key):
            raise reader.error(f"has no {key}.")
    seeds = content["seeds"]
    if isinstance(seeds, list):
        seeds = convert_option(reader.named, "seed", seeds)
    elif type(seeds) is not int or seeds < 1:
        raise reader.error(f"has seeds={seeds!r}; give their number, or a list.")
    else:
        check_number_of_runs(seeds, reader.named)
        seeds = range(seeds)
    points = reader.points(content)
    check_number_of_runs(len(seeds) * sum(len(each.methods) + len(each.baselines) for each in points), reader.named)
    names = [each.name for each in points]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise reader.error(f"has two data named {twice!r}; give each a 'name'.")
    for options in [each.options for each in points if check_data and each.options.get("train_file")]:
        texts, label = default_columns(options["train_file"])
        check_files(
            options["train_file"],
            options.get("eval_file"),
            skip_bad_rows=options.get("skip_bad_rows", False),
            text_columns=options.get("text_columns") or texts,
            label_column=options.get("label_column", label),
            label_type=options.get("label_type", "auto"),
            label_map=options.get("label_map"),
        )
    # Only now, when all that can be known of methods and files is right: what follows loads PyTorch.
    settings = tuple(_setting(each, seeds, reader) for each in points)
    labels: dict[str, str] = {}  # methods by what they are called
    for point in points:
        for method in point.methods:
            labels[_label(method)] = method.name
    plain = [label for label, name in labels.items() if name == REFERENCE]
    default = plain[0] if len(plain) == 1 else REFERENCE  # by what the file calls it
    reference = content.get("reference", default)
    if "reference" in content and (not isinstance(reference, str) or reference not in labels):
        told = suggestion(str(reference), tuple(labels))
        raise reader.error(f"has a reference that is not one of its methods, {reference!r}.{told}")
    if len(plain) > 1 and reference in (REFERENCE, *plain):  # the settings of one would be compared with nothing
        raise reader.error(f"calls {REFERENCE} {plain[0]!r} and {plain[1]!r}; give it one label, as the reference.")
    return Study(settings, reference)


@dataclass(frozen=True)
class _Reader:
    """Reader of the content of a file, which errors name."""

    named: str

    def error(self, what: str) -> AttendropError:
        return AttendropError(f"{self.named} {what}")

    def mapping(self, where: str, given: Any, known: tuple[str, ...] = ()) -> dict[str, Any]:
        """Check names with values; names may have hyphens."""
        if not isinstance(given, dict):
            raise self.error(f"has {given!r} as {where}; write names with values, such as {_EXAMPLES[where]}.")
        if empty := next((name for name, value in given.items() if value == [] and name != "baselines"), None):
            raise self.error(f"has no {empty}.")
        found = {str(name).replace("-", "_"): value for name, value in given.items()}
        if known and (unknown := next((key for key in found if key not in known), None)):
            raise self.error(f"has an unknown key {unknown!r} in {where}.{suggestion(unknown, known)}")
        return found

    def points(self, content: Mapping[str, Any]) -> list[_Point]:
        """Read the settings: each point of the grids of data and of options of all runs."""
        models = _listed(content.get("models") or "minilm")
        if wrong := next((name for name in models if not isinstance(name, str)), None):
            raise self.error(f"has a model that is not a name: {wrong!r}.")
        shared = {"model": self.option("model", models)}
        shared |= {n: self.option(n, v) for n, v in self.mapping("run", content.get("run") or {}, _OF_RUN).items()}
        points = []
        for entry in _listed(content["data"]):
            given = {"task": entry} if isinstance(entry, str) else self.mapping("data", entry)
            name = " ".join(str(given.pop("name", None) or "").split())
            methods = self.methods(given.pop("methods", content["methods"]))
            baselines = _listed(given.pop("baselines", content.get("baselines")) or [])
            for baseline in baselines:
                check_choice("baseline", baseline, BASELINES)
            own = {n: self.option(n, v) for n, v in self.mapping("data", given, _OF_RUN).items()}
            for options, varied in self.grid(shared | own):
                source = "task" if "task" in options else "train_file"
                if not name:
                    varied.pop(source, None)
                named = name or Path(options.get(source, "files")).stem
                points.append(_Point(", ".join([named, *varied.values()]), options, methods, baselines))
        return points

    def option(self, name: str, value: Any) -> Any:
        """Convert an option of a run, or a list of its values; replace variables in paths, then ``~``."""
        if isinstance(value, list) and name != "text_columns":
            return [self.option(name, each) for each in value]
        found = convert_option(self.named, name, value)
        if name not in (*_PATHS, "model") or found in (None, AUTO):
            return found
        expanded = os.path.expandvars(found)
        if unset := re.search(r"\$\{?(\w+)", expanded):
            raise self.error(f"names '{found}', but {unset[1]} is not set; set it to the folder.")
        expanded = str(convert_option(self.named, name, expanded))
        if name == "model":
            return str(Path(expanded).absolute()) if Path(expanded).is_dir() else expanded
        return ",".join(str(file.absolute()) for file in files_of(expanded))

    def methods(self, entries: Any) -> list[_Method]:
        """Read methods, each with each point of the grid of its options."""
        if not entries:
            raise self.error("has no methods.")
        found = []
        for entry in _listed(entries):
            given = (
                {"name": entry}
                if isinstance(entry, str)
                else self.mapping("methods", entry, ("name", "label", "options"))
            )
            name, label = given.get("name"), given.get("label", "")
            if not isinstance(name, str):
                raise self.error(f"has a method whose name is not text: {name!r}; write an entry for each method.")
            if not isinstance(label, str):
                raise self.error(f"has a label that is not text: {label!r}; quote it.")
            label = " ".join(label.split())  # tables have a line for each method
            for options, varied in self.grid(self.mapping("options", given.get("options") or {})):
                found.append(_Method(name, options, " ".join([label, *varied.values()]) if label else ""))
        return found

    def grid(self, options: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """Yield each point of a grid, and by its name what varies, such as "shots=5"."""
        values = {name: [value] if name == "text_columns" else _listed(value) for name, value in options.items()}
        check_number_of_runs(math.prod(map(len, values.values())), self.named)
        varied = [name for name in values if len(values[name]) > 1]
        here = f"{Path.cwd()}{os.sep}"  # tables and figures are to show paths as the file has them
        for point in product(*values.values()):
            found = dict(zip(values, point, strict=True))
            yield found, {name: f"{name}={str(found[name]).replace(here, '')}" for name in varied}


def _label(method: _Method) -> str:
    from attendrop.methods.core.registry import labelled_method

    return method.label or labelled_method(method.name, method.options)


def _setting(point: _Point, seeds: Sequence[int], reader: _Reader) -> Setting:
    """Make the runs of a setting; methods that are written otherwise, such as with 1 and 1.0, are one."""
    check_evaluation(point.options)
    units: dict[str, Unit] = {}
    labels: dict[str, str] = {}
    for seed in dict.fromkeys(seeds):
        called: dict[str, Unit] = {}
        for method in point.methods:
            config = RunConfig(**point.options, method=method.name, options=method.options, seed=seed, output_dir="")
            unit = Unit(with_evaluation(config))
            same = called.setdefault(_label(method), unit)
            if same.config.regularizer != config.regularizer or _label(method) in point.baselines:
                raise reader.error(f"has two methods with the label {_label(method)!r}; change one.")
            if same is not unit:
                continue
            units[unit.key()] = unit
            if method.label and labels.setdefault(unit.key(), method.label) != method.label:
                names = f"'{labels[unit.key()]}' and '{method.label}'"
                raise reader.error(f"has {method.name} twice with the same options, as {names}; omit one.")
        for baseline in point.baselines:
            config = RunConfig(**point.options, method=REFERENCE, seed=seed, output_dir="")
            unit = Unit(with_evaluation(config), baseline)
            units[unit.key()] = unit
    return Setting(point.name, tuple(units.values()), labels)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
