"""Options of a run from YAML files, also those that runs write, and from published presets."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from attendrop.errors import AttendropError, check_choice, suggestion
from attendrop.runs.config import RunConfig, checked, declared
from attendrop.support.files import MINILM
from attendrop.tasks.class_names import AUTO
from attendrop.tasks.table import files_of

RUN_FILE = "run.yaml"
# Characters that a YAML file may stand for when its aliases are written out.
_MOST_CHARACTERS = 10**6
DATA = ("train_file", "eval_file", "label_map", "label_names", "unlabelled")
PATHS = (*DATA, "data_dir", "model")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loader that refuses a key that is given twice, with dashes or underscores, or too long aliases."""

    def get_single_node(self) -> Any:
        # Nested aliases, ``*name``, double what they stand for each time; one within itself is endless.
        characters: dict[int, float] = {}

        def count(node: Any) -> float:
            if isinstance(node, yaml.ScalarNode):
                return len(node.value) + 1
            if id(node) not in characters:
                characters[id(node)] = math.inf
                parts = (part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,)))
                characters[id(node)] = 1 + sum(map(count, parts))
            return characters[id(node)]

        node = super().get_single_node()
        if node is not None and count(node) > _MOST_CHARACTERS:
            raise yaml.YAMLError(f"its aliases, *name, stand for more than {_MOST_CHARACTERS:,} characters")
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        known = set()
        for key, _ in node.value:
            if (name := str(key.value).replace("-", "_")) in known:
                problem = f"the key {key.value!r} is given twice; delete one"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            known.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path, what: str) -> Any:
    """Read a YAML file; raises AttendropError if it is missing or is not YAML, or a key is given twice."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise AttendropError(f"There is no {what} '{path}'.") from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise AttendropError(f"The {what} '{path}' cannot be read{line}: {error.problem}.") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # not UTF-8, no date, nested too deeply
        raise AttendropError(f"The {what} '{path}' cannot be read ({str(error).splitlines()[0]}).") from None


def partial_of(folder: Path) -> Path:
    """Return the folder in which a run is made whose output folder is ``folder``."""
    folder = folder if folder.name not in ("", "..") else folder.resolve()
    return folder.with_name(f".{folder.name}.partial")


def read_run_file(path: str) -> dict[str, Any]:
    """Read options by the names of :class:`RunConfig`'s fields, also ``preset``; ``seed`` may be a list.

    Names may have dashes, as on the command line; lists may be written as there, with commas. ``RUN/run.yaml`` of a
    run that is not finished is where the run is made.
    """
    file = Path(path)
    if not file.exists() and file.name == RUN_FILE and (unfinished := partial_of(file.parent) / RUN_FILE).exists():
        file = unfinished
    found = read_yaml(file, "config file")
    if not isinstance(found, dict):
        raise AttendropError(f"The config file '{path}' must hold options such as 'epochs: 4'.")
    options = {str(name).replace("-", "_"): value for name, value in found.items()}
    known = tuple(declared(RunConfig))
    for name in options:
        if name not in (*known, "preset"):  # a preset is for options that the file does not set
            raise AttendropError(f"The config file '{path}' has an unknown option {name!r}.{suggestion(name, known)}")
    where = f"The config file '{path}'"
    return {name: convert_option(where, name, value) for name, value in options.items() if value is not None}


def run_file(config: RunConfig, seeds: Sequence[int] = ()) -> str:
    """Write the options of a run with one or several seeds, except its folder; paths are made absolute."""
    given = {name: value for name, value in config.as_dict().items() if name != "output_dir"}
    options = {name: value for name, value in located(given).items() if value is not None}
    if config.label_names is None:
        options["label_names"] = "none"  # which is not the default
    if seeds:
        options["seed"] = list(seeds)
    text: str = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
    return f"# Repeats this run: attendrop train --config run.yaml --output-dir FOLDER\n{text}"


def located(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's options with absolute paths, and a task's data folder from the environment."""
    found = dict(options)
    if found.get("task") is not None and not found.get("data_dir"):
        found["data_dir"] = os.environ.get("ATTENDROP_DATA") or None
    return found | absolute_paths(found)


def absolute_paths(options: Mapping[str, Any]) -> dict[str, str]:
    """Return those of a run's options that are paths of files and folders that exist, absolute.

    So they are found from other folders, too; a hub id, and words for no file, stay as they are.
    """
    found = {name: value for name in PATHS if (value := options.get(name)) is not None}
    for name, value in found.items():
        files = files_of(value)
        if value not in (MINILM, AUTO) and all(file.exists() for file in files):
            found[name] = ",".join(map(os.path.abspath, files))
    return found


def folder_of_run(config: str) -> str | None:
    """Return the output folder of the run, or runs of several seeds, that wrote a config file; None if none did."""
    folder = Path(config).parent
    if folder.name.endswith(".partial"):
        return str(folder.with_name(folder.name.removeprefix(".").removesuffix(".partial")))
    of_seeds = (*folder.glob("seed[0-9]*"), *folder.glob(".seed[0-9]*"))
    of_one = any((place / "run.json").is_file() for place in (folder, partial_of(folder)))
    return str(folder) if of_one or of_seeds else None


def by_content(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that distinguish a run from others with the same data, regardless of file locations."""
    names = {name: ",".join(file.name for file in files_of(value)) for name in DATA if (value := options.get(name))}
    return {name: value for name, value in options.items() if name != "data_dir"} | names


def convert_option(where: str, name: str, value: Any) -> Any:
    """Convert a value to the type of its option, and check it; YAML reads ``5e-5`` as a string.

    Errors begin with ``where`` it is given, such as "The config file 'run.yaml'".
    """
    if name not in declared(RunConfig):
        return value
    try:
        if declared(RunConfig)[name]["listed"]:
            values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
            return [checked(RunConfig, name, each) for each in values]
        return checked(RunConfig, name, value)
    except AttendropError as error:
        raise AttendropError(f"{where}: {error}") from None


PRESETS = ("paper",)
# The fine-tuning of Yang et al. (2022) and of their code (SST-2 and the three large sets train for fewer epochs and
# stop sooner). Among the values that they searched (learning rate 1, 2, 3e-5; batch 16, 32, 64) these are the middle
# and the first; the best epoch is chosen on the development set.
_PAPER = {
    "learning_rate": 2e-5,
    "batch_size": 16,
    "schedule": "constant",
    "warmup": 0.0,
    "weight_decay": 0.01,
    "epochs": 50,
    "patience": 5,
    "protocol": "paper",
    "pooling": "cls",
    "head_init": "random",
}
_PAPER_BY_TASK: dict[str, dict[str, Any]] = {
    "cola": {"max_length": 47},
    "rte": {"max_length": 128},
    "mrpc": {"max_length": 100},
    "stsb": {"max_length": 100},
    "sst2": {"epochs": 20, "patience": 5},
    **{task: {"epochs": 10, "patience": 3} for task in ("qnli", "mnli", "qqp")},
}


def preset(name: str, task: str | None, method: str) -> dict[str, Any]:
    """Look up the options of a preset, as keywords of :class:`RunConfig`.

    Args:
        name: ``"paper"``: fine-tuning as in Yang et al. (2022), and what the method's own paper says where it differs
            (:meth:`attendrop.methods.core.base.Method.preset`).
        task: Decides length, epochs and patience, and options of some methods.
        method: Name of the method, or several joined by ``+``.

    Raises:
        AttendropError: There is no such preset or method.
    """
    check_choice("preset", name, PRESETS)
    from attendrop.methods.core.registry import get_method

    training = {**_PAPER, **_PAPER_BY_TASK.get(task or "", {})}
    methods = [get_method(part.strip()) for part in method.split("+")]
    options: dict[str, dict[str, Any]] = {}
    for each in methods:
        published = each.preset(name, task)
        training |= published.training
        options |= {each.info.name: dict(published.options)} if published.options else {}
    return training | {"options": options if len(methods) > 1 else options.get(methods[0].info.name, {})}
