"""The folder of a run: who may write there, and what a resumed run must find unchanged.

``run.json`` is written when a run begins and says what it is; ``metrics.json`` is written last and says that it ended.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.files import write_json
from attendrop.runs.config import RunConfig

RUN = "run.json"
METRICS = "metrics.json"


def is_main_process() -> bool:
    """Whether this process is the one that prints and writes."""
    return os.environ.get("RANK", "0") == "0"


def read_run(folder: Path) -> dict[str, Any] | None:
    """What ``run.json`` says, or None if the folder holds no run; raises AttendropError if the file is broken."""
    return _read(folder / RUN)


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """What ``metrics.json`` says, or None if no run ended here; raises AttendropError if the file is broken."""
    return _read(folder / METRICS)


def check_folder(folder: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that a run may not use, without writing anything.

    Raises:
        AttendropError: It is a file, holds something that is not a run, or holds a run that is neither resumed (with
            the same options) nor to be overwritten.
    """
    if resume and overwrite:
        raise AttendropError("resume and overwrite exclude each other; choose one.")
    if folder.exists() and not folder.is_dir():
        raise AttendropError(f"The output folder '{folder}' is a file.")
    ancestor = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise AttendropError(f"The output folder '{folder}' cannot be written: '{ancestor}' does not allow it.")
    if not folder.exists() or not any(folder.iterdir()):
        return
    run = read_run(folder)
    if run is None:
        raise AttendropError(f"The output folder '{folder}' holds other files; name an empty or a new one.")
    if resume:
        _check_unchanged(folder, run["config"], _comparable(config))
    elif not overwrite:
        raise AttendropError(
            f"The output folder '{folder}' holds a run already; --resume continues it, --overwrite deletes it."
        )


def open_folder(folder: Path, config: RunConfig, data_sha256: str, *, resume: bool) -> None:
    """Make the folder a run's: delete what it held, unless it is resumed, and write ``run.json``.

    Raises:
        AttendropError: The run is resumed and its training rows are not the same.
    """
    run = read_run(folder)
    if resume and run is not None:
        if run["data_sha256"] != data_sha256:
            raise AttendropError(f"The training data changed since the run in '{folder}' began; it cannot be resumed.")
        return
    if run is not None:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RUN, {"config": _comparable(config), "data_sha256": data_sha256})


def _comparable(config: RunConfig) -> dict[str, Any]:
    """The options that make a run what it is, as JSON gives them back."""
    options: dict[str, Any] = json.loads(json.dumps(config.as_dict()))
    del options["output_dir"]
    return options


def _check_unchanged(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in _flat(now).items():
        was = _flat(before).get(name)
        if was != value:
            raise AttendropError(
                f"The run in '{folder}' began with {name}={was!r}, not {value!r}; resume it with the same options, or "
                "name another output folder."
            )


def _flat(options: dict[str, Any]) -> dict[str, Any]:
    """Options on one level, the method itself before its options, so that the more telling change is named."""
    from attendrop.methods import flat_options

    return {name: value for name, value in options.items() if name != "options"} | flat_options(options["options"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise AttendropError(f"{path} is not valid JSON; restore it, or delete its folder.") from None
    return content
