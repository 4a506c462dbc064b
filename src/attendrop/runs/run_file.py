"""Options of a run as a YAML file: read by ``--config``, and written by every run so that it can be repeated."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from attendrop.argument_checks import suggestion
from attendrop.errors import AttendropError
from attendrop.model_files import MINILM
from attendrop.runs.config import RunConfig, checked
from attendrop.runs.yaml_file import read_yaml
from attendrop.tasks.file_formats import files_of

RUN_FILE = "run.yaml"
_FIELDS = {field.name: field for field in dataclasses.fields(RunConfig)}
PATHS = ("train_file", "eval_file", "data_dir", "model")
# Not a field of a run: a preset, for options that the file does not set.
_ALSO = ("preset",)


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
    """Convert a value to the type of its option, and check it; YAML reads ``5e-5`` as a string."""
    if name not in _FIELDS:
        return value
    try:
        if _FIELDS[name].metadata["listed"]:
            values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
            return [checked(name, each) for each in values]
        return checked(name, value)
    except AttendropError as error:
        raise AttendropError(f"The config file '{path}': {error}") from None
