"""Studies: a grid of data, models, methods and seeds from a YAML file, its runs, and the folder of these.

docs/studies.md has the format of the file.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError, check_choice, suggestion
from attendrop.runs.config import IN_PLACE_OF, PATHS, RunConfig, convert_option, overridden, read_yaml
from attendrop.runs.run_folder import LOCK, read_json
from attendrop.studies import BASELINES
from attendrop.studies.executor import (
    COMPARED,
    LABEL,
    LOCAL,
    REFERENCE,
    REPORTS,
    RUNS,
    Event,
    OnEvent,
    RunSpec,
    check_number_of_runs,
    open_runner,
    with_evaluation,
)
from attendrop.support.files import check_writable, write_json, write_text
from attendrop.tasks.class_names import AUTO
from attendrop.tasks.table import with_files
from attendrop.wording import csv_of_records

if TYPE_CHECKING:  # what needs PyTorch is imported when a file has been read
    from attendrop.studies.results import Results

logger = logging.getLogger(__name__)
_EXAMPLES = {
    "study": "{data: cola, methods: finetune, seeds: 5}",
    "run": "{epochs: 4}",
    "data": "{task: rte}",
    "methods": "{name: METHOD}",
    "options": "{p: 0.3}",
}
_LISTS = ("text_columns", "with_columns")  # whose lists are no grids
_Method = tuple[str, dict[str, Any], str]


@dataclass(frozen=True)
class Study:
    """A study: the runs of its settings, by names such as "mrpc, shots=5", and the method to compare with.

    The runs of a setting differ in method and seed only.
    """

    settings: Mapping[str, Sequence[RunSpec]]
    reference: str = REFERENCE

    @property
    def specs(self) -> list[RunSpec]:
        """All different runs, seed by seed: a study that was stopped has complete comparisons of its first seeds."""
        specs = {spec.key(): spec for own in self.settings.values() for spec in own}
        return sorted(specs.values(), key=lambda spec: spec.config.seed)


# The file ------------------------------------------------------------------------------------------------------------


def read_study(path: str, *, on_data: Callable[[RunConfig], object] | None = None) -> Study:
    """Read a study from a file; ``on_data`` is called with the options of each setting, before methods are looked up.

    Raises:
        AttendropError: There is no such file, it has an unknown key, or one of its runs or data files is not valid.
    """
    reader = _Reader(f"The study file '{path}'")
    keys = ("data", "models", "methods", "baselines", "seeds", "run", "reference")
    content = reader.mapping("study", read_yaml(path, "study file"), keys)
    for key in ("data", "methods", "seeds"):
        if not content.get(key):
            raise reader.error(f"has no {key}.")
    seeds = content["seeds"]
    if isinstance(seeds, list):
        seeds = list(dict.fromkeys(convert_option(reader.named, "seed", seeds)))
    elif type(seeds) is not int or seeds < 1:
        raise reader.error(f"has seeds={seeds!r}; give their number, or a list.")
    else:
        check_number_of_runs(seeds, reader.named)
        seeds = range(seeds)
    models = _listed(content.get("models") or "minilm")
    if wrong := next((name for name in models if not isinstance(name, str)), None):
        raise reader.error(f"has a model that is not a name: {wrong!r}.")
    # The settings: each point of the grids of data and of options of all runs, by name.
    points: dict[str, tuple[dict[str, Any], list[_Method], list[str]]] = {}
    shared = {"model": reader.option("model", models)} | reader.run_options("run", content.get("run") or {})
    for entry in _listed(content["data"]):
        given = {"task": entry} if isinstance(entry, str) else reader.mapping("data", entry)
        name = " ".join(str(given.pop("name", None) or "").split())
        methods = reader.methods(given.pop("methods", content["methods"]))
        baselines = _listed(given.pop("baselines", content.get("baselines")) or [])
        for baseline in baselines:
            check_choice("baseline", baseline, BASELINES)
        for options, varied in reader.grid(overridden(shared, reader.run_options("data", given))):
            source = "task" if "task" in options else "train_file"
            if not name:
                varied.pop(source, None)
            named = ", ".join([name or Path(options.get(source) or "files").stem, *varied.values()])
            if named in points:
                twice = "; omit one" if points[named][0] == options else "; give each a 'name'"
                raise reader.error(f"has two data named {named!r}{twice}.")
            points[named] = options, methods, baselines
    runs = len(seeds) * sum(len(methods) + len(baselines) for _, methods, baselines in points.values())
    check_number_of_runs(runs, reader.named)
    plain: dict[str, Any] = {"method": REFERENCE, "output_dir": ""}
    configs = [RunConfig(**with_evaluation(options), **plain, on_data=on_data) for options, *_ in points.values()]

    from attendrop.methods.core.registry import labelled_method

    # The runs of each setting; methods that are written otherwise, such as with 1 and 1.0, are one.
    settings, labels = dict[str, Sequence[RunSpec]](), dict[str, str]()
    for (name, (_, methods, baselines)), config in zip(points.items(), configs, strict=True):
        specs: dict[str, RunSpec] = {}
        for seed in seeds:
            called: dict[str, RunSpec] = {}
            for method, options, own_label in methods:
                label = own_label or labelled_method(method, options)
                labels[label] = method
                try:
                    own = replace(config, method=method, options=options, seed=seed)
                except AttendropError as error:
                    raise reader.error(f"has the method {method!r}, which cannot be used: {error}") from None
                spec = RunSpec(own, label=own_label)
                same = called.setdefault(label, spec)
                if same.config.regularizer != own.regularizer or label in baselines:
                    raise reader.error(f"has two methods with the label {label!r}; change one.")
                other = specs.setdefault(spec.key(), spec) if same is spec else spec
                if other.label != spec.label:
                    twice = f"'{other.label or other.method}' and '{spec.label or spec.method}'"
                    raise reader.error(f"has {method} twice with the same options, as {twice}; omit one.")
            for baseline in baselines:
                spec = RunSpec(replace(config, seed=seed), baseline)
                specs[spec.key()] = spec
        settings[name] = list(specs.values())
    calls = [label for label, method in labels.items() if method == REFERENCE]
    reference = content.get("reference", calls[0] if len(calls) == 1 else REFERENCE)  # by what the file calls it
    if "reference" in content and (not isinstance(reference, str) or reference not in labels):
        told = suggestion(str(reference), tuple(labels))
        raise reader.error(f"has a reference that is not one of its methods, {reference!r}.{told}")
    if len(calls) > 1 and reference in (REFERENCE, *calls):  # the settings of one would be compared with nothing
        raise reader.error(f"calls {REFERENCE} {calls[0]!r} and {calls[1]!r}; give it one label, as the reference.")
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

    def run_options(self, where: str, given: Any) -> dict[str, Any]:
        """Read options of runs by the names of the command line, or lists of their values."""
        elsewhere = ("model", "method", "options", "seed", "output_dir")  # in the file, or for the study to decide
        known = tuple(each.name for each in fields(RunConfig) if each.name not in elsewhere)
        found = {name: self.option(name, value) for name, value in self.mapping(where, given, known).items()}
        for name, other in IN_PLACE_OF.items():
            if found.get(name) and found.get(other):
                raise self.error(f"has {name} and {other} in {where}, which exclude each other; omit one.")
        return found

    def option(self, name: str, value: Any) -> Any:
        """Convert an option of a run, or a list of its values; replace variables in paths, then ``~``."""
        if isinstance(value, list) and name not in _LISTS:
            return [self.option(name, each) for each in value]
        found = convert_option(self.named, name, value)
        if name not in PATHS or found in (None, AUTO):
            return found
        expanded = os.path.expandvars(found)
        if unset := re.search(r"\$\{?(\w+)", expanded):
            raise self.error(f"names '{found}', but {unset[1]} is not set; set it to the folder.")
        expanded = str(convert_option(self.named, name, expanded))
        if name == "model":
            return str(Path(expanded).absolute()) if Path(expanded).is_dir() else expanded
        return with_files(expanded, lambda file: str(file.absolute()))

    def methods(self, entries: Any) -> list[_Method]:
        """Read methods, each with each point of the grid of its options, and the label that the file gives, if any."""
        if not entries:
            raise self.error("has no methods.")
        found = []
        for entry in _listed(entries):
            keys = ("name", "label", "options")
            given = {"name": entry} if isinstance(entry, str) else self.mapping("methods", entry, keys)
            name, label = given.get("name"), given.get("label", "")
            if not isinstance(name, str):
                raise self.error(f"has a method whose name is not text: {name!r}; write an entry for each method.")
            if not isinstance(label, str):
                raise self.error(f"has a label that is not text: {label!r}; quote it.")
            label = " ".join(label.split())  # tables have a line for each method
            for options, varied in self.grid(self.mapping("options", given.get("options") or {})):
                found.append((name, options, " ".join([label, *varied.values()]) if label else ""))
        return found

    def grid(self, options: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """Yield each point of a grid, and by its name what varies, such as "shots=5"."""
        values = {name: [value] if name in _LISTS else _listed(value) for name, value in options.items()}
        check_number_of_runs(math.prod(map(len, values.values())), self.named)
        varied = [name for name in values if len(values[name]) > 1]
        here = f"{Path.cwd()}{os.sep}"  # tables and figures are to show paths as the file has them
        for point in product(*values.values()):
            found = dict(zip(values, point, strict=True))
            yield found, {name: f"{name}={str(found[name]).replace(here, '')}" for name in varied}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# The folder ----------------------------------------------------------------------------------------------------------


def run_study(
    study: Study,
    folder: str | Path,
    *,
    file: str | None = None,
    workers: int | None = None,
    backend: str = LOCAL,
    on_event: OnEvent = lambda event: None,
) -> Results:
    """Perform the unfinished runs of a study, and write ``answer.md``, ``answer.json`` and ``answer.csv``.

    ``file`` is the one that the study was read from, which is recorded. See
    :func:`attendrop.studies.executor.open_runner` for the other options.

    Raises:
        AttendropError: The folder holds something else, or another process uses it.
    """
    from attendrop.studies.answer import method_label

    folder = Path(folder)
    check_study_folder(folder, file=file)
    for name, specs in study.settings.items():
        if study.reference not in {method_label(spec.described()) for spec in specs}:
            told = "%r is not among the methods of %s, so none will be recommended there: add it, or name a reference."
            logger.warning(told, study.reference, name)
    runs = [(name, spec) for name, specs in study.settings.items() for spec in specs]
    runs.sort(key=lambda run: run[1].config.seed)
    with open_runner(folder, workers=workers, backend=backend) as runner:
        results = runner.run([spec for _, spec in runs], on_event)
    of_settings: dict[str, list[Event]] = {name: [] for name in study.settings}
    for (name, _), result in zip(runs, results, strict=True):
        of_settings[name].append(result)
    write_compared(folder, of_settings, study.reference, file=None if file is None else str(Path(file).absolute()))

    from attendrop.studies.results import read_results

    found = read_results(folder)
    table = [{"setting": each.name, **record} for each in found.settings for record in each.answer.records()]
    write_reports(folder, found.markdown(), found.as_dict(), table)
    return found


def write_compared(folder: Path, settings: Mapping[str, Sequence[Event]], reference: str, **more: Any) -> None:
    """Record which runs are compared, by setting, so that the answer can be computed again, and what ``more`` holds.

    For each run, by the name of its folder: its label and seed; of a failed one all that is known.
    """
    from attendrop.studies.answer import method_label

    runs: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in settings}
    for name, each in ((name, each) for name, results in settings.items() for each in results):
        known = each.run if each.metrics is None else {"seed": each.spec.config.seed}
        runs[name][each.folder.name] = known | {LABEL: method_label(each.run)}
    write_json(folder / COMPARED, {"reference": reference, "settings": runs, **more})


def write_reports(folder: Path, markdown: str, found: dict[str, Any], table: list[dict[str, Any]]) -> None:
    """Write the files of an answer, for people and their programs: attendrop reads none of them."""
    contents = markdown, json.dumps(found, indent=2) + "\n", csv_of_records(table)
    for name, content in zip(REPORTS, contents, strict=True):
        write_text(folder / name, content)


def check_study_folder(folder: Path, *, comparison: bool = False, file: str | None = None) -> None:
    """Raise AttendropError if a folder holds other files than a study's, or a comparison, or the other way round.

    The default folder of a study ``file`` may hold the answer of another file of that name, and is refused then.
    """
    if folder.exists() and not folder.is_dir():
        raise AttendropError(f"The output folder '{folder}' is a file.")
    check_writable(folder)
    found = read_json(folder / COMPARED, {"settings": dict})
    known = found is not None or (folder / RUNS).is_dir()
    if folder.exists() and not known and any(path.name != LOCK for path in folder.iterdir()):
        raise AttendropError(f"The output folder '{folder}' holds other files; name an empty or a new one.")
    if found is None and (strange := next(filter(Path.exists, (folder / name for name in REPORTS)), None)):
        raise AttendropError(f"'{strange}' was not written by attendrop, and would be replaced; name another folder.")
    if found is not None and ("" in found["settings"]) != comparison:
        other = "study" if comparison else "comparison"
        raise AttendropError(f"The output folder '{folder}' holds the answer of a {other}; name another one.")
    noted = (found or {}).get("file")
    if file and noted and folder == default_folder(file) and Path(noted).exists() and not Path(noted).samefile(file):
        raise AttendropError(
            f"The output folder '{folder}' holds the answer of '{noted}', which would be replaced; name another one "
            "with --output-dir."
        )


def default_folder(file: str) -> Path:
    """Return the folder of a study whose file is given, and no folder."""
    return Path("runs", Path(file).stem)
