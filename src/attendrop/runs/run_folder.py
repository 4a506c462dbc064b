"""Folder of a run: its files, which of them the run wrote, its lock, and checks before it is resumed or replaced.

``run.json`` has the options of the run and the SHA-256 of the files that it wrote; it exists from the first step on.
``metrics.json`` is written last: a folder that has it holds a finished run. A run that replaces another one is trained
in a subfolder of the old run, ``.new-run``, and takes its place when it is complete. Only files that are as the run
wrote them are replaced or deleted; everything else is the user's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.files.model_files import ADAPTER_CONFIG, PRUNED_CONFIG, model_sha256
from attendrop.files.output_files import (
    PARTIAL,
    check_output,
    disk_errors,
    known_sha256,
    refuse_links,
    sha256,
    share_permissions,
    write_json,
    write_text,
)
from attendrop.runs.config import RunConfig
from attendrop.runs.folder_lock import LOCK, check_held, check_writable, locked, refuse_if_locked
from attendrop.runs.run_file import PATHS, RUN_FILE, absolute_paths, by_content, located, run_file
from attendrop.tasks.table import files_of

RUN = "run.json"
METRICS = "metrics.json"
# The training rows, where they are a sample of the data.
SAMPLED_ROWS = "sampled_rows.json"
# Checkpoints of the training that selects the number of steps, before the final training, or of one that follows it.
SELECTION = "selection"
TENSORBOARD = "tensorboard"
NEW_RUN = ".new-run"
_RESULTS = ".results.partial"
_DELETED = ".deleted"
# Files and folders that exist only while a process writes, beside those that :data:`PARTIAL` names.
_SCRATCH = (LOCK, NEW_RUN, _RESULTS, _DELETED)
_FOR_READERS = (".md", ".yaml", ".jsonl", ".parquet")


def is_main_process() -> bool:
    """Return whether this process prints and writes; alone it does, whatever rank others set, such as schedulers."""
    return number_of_processes() == 1 or os.environ.get("RANK", "0") == "0"


def number_of_processes() -> int:
    """Return how many processes train one model together, as torchrun says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


# What a folder holds -------------------------------------------------------------------------------------------------


def read_json(path: Path, needed: Mapping[str, type]) -> dict[str, Any] | None:
    """Read a JSON mapping; None if there is no file. Raises AttendropError if it lacks needed entries."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        raise AttendropError(
            f"'{path}' is not valid JSON: it was damaged, or attendrop did not write it; restore it, or name another "
            "folder."
        ) from None
    if not isinstance(content, dict) or not all(isinstance(content.get(name), kind) for name, kind in needed.items()):
        raise AttendropError(f"'{path}' was not written by attendrop; name another folder.")
    return content


def read_run(folder: Path) -> dict[str, Any] | None:
    """Read ``run.json``; None if the folder holds no run. Raises AttendropError if attendrop did not write it."""
    return read_json(folder / RUN, {"config": dict, "data_sha256": str})


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """Read ``metrics.json``; None if no run is finished. Raises AttendropError if attendrop did not write it."""
    return read_json(folder / METRICS, {"task": str, "method": str, "config": dict, "all_scores": dict})


def holds_run(folder: Path, config: RunConfig, data_sha256: str, baseline: str | None = None) -> bool:
    """Return whether a folder holds a run with these options, model and training rows, wherever it and its data were.

    Options that are None do not count: runs of older versions lack those that are new.
    """
    run = read_run(folder) or {}
    held = (_given(run.get("config", {})), run.get("data_sha256"), run.get("baseline"))
    return held == (_given(_comparable(config)), data_sha256, baseline) and _has_model(run, config)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in by_content(located(options)).items() if value is not None}


def keeps_model(folder: str | Path) -> bool:
    """Return whether a run's folder has a model, which may be pruned, or an adapter, and not only its scores."""
    return any((Path(folder) / name).is_file() for name in ("config.json", ADAPTER_CONFIG, PRUNED_CONFIG))


def own_files(folder: Path) -> list[Path]:
    """List the files of a run, or of a model that no run has written."""
    run = read_run(folder)
    names = os.listdir(folder) if run is None else [RUN, *run.get("files", {})]
    return [folder / name for name in names if (folder / name).is_file()]


def input_files(folder: Path) -> list[str | Path]:
    """List the files of a run and of its data, which no output replaces."""
    options = run_options(folder)
    data = ("train_file", "eval_file", "label_map", "label_names", "unlabelled")
    named = [options[name] for name in data if options.get(name)]
    return [*own_files(folder), *(file for name in named for file in files_of(name))]


def run_options(folder: Path) -> dict[str, Any]:
    """Return the options of a run; empty if the folder holds none."""
    options: dict[str, Any] = (read_run(folder) or {"config": {}})["config"]
    return options


def last_begun(folder: Path) -> int:
    """Return when the newest run in a folder, or its replacement, was recorded; 0 without any."""
    records = [folder / RUN, folder / NEW_RUN / RUN]
    return max((path.stat().st_mtime_ns for path in records if path.is_file()), default=0)


def check_whole(folder: Path) -> None:
    """Raise AttendropError if a file of the run's model is missing, a link, or not as the run wrote it.

    Files for readers only, such as its card and the options to repeat it, may be missing or changed; the configuration
    of an adapter, which says where its model is, may be changed.
    """
    written = (read_run(folder) or {}).get("files", {})
    if written:
        refuse_links(folder)
    needed = [name for name in written if not name.endswith(_FOR_READERS)]
    lost = [name for name in needed if not (folder / name).is_file()]
    if lost:
        raise AttendropError(
            f"The model in '{folder}' lacks {', '.join(lost)}, which its run wrote; copy the whole folder again."
        )
    kept = [name for name in needed if name not in (METRICS, SAMPLED_ROWS, ADAPTER_CONFIG)]
    if damaged := [name for name in kept if known_sha256(folder / name) != written[name]]:
        raise AttendropError(
            f"The model in '{folder}' is damaged, or was changed: the SHA-256 of {', '.join(damaged)} is not that in "
            f"its {RUN}; copy the whole folder again, or, if the change is meant, copy it without {RUN}."
        )


# Files of a run and of others ----------------------------------------------------------------------------------------


def digests(folder: Path) -> dict[str, str]:
    """Compute the SHA-256 of each file in a folder, by name, as recorded in ``run.json``."""
    return {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}


def foreign(path: Path, run: Mapping[str, Any]) -> list[str]:
    """List the parts of a file or folder that are not the run's own, or were changed since the run wrote them.

    ``run.json`` records what a run wrote (``files``) and what other commands added to it (``added``); each checkpoint
    has a manifest. TensorBoard's files grow during training, so all are the run's if it reports to TensorBoard.
    """
    name, recorded = path.name, {**run.get("files", {}), **run.get("added", {})}
    if name == RUN or name in _SCRATCH or PARTIAL.fullmatch(name):
        return []
    if path.is_file() and name in recorded:
        return [] if sha256(path) == recorded[name] else [f"{name} (changed since)"]
    if path.is_dir() and re.fullmatch(r"checkpoint-\d+", name):
        from attendrop.training.checkpoints import unexpected_files

        return [f"{name}/{file}" for file in unexpected_files(path)]
    if path.is_dir() and name == SELECTION:
        own = {"config": run.get("config", {})}  # it holds checkpoints, and reports as the run does
        return [f"{name}/{part}" for each in sorted(path.iterdir()) for part in foreign(each, own)]
    if path.is_dir() and name == TENSORBOARD and run.get("config", {}).get("report_to") == TENSORBOARD:
        return _beside_events(path)
    return [name]


def _beside_events(folder: Path) -> list[str]:
    """List the files in TensorBoard's folder that are not TensorBoard's."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    theirs = [file for file in files if not file.name.startswith("events.out.tfevents")]
    return [f"{folder.name}/{file.relative_to(folder)}" for file in theirs]


def refuse_foreign(folder: Path, run: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise AttendropError if files with these names exist and do not belong to the run."""
    for name in names:
        if os.path.lexists(folder / name) and (found := foreign(folder / name, run)):
            raise AttendropError(
                f"'{folder / found[0]}' was not written by attendrop, but has the name of a result of the run; move it "
                "away, then complete the run with --resume."
            )


def writable(run: str | Path, file: str | Path, *, overwrite: bool) -> Path:
    """Raise AttendropError unless a file is new, a command's earlier output in the run's folder, or to be replaced."""
    path, folder = Path(file), Path(run)
    if path.is_dir() or not path.parent.is_dir():
        raise AttendropError(f"'{file}' cannot be written; name a file in a folder that exists.")
    record = (read_run(folder) if folder.is_dir() else None) or {}
    inside = _real(path).parent == _real(folder)
    earlier = inside and path.name in record.get("added", {}) and not foreign(path, record)
    check_output(path, own_files(folder) if folder.is_dir() else [], overwrite=overwrite or earlier)
    return path


@contextmanager
def adding(run: str | Path, *paths: Path) -> Iterator[None]:
    """Lock the folders of runs into which files are written, and record those in the folder of a run as added to it."""
    folder = Path(run)
    with hold_run_folders(paths):
        yield
        record = read_run(folder) if folder.is_dir() else None
        added = {path.name: sha256(path) for path in paths if _real(path).parent == _real(folder)}
        if record is not None and added:
            write_json(folder / RUN, record | {"added": record.get("added", {}) | added})


def rewrite(path: Path, content: str) -> None:
    """Replace a text of a run and its record, unless somebody else has changed it."""
    with hold_run_folders([path]):
        run = read_run(path.parent) or {}
        if os.path.lexists(path) and foreign(path, run):
            return
        path.unlink(missing_ok=True)  # if interrupted, the file is either as recorded or missing
        write_json(path.parent / RUN, run | {"files": run.get("files", {}) | {path.name: digest(content)}})
        write_text(path, content)


def digest(text: str) -> str:
    """Compute the SHA-256 of the file that a text is written to."""
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def hold_run_folders(files: Iterable[str | Path]) -> Iterator[None]:
    """Lock the folders of runs into which files are written."""
    with ExitStack() as stack:
        for parent in sorted({_real(file).parent for file in files}):
            if (parent / RUN).exists():
                stack.enter_context(locked(parent))
        yield


def _real(path: str | Path) -> Path:
    """Resolve the links of a path; unlike ``Path.resolve``, which may raise, also those of a link to itself."""
    return Path(os.path.realpath(path))


# Before a run --------------------------------------------------------------------------------------------------------


@contextmanager
def run_folder(config: RunConfig, *, resume: bool, overwrite: bool, baseline: str | None = None) -> Iterator[Path]:
    """Lock the folder of a run while it trains; yield the folder for its files until it is complete.

    Raises AttendropError if another process uses the folder, or :func:`check_folder` refuses it.
    """
    folder = Path(config.output_dir)
    if not is_main_process():
        yield _place(folder, resume=resume, overwrite=overwrite)
        return
    refuse_if_locked(folder)
    # Before the lock: a refused command must not change the folder.
    check_folder(folder, config, resume=resume, overwrite=overwrite, baseline=baseline)
    with locked(folder):
        replace_run(folder)
        check_folder(folder, config, resume=resume, overwrite=overwrite, baseline=baseline)
        try:
            yield _place(folder, resume=resume, overwrite=overwrite)
        finally:
            with suppress(OSError):  # not empty
                (folder / NEW_RUN).rmdir()


def _place(folder: Path, *, resume: bool, overwrite: bool) -> Path:
    """Return where a run keeps its files until it is complete: in its folder, or in one within."""
    new = folder / NEW_RUN
    replaces = (overwrite and read_run(folder) is not None) or (resume and read_run(new) is not None)
    return new if replaces else folder


def check_folder(
    folder: Path, config: RunConfig, *, resume: bool, overwrite: bool, baseline: str | None = None
) -> None:
    """Refuse a folder that a run, or a ``baseline``, may not use, without writing anything.

    Raises:
        AttendropError: It is a file, or holds something else than a run; or the run there is neither resumed with the
            same options nor replaced, or has symbolic links, or files that it did not write.
    """
    if resume and overwrite:
        raise AttendropError("resume and overwrite exclude each other; choose one.")
    if folder.exists() and not folder.is_dir():
        raise AttendropError(f"The output folder '{folder}' is a file.")
    check_writable(folder)
    refuse_links(folder)
    if not folder.exists() or all(_is_left_over(path) for path in folder.iterdir()):
        return
    run = read_run(folder) or read_run(folder / NEW_RUN)  # without the first if a replacement was interrupted
    if run is None:
        raise AttendropError(f"The output folder '{folder}' holds other files; name an empty or a new one.")
    if resume and run.get("baseline") != baseline:
        found = run.get("baseline") or run["config"]["method"]
        raise AttendropError(f"The output folder '{folder}' holds a run of {found}; name another folder.")
    if resume:
        _check_options(folder, read_run(_place(folder, resume=True, overwrite=False)) or run, _comparable(config))
    elif not overwrite:
        raise AttendropError(
            f"The output folder '{folder}' holds a run already; --resume continues it, --overwrite replaces it."
        )
    elif strange := sorted(name for path in folder.iterdir() for name in foreign(path, run)):
        raise AttendropError(
            f"The output folder '{folder}' holds a run, and files that the run did not write: "
            f"{', '.join(strange)}. Move them away, or name another folder."
        )


def _is_left_over(path: Path) -> bool:
    """Return whether a file or folder may remain from a run that died before its first step was recorded."""
    if path.name == SELECTION and path.is_dir():
        return all(_is_left_over(part) for part in path.iterdir())
    # TensorBoard's files are made when training begins.
    of_tensorboard = path.name == TENSORBOARD and path.is_dir() and not _beside_events(path)
    return of_tensorboard or path.name == LOCK or PARTIAL.fullmatch(path.name) is not None


def _comparable(config: RunConfig) -> dict[str, Any]:
    """Return the options that affect the results, as JSON values."""
    options: dict[str, Any] = json.loads(json.dumps(config.as_dict()))
    del options["output_dir"]
    return options


def _check_options(folder: Path, run: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to resume a run with other options than it began with."""
    from attendrop.methods.core.registry import flat_options

    def flat(options: dict[str, Any]) -> dict[str, Any]:  # the method first, so that its change is named first
        return {name: value for name, value in options.items() if name != "options"} | flat_options(options["options"])

    before, decided = flat(run["config"]), flat({"options": {}} | (run.get("decided") or {}))
    was_located, is_located = located(run["config"]), located(now)
    for name, value in flat(now).items():
        was = before.get(name)
        same_place = name in PATHS and was_located.get(name) == is_located.get(name)
        if was == value or same_place or (name in PATHS and was and value and _was_moved(was, value)):
            continue
        began, asked = f"{name}={was!r}", repr(value)
        if was is None:
            began = f"the default {name}" if name in decided else f"no {name}"
            began += f" ({decided[name]})" if decided.get(name) is not None else ""
        if value is None:
            asked = "the default" if name in decided or name in flat_options(now["options"]) else "without it"
        raise AttendropError(
            f"The run in '{folder}' began with {began}, not {asked}; resume it with the same options, or name "
            "another output folder."
        )


def _was_moved(before: str, now: str) -> bool:
    """Return whether files or a folder are gone, and others have their names: :func:`check_unchanged` compares them."""
    old, new = files_of(before), files_of(now)
    gone = not any(file.exists() for file in old) and all(file.exists() for file in new)
    return gone and [file.name for file in old] == [file.name for file in new]


def check_unchanged(place: Path, config: RunConfig, data_sha256: str) -> None:
    """Raise AttendropError if a run that is resumed began with other training rows, or other files of its model."""
    run = read_run(place)
    if run is not None and run["data_sha256"] != data_sha256:
        raise AttendropError(f"The training data changed since the run in '{place}' began; it cannot be resumed.")
    if run is not None and not _has_model(run, config):
        raise AttendropError(
            f"The files of the model in '{config.model}' changed since the run in '{place}' began; it cannot be "
            "resumed: restore them, or train anew with --overwrite."
        )


def check_processes(place: Path, run: Mapping[str, Any]) -> None:
    """Raise AttendropError if a run that is resumed began with another number of processes."""
    began, now = run.get("processes", number_of_processes()), number_of_processes()
    if began != now:
        raise AttendropError(
            f"The run in '{place}' began with {began} and not {now} processes, each of which trains on a batch in a "
            f"step; resume it with {began}, or name another output folder."
        )


def _has_model(run: Mapping[str, Any], config: RunConfig) -> bool:
    """Return whether a local model is as it was when a run began, as far as is known."""
    found = model_sha256(config.model)
    return not found or found == run.get("model_sha256", found)


# During and after a run ----------------------------------------------------------------------------------------------


def begin_run(place: Path, config: RunConfig, data_sha256: str, **entries: Any) -> None:
    """Write ``run.json``, with further entries, and ``run.yaml``; not for a ``baseline``: that would train a model."""
    files = {} if "baseline" in entries else {RUN_FILE: run_file(config)}
    refuse_foreign(place, {}, files)
    place.mkdir(parents=True, exist_ok=True)
    recorded = {"files": {name: digest(content) for name, content in files.items()}}
    options = _comparable(config)
    began = {"config": options | absolute_paths(options), "data_sha256": data_sha256}
    began |= {"model_sha256": model_sha256(config.model)}
    write_json(place / RUN, began | recorded | entries)
    for name, content in files.items():
        write_text(place / name, content)


def note_in_run(place: Path, **entries: Any) -> None:
    """Write entries into ``run.json``, for when the run is resumed."""
    check_held(place.parent if place.name == NEW_RUN else place)
    write_json(place / RUN, (read_run(place) or {}) | entries)


@contextmanager
def results(place: Path) -> Iterator[Path]:
    """Yield a temporary folder for the results of a run; move them into the run's when complete, metrics.json last."""
    partial = place / _RESULTS
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        with disk_errors(partial):
            yield partial
        share_permissions(partial)
        run = read_run(place) or {}
        found = digests(partial)
        check_held(place.parent if place.name == NEW_RUN else place)
        refuse_foreign(place, run, found)
        killed = [name for name in os.listdir(place) if PARTIAL.fullmatch(name)]
        for name in (*found, *killed):  # of results that were moved in part, and of a process that was killed
            (place / name).unlink(missing_ok=True)
        write_json(place / RUN, run | {"files": run.get("files", {}) | found})
        _move(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_run(folder: Path) -> None:
    """Replace an older run by a complete one; continue an interrupted replacement."""
    new, old = folder / NEW_RUN, read_run(folder)
    if read_metrics(new) is None:
        return
    if read_run(new) is not None and old is not None:
        refuse_foreign(folder, old, os.listdir(new))
        own = [path for path in folder.iterdir() if path.name not in (LOCK, NEW_RUN) and not foreign(path, old)]
        for path in sorted(own, key=lambda path: (path.name == RUN, path.name != METRICS)):
            _remove(path)
    _move(new, folder)


def clear_unfinished(place: Path) -> None:
    """Delete the remains of an unfinished run that should have replaced another."""
    if place.name == NEW_RUN:
        shutil.rmtree(place, ignore_errors=True)


def delete_checkpoints(place: Path) -> None:
    """Delete the checkpoints of a run, except for folders with files that are not the run's."""
    shutil.rmtree(place / _DELETED, ignore_errors=True)
    for checkpoint in [*place.glob("checkpoint-*"), *place.glob(f"{SELECTION}/checkpoint-*")]:
        if not foreign(checkpoint, {}):
            _remove(checkpoint)
    with suppress(OSError):  # there is none, or it is not empty
        (place / SELECTION).rmdir()


def _move(source: Path, target: Path) -> None:
    """Move all files; those that identify the run and mark it as complete come last."""
    for path in sorted(source.iterdir(), key=lambda path: (path.name == METRICS, path.name == RUN)):
        if (target / path.name).is_dir():
            _remove(target / path.name)
        os.replace(path, target / path.name)
    source.rmdir()


def _remove(path: Path) -> None:
    """Delete a file, or a folder atomically: an interruption leaves no partial folder under its name."""
    if not path.is_dir() or path.is_symlink():
        return path.unlink()
    deleted = path.with_name(_DELETED)
    if path != deleted:
        shutil.rmtree(deleted, ignore_errors=True)
        os.replace(path, deleted)
    shutil.rmtree(deleted)
