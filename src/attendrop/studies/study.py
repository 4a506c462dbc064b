"""Studies: a grid of data, models, methods and seeds from a YAML file; its runs, compared in each setting and over all.

docs/studies.md has the format of the file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError, check_choice, suggestion
from attendrop.runs.config import RunConfig, convert_option, read_yaml
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
from attendrop.wording import csv_of_records, in_markdown, markdown_table

if TYPE_CHECKING:  # what needs PyTorch is imported when a file has been read
    from attendrop.studies.answer import Answer, MethodRow
    from attendrop.studies.statistics import PairedDifference

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
_LISTS = ("text_columns", "with_columns")  # whose lists are no grids
_Method = tuple[str, dict[str, Any], str]
_PATHS = ("train_file", "eval_file", "label_map", "label_names", "unlabelled", "data_dir")


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
        for options, varied in reader.grid(shared | reader.run_options("data", given)):
            source = "task" if "task" in options else "train_file"
            if not name:
                varied.pop(source, None)
            named = ", ".join([name or Path(options.get(source, "files")).stem, *varied.values()])
            if named in points:
                raise reader.error(f"has two data named {named!r}; give each a 'name'.")
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
        for seed in dict.fromkeys(seeds):
            called: dict[str, RunSpec] = {}
            for method, options, own_label in methods:
                label = own_label or labelled_method(method, options)
                labels[label] = method
                own = replace(config, method=method, options=options, seed=seed)
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
    default = calls[0] if len(calls) == 1 else REFERENCE  # by what the file calls it
    reference = content.get("reference", default)
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
        return {name: self.option(name, value) for name, value in self.mapping(where, given, _OF_RUN).items()}

    def option(self, name: str, value: Any) -> Any:
        """Convert an option of a run, or a list of its values; replace variables in paths, then ``~``."""
        if isinstance(value, list) and name not in _LISTS:
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
) -> StudyReport:
    """Perform the unfinished runs of a study, and write ``answer.md``, ``answer.json`` and ``answer.csv``.

    ``file`` is the one that the study was read from, which is recorded. See
    :func:`attendrop.studies.executor.open_runner` for the other options.

    Raises:
        AttendropError: The folder holds something else, or another process uses it.
    """
    folder = Path(folder)
    check_study_folder(folder, file=file)
    runs = [(name, spec) for name, specs in study.settings.items() for spec in specs]
    runs.sort(key=lambda run: run[1].config.seed)
    with open_runner(folder, workers=workers, backend=backend) as runner:
        results = runner.run([spec for _, spec in runs], on_event)
    of_settings: dict[str, list[Event]] = {name: [] for name in study.settings}
    for (name, _), result in zip(runs, results, strict=True):
        of_settings[name].append(result)
    report = make_report(of_settings, study.reference)
    write_compared(folder, of_settings, study.reference, file)
    tables = {name: found.records() for name, found in report.answers.items()}
    table = csv_of_records([{"setting": name, **record} for name, records in tables.items() for record in records])
    write_reports(folder, report.markdown(), report.as_dict(), table)
    return report


def write_compared(
    folder: Path, settings: Mapping[str, Sequence[Event]], reference: str, file: str | None = None
) -> None:
    """Record which runs are compared, by setting, so that the answer can be computed again; and the study file.

    For each run, by the name of its folder: its label and its seed, which a failed one does not tell itself.
    """
    from attendrop.studies.answer import method_label

    runs = {
        name: {each.folder.name: {LABEL: method_label(each.run), "seed": each.spec.config.seed} for each in results}
        for name, results in settings.items()
    }
    of_file = {} if file is None else {"file": str(Path(file).absolute())}
    write_json(folder / COMPARED, {"reference": reference, "settings": runs} | of_file)


def write_reports(folder: Path, markdown: str, found: dict[str, Any], table: str) -> None:
    """Write the files of an answer, for people and their programs: attendrop reads none of them."""
    for name, content in zip(REPORTS, (markdown, json.dumps(found, indent=2) + "\n", table), strict=True):
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
    if file is None or noted is None or folder != default_folder(file) or not Path(noted).exists():
        return
    if not Path(noted).samefile(file):
        raise AttendropError(
            f"The output folder '{folder}' holds the answer of '{noted}', which would be replaced; name another one "
            "with --output-dir."
        )


def default_folder(file: str) -> Path:
    """Return the folder of a study whose file is given, and no folder."""
    return Path("runs", Path(file).stem)


# The answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OverallRow:
    """A method over all settings of a study in which it has seeds in common with the reference.

    Attributes:
        label: The method with its options.
        p_values: p value of the difference in each setting, corrected by Holm over all methods and settings.
        mean: The difference averaged over the settings, compared seed by seed; None if no seed is complete, or for
            errors of several tasks.
    """

    label: str
    p_values: Mapping[str, float]
    mean: PairedDifference | None


@dataclass(frozen=True)
class StudyReport:
    """Results of a study.

    Attributes:
        answers: The answer of each setting by its name; a setting without a finished run has none.
        overall: Methods over all settings; empty for a single setting.
        failed: Runs without a result.
    """

    answers: Mapping[str, Answer]
    overall: tuple[OverallRow, ...]
    failed: tuple[Event, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        overall = []
        for row in self.overall:
            found = row.mean
            overall.append({"label": row.label, "p_holm": dict(row.p_values), "seeds": found.n if found else 0})
            if found is not None:
                overall[-1] |= found.mean.as_dict("difference")
                overall[-1] |= {"differences": list(found.values), "p": found.p_value}
        return {
            "settings": {name: found.as_dict() for name, found in self.answers.items()},
            "overall": overall,
            "failed": [{"folder": str(result.folder), **result.run} for result in self.failed],
        }

    def markdown(self) -> str:
        """Return all tables and the failed runs as Markdown."""
        parts = [f"## {in_markdown(name)}\n\n{found.markdown()}" for name, found in self.answers.items()]
        parts[:0] = self.overall_table()
        if self.failed:
            listed = (f"- `{result.folder.name}`: {in_markdown(result.text)}" for result in self.failed)
            parts.append("## Failed runs\n\n" + "\n".join(listed) + "\n")
        return "\n".join(parts)

    def lines(self) -> list[str]:
        """Return all tables and the failed runs for a console."""
        lines: list[str] = []
        for name, found in self.answers.items():
            lines += [f"{name}:" if len(self.answers) > 1 else "", *found.lines(), ""]
        lines += self.overall_table()
        if self.failed:
            lines += ["Failed runs:", *(f"{result.folder.name}: {result.text}" for result in self.failed)]
        return lines

    def overall_table(self) -> list[str]:
        """Return the table over all settings as Markdown; nothing for a single one."""
        from attendrop.studies.answer import DIFFERENCE, SEEDS_ONLY, ends, interval, p_text

        digits = max((found.decimals for found in self.answers.values()), default=0)
        header = ("method", f"mean {DIFFERENCE}", SEEDS_ONLY, "p by setting (Holm over all)")
        lines = [
            (
                in_markdown(row.label),
                "-" if row.mean is None else interval(row.mean, digits),
                "-" if row.mean is None else ends(row.mean.seeds_only, digits),
                "; ".join(f"{in_markdown(name)}: {p_text(p)}" for name, p in row.p_values.items()),
            )
            for row in self.overall
        ]
        return [f"## All settings\n\n{markdown_table(header, lines)}\n"] if lines else []


def make_report(results: Mapping[str, Sequence[Event]], reference: str) -> StudyReport:
    """Compare the methods in each setting and over all of them, given the results of each setting."""
    from attendrop.studies.answer import answer

    finished = {name: found for name, found in results.items() if any(each.metrics for each in found)}
    answers = {name: answer([each.run for each in found], reference) for name, found in finished.items()}
    failures = {result.folder: result for found in results.values() for result in found if result.metrics is None}
    overall = overall_rows(answers) if len(results) > 1 else ()
    return StudyReport(answers, overall, tuple(failures.values()))


def overall_rows(answers: Mapping[str, Answer]) -> tuple[OverallRow, ...]:
    """Compare each method with the reference over all settings; differences with one unit are averaged."""
    from attendrop.studies.statistics import holm

    rows = {(name, row.label): row for name, found in answers.items() for row in found.rows}
    compared = {at: row for at, row in rows.items() if row.difference is not None and not row.is_baseline}
    tested = {at: row.difference.p_value for at, row in compared.items() if row.difference is not None}
    p_values = {at: p for at, p in tested.items() if p is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    references = {name: row for (name, _), row in rows.items() if row.is_reference}
    found = []
    for label in dict.fromkeys(label for _, label in compared):
        settings = [name for name, other in compared if other == label]
        pairs = [(rows[name, label], references[name]) for name in settings]
        # Scores may be averaged if they are fractions, or the same error of the same numbers.
        scores = [(answers[name].metric, answers[name].data) for name in settings]
        has_unit = len({(metric, data) if metric.startswith("neg_") else None for metric, data in scores}) == 1
        of_settings = {name: corrected[name, label] for name in settings if (name, label) in corrected}
        found.append(OverallRow(label, of_settings, _mean_difference(pairs) if has_unit else None))
    return tuple(found)


def _mean_difference(pairs: Sequence[tuple[MethodRow, MethodRow]]) -> PairedDifference | None:
    """Compare the scores averaged over settings, on the seeds that all settings have."""
    import numpy as np

    from attendrop.studies.statistics import CrossedMean, crossed_test, paired_difference

    seeds = sorted(set.intersection(*(row.scores.keys() & other.scores.keys() for row, other in pairs)))
    if not seeds:
        return None
    method, reference = ([fmean(pair[side].scores[seed] for pair in pairs) for seed in seeds] for side in (0, 1))
    found = paired_difference(method, reference)
    # Settings with the same evaluation rows, such as two sizes of a training set, are not independent.
    groups: dict[str, list[tuple[Any, list[float], tuple[int, int, float]]]] = {}
    for row, other in pairs:
        if (by_row := row.row_differences(other, seeds)) is None or len(seeds) < 2:
            return found
        scores = [row.scores[seed] - other.scores[seed] for seed in seeds]
        first = row.by_row[seeds[0]]
        size = first.rows, first.groups, max(row.scale, other.scale)
        groups.setdefault(first.data, []).append((by_row, scores, size))
    if any(len({each[0].shape for each in group}) > 1 for group in groups.values()):
        return found  # of different metrics: their rows are divided in different ways
    means = []
    for group in groups.values():
        by_row, score = np.mean([each[0] for each in group], axis=0), np.mean([each[1] for each in group])
        means.append(CrossedMean.of(by_row, float(score), *group[0][2]))
    mean, p = crossed_test(means, [len(group) / len(pairs) for group in groups.values()])
    return replace(found, mean=mean, p_value=p)
