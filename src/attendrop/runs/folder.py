"""The folder of a run: who may write there, what belongs to the run, and what a resumed run must find unchanged.

``run.json`` says what the run is, and with what the run wrote; it is there from the first step on. ``metrics.json``
comes last and says that the run ended. A run that replaces another is trained in the folder ``.new-run`` within the
other's, and takes its place when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.files import disk_errors, sha256, share_permissions, write_json
from attendrop.runs.config import RunConfig
from attendrop.runs.lock import LOCK, locked, refuse_if_locked

RUN = "run.json"
METRICS = "metrics.json"
_NEW_RUN = ".new-run"
_RESULTS = ".results.partial"
# Beside what `run.json` lists: what other commands write by default, and what is there while a run trains.
_OWN = re.compile(
    r"run\.json|metrics\.json|patterns\.png|scheduler\.json|tensorboard|checkpoint-\d+|\.lock|\.new-run|\..*\.partial"
)


def is_main_process() -> bool:
    """Whether this process is the one that prints and writes."""
    return os.environ.get("RANK", "0") == "0"


def read_run(folder: Path) -> dict[str, Any] | None:
    """What ``run.json`` says, or None if the folder holds no run; raises AttendropError if it is not a run's."""
    return read_json(folder / RUN, {"config": dict, "data_sha256": str})


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """What ``metrics.json`` says, or None if no run ended here; raises AttendropError if it is not a run's."""
    return read_json(folder / METRICS, {"task": str, "method": str, "config": dict, "all_scores": dict})


@contextmanager
def run_folder(config: RunConfig, *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """Hold the folder of a run while it trains; gives the place for the run's files until it is complete.

    Raises:
        AttendropError: The run may not use the folder, see :func:`check_folder`, or another process does.
    """
    folder = Path(config.output_dir)
    if not is_main_process():
        yield run_place(folder, resume=resume, overwrite=overwrite)
        return
    refuse_if_locked(folder)
    check_folder(folder, config, resume=resume, overwrite=overwrite)  # a refused command is not to touch the folder
    with locked(folder):
        replace_run(folder)
        check_folder(folder, config, resume=resume, overwrite=overwrite)
        try:
            yield run_place(folder, resume=resume, overwrite=overwrite)
        finally:
            with suppress(OSError):  # not empty
                (folder / _NEW_RUN).rmdir()


def run_place(folder: Path, *, resume: bool, overwrite: bool) -> Path:
    """Where a run in this folder has its files until it is complete: there, or in a folder within."""
    new = folder / _NEW_RUN
    replaces = (overwrite and read_run(folder) is not None) or (resume and read_run(new) is not None)
    return new if replaces else folder


def check_folder(folder: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that a run may not use, without writing anything.

    Raises:
        AttendropError: It is a file, holds something that is not a run, or holds a run that is neither resumed (with
            the same options) nor to be replaced, or beside that run files of others.
    """
    if resume and overwrite:
        raise AttendropError("resume and overwrite exclude each other; choose one.")
    if folder.exists() and not folder.is_dir():
        raise AttendropError(f"The output folder '{folder}' is a file.")
    ancestor = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise AttendropError(f"The output folder '{folder}' cannot be written: '{ancestor}' does not allow it.")
    if not folder.exists() or all(path.name == LOCK for path in folder.iterdir()):
        return
    run = read_run(folder)
    if run is None:
        raise AttendropError(f"The output folder '{folder}' holds other files; name an empty or a new one.")
    if resume:
        place = run_place(folder, resume=resume, overwrite=overwrite)
        _check_unchanged(folder, (read_run(place) or run)["config"], _comparable(config))
    elif not overwrite:
        raise AttendropError(
            f"The output folder '{folder}' holds a run already; --resume continues it, --overwrite replaces it."
        )
    elif foreign := _foreign(folder, run):
        raise AttendropError(
            f"The output folder '{folder}' holds, beside a run, what attendrop did not write there: "
            f"{', '.join(foreign)}. Move it away, or name another folder."
        )


def own_files(folder: Path) -> list[Path]:
    """The files of a run, or of a model that no run has made."""
    run = read_run(folder) or {"files": dict.fromkeys(os.listdir(folder))}
    return [path for path in folder.iterdir() if path.is_file() and _is_own(path.name, run)]


@contextmanager
def hold_run_folders(files: Iterable[str | Path]) -> Iterator[None]:
    """Hold the folders of runs into which files are written."""
    parents = {Path(file).resolve().parent for file in files}
    with ExitStack() as stack:
        for parent in sorted(parents):
            if (parent / RUN).exists():
                stack.enter_context(locked(parent))
        yield


def check_data(place: Path, data_sha256: str) -> None:
    """Refuse to resume a run; raises AttendropError if it began with other training rows."""
    run = read_run(place)
    if run is not None and run["data_sha256"] != data_sha256:
        raise AttendropError(f"The training data changed since the run in '{place}' began; it cannot be resumed.")


def begin_run(place: Path, config: RunConfig, data_sha256: str) -> None:
    """Make a folder that of a run."""
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / RUN, {"config": _comparable(config), "data_sha256": data_sha256, "files": {}})


@contextmanager
def results(place: Path) -> Iterator[Path]:
    """A folder to write the results of a run into; they come into the run's own when all are there, metrics.json last.

    Raises:
        AttendropError: Files of others would be replaced.
    """
    partial = place / _RESULTS
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        with disk_errors(partial):
            yield partial
        share_permissions(partial)
        run = read_run(place) or {}
        names = [path.name for path in partial.iterdir()]
        _refuse_foreign(place, run, names)
        write_json(place / RUN, run | {"files": digests(partial)})
        _move(partial, place, last=(METRICS,))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def clear_unfinished(place: Path) -> None:
    """Delete what is left of a run that was to replace another, and did not end."""
    if place.name == _NEW_RUN:
        shutil.rmtree(place, ignore_errors=True)


def replace_run(folder: Path) -> None:
    """Put a run that is complete in the place of the older one; goes on where a process died while it did so.

    Raises:
        AttendropError: Files of others would be replaced.
    """
    new, old = folder / _NEW_RUN, read_run(folder)
    if read_metrics(new) is None:
        return
    if read_run(new) is not None and old is not None:
        _refuse_foreign(folder, old, [path.name for path in new.iterdir()])
        _delete(folder, [name for name in os.listdir(folder) if _is_own(name, old)])
    _move(new, folder, last=(RUN, METRICS))


def _delete(folder: Path, names: list[str]) -> None:
    """Delete a run: first what says that it is finished, last what says that it is one."""
    for name in sorted(names, key=lambda name: (name == RUN, name != METRICS)):
        if name not in (LOCK, _NEW_RUN):
            _remove(folder / name)


def _move(source: Path, target: Path, last: tuple[str, ...]) -> None:
    for name in sorted(os.listdir(source), key=lambda name: last.index(name) if name in last else -1):
        if (target / name).is_dir():
            _remove(target / name)
        os.replace(source / name, target / name)
    source.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is_own(name: str, run: Mapping[str, Any]) -> bool:
    return name in run.get("files", ()) or _OWN.fullmatch(name) is not None


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder, by name: what ``run.json`` keeps of the files that a run wrote."""
    return {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}


def _foreign(folder: Path, run: Mapping[str, Any]) -> list[str]:
    """What the run did not write, and what was changed since it did."""
    from attendrop.checkpoints import strange_files

    found = [path.name for path in folder.iterdir() if not _is_own(path.name, run)]
    for name, digest in run.get("files", {}).items():
        if (folder / name).is_file() and sha256(folder / name) != digest:
            found.append(f"{name} (changed since)")
    for checkpoint in folder.glob("checkpoint-*"):
        found += [f"{checkpoint.name}/{name}" for name in strange_files(checkpoint)]
    return sorted(found)


def _refuse_foreign(folder: Path, run: Mapping[str, Any], names: list[str]) -> None:
    taken = [name for name in names if (folder / name).exists() and not _is_own(name, run)]
    if taken:
        raise AttendropError(
            f"'{folder / taken[0]}' was not written by attendrop, and a result of the run has its name; move it away. "
            "Then --resume completes the run."
        )


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


def read_json(path: Path, needed: Mapping[str, type]) -> dict[str, Any] | None:
    """A mapping that the library wrote, None if there is none; raises AttendropError if it lacks what is needed."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise AttendropError(f"'{path}' is not valid JSON; restore it, or name another folder.") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(name), kind) for name, kind in needed.items()):
        raise AttendropError(f"'{path}' was not written by attendrop; name another folder.")
    return content
