"""Options of a run as a YAML file: read by ``--config``, and written by every run so that it can be repeated."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from attendrop.argument_checks import suggestion
from attendrop.errors import AttendropError
from attendrop.model_files import MINILM
from attendrop.runs.config import RunConfig
from attendrop.runs.yaml_file import read_yaml
from attendrop.tasks.file_formats import files_of

RUN_FILE = "run.yaml"
_FIELDS = {field.name: str(field.type) for field in dataclasses.fields(RunConfig)}
PATHS = ("train_file", "eval_file", "data_dir", "model")
_MAPPINGS = {"options": "{p: 0.3}", "lora": "{r: 8}", "task_options": "{num_beams: 4}"}
# Not a field of a run: a preset, for options that the file does not set.
_ALSO = ("preset",)
_KINDS: dict[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "bool": (bool,), "str": (str,)}
_WORDS = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a text"}


def read_run_file(path: str) -> dict[str, Any]:
    """Read options by the names of :class:`RunConfig`'s fields, also ``preset``; ``seed`` may be a list.

    Names may have dashes, as on the command line; lists may be written as there, with commas.

    Raises:
        AttendropError: There is no such file, it is not a YAML mapping, or an option is unknown or of the wrong type.
    """
    found = read_yaml(path, "config file")
    if not isinstance(found, dict):
        raise AttendropError(f"The config file '{path}' must hold options such as 'epochs: 4'.")
    options = {str(name).replace("-", "_"): value for name, value in found.items()}
    for name in options:
        if name not in (*_FIELDS, *_ALSO):
            raise AttendropError(
                f"The config file '{path}' has an unknown option {name!r}.{suggestion(name, tuple(_FIELDS))}"
            )
    return {name: convert_option(path, name, value) for name, value in options.items() if value is not None}


def run_file(config: RunConfig, seeds: Sequence[int] = ()) -> str:
    """Write the options of a run with one or several seeds, except its folder; paths are made absolute."""
    given = {name: value for name, value in config.as_dict().items() if name != "output_dir"}
    options = {name: value for name, value in located(given).items() if value is not None}
    if seeds:
        options["seed"] = list(seeds)
    text: str = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
    return f"# Repeats this run: attendrop train --config run.yaml --output-dir FOLDER\n{text}"


def located(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a run with absolute paths, and with the folder of a task's data from the environment."""
    found = dict(options)
    if found.get("task") is not None and not found.get("data_dir"):
        found["data_dir"] = os.environ.get("ATTENDROP_DATA") or None
    return found | {name: _absolute(found[name]) for name in PATHS if found.get(name) is not None}


def _absolute(value: str) -> str:
    """Make the paths of files and folders that exist absolute; a hub id and "minilm" stay as they are."""
    if value == MINILM:
        return value
    files = files_of(value)
    return ",".join(str(file.absolute()) for file in files) if all(file.exists() for file in files) else value


def convert_option(path: str, name: str, value: Any) -> Any:
    """Convert a value to the type of its field; YAML reads ``5e-5`` as a string."""
    if name == "text_columns":
        return _listed(value)
    if name in _MAPPINGS:
        if not isinstance(value, Mapping):
            raise AttendropError(f"The config file '{path}': {name} must be a mapping such as {_MAPPINGS[name]}.")
        return dict(value)
    if name == "seed":
        return [_of_kind(path, name, each, "int") for each in _listed(value)]
    return _of_kind(path, name, value, _FIELDS.get(name, "str").partition(" ")[0])


def _of_kind(path: str, name: str, value: Any, kind: str) -> Any:
    if isinstance(value, str) and kind in ("float", "int"):
        with contextlib.suppress(ValueError):
            value = {"float": float, "int": int}[kind](value)
    if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "bool"):
        option = name.replace("_", "-")
        raise AttendropError(f"The config file '{path}': {option}={value!r} is not {_WORDS[kind]}.")
    return value


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return list(value) if isinstance(value, list) else [value]
