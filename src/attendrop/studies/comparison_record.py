"""Record of what a comparison compares on: its folder is not for another one, whose answer would take the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.output_files import write_json
from attendrop.runs.config import RunConfig
from attendrop.runs.run_folder import read_json
from attendrop.studies.comparison import BEST
from attendrop.studies.study import ANSWER
from attendrop.studies.units import data_sha256
from attendrop.tasks.file_formats import files_of

RECORD = "comparison.json"
_OF_RUN = ("method", "options", "seed", "output_dir")
# Files count by their content, wherever they are.
_PLACES = ("train_file", "eval_file", "data_dir")
_NO_SCORES = ("device", "eval_batch_size", "report_to", "logging_steps", "save_steps")


def check_record(folder: Path, config: RunConfig) -> None:
    """Refuse a folder with the answer, or the model, of a comparison on other data, of another model or training.

    Raises:
        AttendropError: It holds one; the message says what differs.
    """
    before = read_json(folder / RECORD, {"config": dict, "data_sha256": str})
    if before is None or not ((folder / ANSWER).exists() or (folder / BEST).exists()):
        return
    now = _record(config)
    was, options = before["config"], now["config"]
    changed = [f"{name}={was[name]!r}, not {options[name]!r}" for name in options if was.get(name) != options[name]]
    if before["data_sha256"] != now["data_sha256"]:
        changed.insert(0, _changed_data(before["data"], now["data"]))
    if changed:
        raise AttendropError(
            f"The folder '{folder}' holds the answer of a comparison with {'; '.join(changed)}. Only methods, seeds, "
            "trials, baselines and the budget may change; name another folder with --output-dir."
        )


def write_record(folder: Path, config: RunConfig) -> None:
    """Record what a comparison in a folder compares on."""
    write_json(folder / RECORD, _record(config))


def _record(config: RunConfig) -> dict[str, Any]:
    options = {name: value for name, value in config.as_dict().items() if name not in (*_OF_RUN, *_PLACES, *_NO_SCORES)}
    files = [file.name for name in (config.train_file, config.eval_file) if name for file in files_of(name)]
    found = {"config": options, "data": config.task or ", ".join(files), "data_sha256": data_sha256(config)}
    as_read: dict[str, Any] = json.loads(json.dumps(found))
    return as_read


def _changed_data(was: str, now: str) -> str:
    return f"other content of {now}" if was == now else f"the data {was}, not {now}"
