"""Folder of a run: made beside its place, moved there when it is complete, and read again by other commands.

The time line of a run in ``runs/NAME``::

    runs/.NAME.partial      locked by the process that uses it (.lock), which does not change runs/NAME meanwhile
        run.json, run.yaml                        from the first step on: options, hashes of the data and the model
        checkpoint-N, selection, tensorboard      while it trains
        the model, its card, metrics.json         in the end; with metrics.json, which is the last, it is finished
    runs/.NAME.replaced-N   what was in runs/NAME, as a whole, if another run replaces it
    runs/NAME               the partial folder, without its checkpoints, by one ``os.replace``

So nothing in an output folder is ever deleted, whoever wrote it; and a folder that is no run is refused.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shlex
import shutil
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import count
from logging import getLogger
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attendrop.errors import AttendropError
from attendrop.runs.config import DATA, PATHS, RUN_FILE, RunConfig, Source, by_content, located, partial_of, run_file
from attendrop.support import files
from attendrop.tasks.inspection import label_columns
from attendrop.tasks.table import STDIN, BadRows, files_of, read_chunks

RUN, METRICS, LOCK, TENSORBOARD = "run.json", "metrics.json", ".lock", "tensorboard"
# The training rows, where they are a sample of the data.
SAMPLED_ROWS = "sampled_rows.json"
# Checkpoints of the training that selects the number of steps, before the final training, or of one that follows it.
SELECTION = "selection"
# Number of rows in memory at a time, which are sorted by length into batches.
CHUNK_ROWS = 4096
# Files for readers, and the one of an adapter that says where its model is: they may be changed, or missing.
_MAY_CHANGE = (".md", ".yaml", ".jsonl", ".parquet", SAMPLED_ROWS, METRICS, files.ADAPTER_CONFIG)
logger = getLogger(__name__)


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
        raise AttendropError(f"'{path}' is not valid JSON; restore it, or name another folder.") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(name), kind) for name, kind in needed.items()):
        raise AttendropError(f"'{path}' was not written by attendrop; name another folder.")
    return content


def read_run(folder: Path) -> dict[str, Any] | None:
    """Read ``run.json``; None if the folder holds no run. Raises AttendropError if attendrop did not write it."""
    return read_json(folder / RUN, {"config": dict, "data_sha256": str})


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """Read ``metrics.json``; None if no run is finished. Raises AttendropError if attendrop did not write it."""
    return read_json(folder / METRICS, {"task": str, "method": str, "config": dict, "all_scores": dict})


def run_options(folder: str | Path) -> dict[str, Any]:
    """Return the options of a run; empty if the folder holds none."""
    options: dict[str, Any] = (read_run(Path(folder)) or {"config": {}})["config"]
    return options


def config_of_run(run_dir: str, options: Mapping[str, Any], **changed: Any) -> RunConfig:
    """Make the configuration of a run of its options, as :func:`run_options` returns them, and others in their place.

    Raises AttendropError if another version of this library wrote them, which has further options.
    """
    if (unknown := next((name for name in options if name not in RunConfig.__dataclass_fields__), None)) is not None:
        raise AttendropError(
            f"The run in '{run_dir}' is of another version of attendrop, with an option {unknown!r} that this one does "
            "not have; use that version, or train it again."
        )
    return RunConfig(**{**options, **changed}, output_dir=run_dir)


def holds_run(folder: Path, config: RunConfig, data_sha256: str, baseline: str | None = None) -> bool:
    """Return whether a folder holds a run with these options, model and training rows, wherever it and its data were.

    Options that are None do not count.
    """
    run = read_run(folder)
    if run is None or (run.get("baseline"), run["data_sha256"]) != (baseline, data_sha256):
        return False
    began, asked = (
        {name: value for name, value in by_content(located(options)).items() if value is not None}
        for options in (run["config"], config.as_dict())
    )
    return began == asked and all(run.get(name, digest) == digest for name, digest in _digests_of(config).items())


def keeps_model(folder: str | Path) -> bool:
    """Return whether a run's folder has a model, which may be pruned, or an adapter, and not only its scores."""
    return any((Path(folder) / name).is_file() for name in ("config.json", files.ADAPTER_CONFIG, files.PRUNED_CONFIG))


def is_baseline(folder: str | Path) -> bool:
    """Return whether a folder holds the model of a baseline."""
    return (Path(folder) / files.BASELINE_CONFIG).is_file()


def input_files(folder: Path) -> list[str | Path]:
    """List the files of a run and its data, or of a model that no run has written, which no output replaces."""
    if not folder.is_dir():
        return []
    run = read_run(folder) or {"config": {}, "files": os.listdir(folder)}
    own = (folder / name for name in (RUN, METRICS, *run.get("files", {})) if (folder / name).is_file())
    return [*own, *(file for name in DATA if (given := run["config"].get(name)) for file in files_of(given))]


def digests(folder: Path) -> dict[str, str]:
    """Compute the SHA-256 of each file in the folder of a run, by name, as recorded in ``run.json``."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (LOCK, RUN, METRICS))
    return {path.name: files.sha256(path) for path in paths}


def check_whole(folder: Path) -> None:
    """Raise AttendropError if a file of the run's model is missing, a link, or not as the run wrote it."""
    written = (read_run(folder) or {}).get("files", {})
    if written:
        files.refuse_links(folder)
    needed = {name: folder / name for name in written if not name.endswith(_MAY_CHANGE)}
    wrong = [name for name, file in needed.items() if not file.is_file() or files.known_sha256(file) != written[name]]
    if wrong:
        raise AttendropError(
            f"In '{folder}', {', '.join(wrong)} is missing, or not as its {RUN} says; copy the folder again, or "
            f"without {RUN} if the change is meant."
        )


# Finished runs, as other commands read them; checked before PyTorch is loaded ----------------------------------------


def check_finished(run_dir: str) -> None:
    """Raise AttendropError if there is no such folder, or no finished run or other model in it, but runs below it."""
    folder = Path(run_dir)
    unfinished = (partial_of(folder) / RUN).is_file()
    if not folder.is_dir() and not unfinished:
        raise AttendropError(f"There is no run folder '{run_dir}'.")
    inner = next((path.parent for path in sorted(folder.glob(f"[!.]*/{METRICS}"))), None)
    if inner is not None and not any((folder / name).exists() for name in (RUN, "config.json")):
        raise AttendropError(f"'{run_dir}' holds no model; did you mean '{inner}'?")
    if (read_run(folder) is not None or unfinished) and read_metrics(folder) is None:
        first = "" if unfinished else f"rename it to '{partial_of(folder)}'; "
        told = f"The run in '{run_dir}' is not finished; {first}`attendrop train` with --resume finishes it."
        raise AttendropError(told)


def read_finished(run_dir: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read ``run.json`` and ``metrics.json``; raises AttendropError if the folder holds no finished run."""
    check_finished(run_dir)
    run, metrics = read_run(Path(run_dir)), read_metrics(Path(run_dir))
    if run is None or metrics is None:
        raise AttendropError(f"'{run_dir}' holds no finished run; name the folder of one.")
    return run, metrics


def check_keeps_model(run_dir: str) -> None:
    """Raise AttendropError if a run kept its scores, and not its model, or lost a file of it."""
    if not keeps_model(run_dir) and not is_baseline(run_dir):
        check_whole(Path(run_dir))
        again = shlex.quote(f"{run_dir}/{RUN_FILE}")
        raise AttendropError(f"'{run_dir}' kept no model, only scores; run `attendrop train --config {again}`.")


def check_source(run_dir: str, source: Source, *, labelled: bool) -> None:
    """Check the run and the beginning of the file that are to be scored or predicted."""
    check_finished(run_dir)
    options = run_options(run_dir)
    if source.file in (None, STDIN) or not (options or keeps_model(run_dir)):
        return  # of the last, loading says that there is no model
    columns, label = source.columns_of(str(source.file), options, labelled=labelled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading the whole file warns
        table = next(read_chunks(str(source.file), CHUNK_ROWS, BadRows(skip=source.skip_bad_rows)), None)
        others = (options.get("with_columns") if source.with_columns is None else source.with_columns) or ()
        table = table and table.with_absent(others)
    if table is not None:
        for name in (*columns, *others, *(() if label is None else label_columns(table.columns, label))):
            table.column(name)


# Locks, and folders that appear when they are complete ----------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; it is created if missing, and deleted if it is empty in the end.

    The operating system releases the lock when the process ends, even after a crash. Raises AttendropError if another
    process holds it, or the folder has a symbolic link.
    """
    folder = folder.absolute()
    files.refuse_links(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    place, lock = folder / LOCK, FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = "another process"
        with suppress(OSError):
            holder = place.read_text(encoding="utf-8") or holder
        raise AttendropError(f"The folder '{folder}' is in use by {holder}; wait until it ends.") from None
    own = os.stat(place)
    try:
        since = datetime.now().isoformat(" ", "seconds")
        with suppress(OSError):  # the disk may be full, and Windows does not let a locked file be written
            place.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            if os.path.samestat(own, os.lstat(place)):  # a folder that was moved may have another's lock now
                place.unlink()
        lock.release()
        with suppress(OSError):  # ends at the first folder that is not empty
            for path in made or [folder]:
                path.rmdir()


def _check_place(folder: Path) -> None:
    """Raise AttendropError for an output folder to whose place no other folder can be moved."""
    for place in (folder, partial_of(folder)) if folder.name else ():
        if place.is_symlink():
            raise AttendropError(
                f"'{place}' is a symbolic link, to '{os.readlink(place)}', and attendrop follows none: name a folder."
            )
    if folder.exists() and not folder.is_dir():
        raise AttendropError(f"The output folder '{folder}' is a file.")
    files.check_writable(folder.absolute().parent)
    if folder.name in ("", "..") or (folder.exists() and (os.path.ismount(folder) or folder.samefile(Path.cwd()))):
        raise AttendropError(f"'{folder}' is the current directory or a mount; name a folder within it.")


def _rename(source: Path, place: Path) -> None:
    """Rename a file or a folder; by a copy where that is not possible, as for folders of a container's image."""
    try:
        os.replace(source, place)
    except OSError as error:
        if error.errno != errno.EXDEV or not source.is_dir():
            raise
        copy = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
        shutil.copytree(source, copy)
        os.replace(copy, place)
        shutil.rmtree(source)


def _put(source: Path, folder: Path) -> None:
    """Move a complete folder to its place; what is there is moved aside."""
    if folder.exists() and any(folder.iterdir()):
        aside = name_aside(folder)
        _rename(folder, aside)
        logger.info("What was in %s is in %s now; delete it if you need it no longer.", folder, aside)
    elif folder.exists():
        folder.rmdir()  # on Windows, even an empty one is not replaced
    _rename(source, folder)


def name_aside(folder: Path) -> Path:
    """Return a free name beside a folder or a file, for what is replaced there."""
    names = (folder.with_name(f".{folder.name}.replaced-{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``target`` at the end of the block; after an exception, it is gone.

    Raises AttendropError if the target exists and is not empty, or another process makes it.
    """
    _check_place(target)
    if target.exists() and any(target.iterdir()):
        raise AttendropError(f"The output folder '{target}' is not empty; name a new one.")
    with locked(partial_of(target)):
        staged = partial_of(target) / target.name
        shutil.rmtree(staged, ignore_errors=True)  # of a process that was killed
        staged.mkdir()
        try:
            with files.disk_errors(target):
                yield staged
            files.share_permissions(staged)
            _put(staged, target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


# Before a run --------------------------------------------------------------------------------------------------------


@contextmanager
def run_folder(config: RunConfig, *, resume: bool, overwrite: bool, baseline: str | None = None) -> Iterator[Path]:
    """Lock the partial folder of a run while it trains, and yield it; to resume a finished run, its folder.

    Raises AttendropError if another process uses the folder, or :func:`check_folder` refuses it.
    """
    folder = Path(config.output_dir)
    if resume and overwrite:
        raise AttendropError("resume and overwrite exclude each other; choose one.")
    _check_place(folder)
    with locked(partial_of(folder)) if is_main_process() else nullcontext():
        if is_main_process():
            check_folder(folder, config, resume=resume, overwrite=overwrite, baseline=baseline)
        finished = resume and read_run(partial_of(folder)) is None and read_metrics(folder) is not None
        yield folder if finished else partial_of(folder)


def check_folder(
    folder: Path, config: RunConfig, *, resume: bool, overwrite: bool, baseline: str | None = None
) -> None:
    """Refuse a folder that a run, or a ``baseline``, may not use, without writing anything.

    Raises AttendropError if it holds something else than a run, or a symbolic link; or a run is there, or was begun,
    that is neither resumed with the same options nor replaced.
    """
    from attendrop.methods.core.registry import flat_options

    files.refuse_links(folder)
    begun, held = read_run(partial_of(folder)), read_run(folder)
    if held is None and folder.exists() and any(folder.iterdir()):
        raise AttendropError(f"The output folder '{folder}' holds other files; name an empty or a new one.")
    if resume and begun is None and read_metrics(folder) is None and any(folder.rglob("checkpoint-*")):
        told = f"The run in '{folder}' is not finished; rename it to '{partial_of(folder)}' to resume it."
        raise AttendropError(told)
    run = begun or held
    if overwrite or run is None:
        return
    if not resume:
        raise AttendropError(f"'{folder}' holds a run already; --resume continues it, --overwrite replaces it.")
    if run.get("baseline") != baseline:
        found = run.get("baseline") or run["config"]["method"]
        raise AttendropError(f"The output folder '{folder}' holds a run of {found}; name another folder.")

    def compared(options: Mapping[str, Any]) -> dict[str, Any]:  # the method first, so that its change is named first
        found = located(options)
        for name in ("options", "output_dir", "data_dir"):
            found.pop(name, None)
        return found | flat_options(options["options"])

    before = compared(run["config"])
    for name, value in compared(config.as_dict()).items():
        was = before.get(name)
        # Of what was moved, `check_unchanged` compares the content; a hub id is no folder.
        moved = name in PATHS and was and value and not any(file.exists() for file in files_of(was))
        moved = moved and (name != "model" or (os.path.isabs(str(was)) and os.path.isdir(str(value))))
        # It does not compare evaluation rows.
        moved = moved and (name != "eval_file" or Path(str(was)).name == Path(str(value)).name)
        if was != value and not moved:
            began, asked = ("the default" if each is None else repr(each) for each in (was, value))
            raise AttendropError(
                f"The run in '{folder}' began with {name}={began}, not {asked}; resume it so, or name another folder."
            )


def _digests_of(config: RunConfig) -> dict[str, str]:
    """Hash the files of a local model, and the code of an own method, by their entries in ``run.json``."""
    from attendrop.methods.core.registry import own_code_sha256

    return {"model_sha256": files.model_sha256(config.model), "code_sha256": own_code_sha256(config.regularizer)}


def check_unchanged(place: Path, config: RunConfig, data_sha256: str) -> None:
    """Raise AttendropError if a run began with other rows, files of its model, code of its method, or processes."""
    run, now = read_run(place), number_of_processes()
    if run is None:
        return
    if run["data_sha256"] != data_sha256:
        raise AttendropError(f"The training data changed since the run in '{place}' began; it cannot be resumed.")
    for name, digest in _digests_of(config).items():
        if run.get(name, digest) != digest:
            what = f"files of the model in '{config.model}'" if name == "model_sha256" else f"code of {config.method}"
            told = f"The {what} changed since the run began; restore what it was, or --overwrite the run."
            raise AttendropError(told)
    if (began := run.get("processes", now)) != now and read_metrics(place) is None:
        raise AttendropError(f"The run in '{place}' began with {began} and not {now} processes; resume it with these.")


# During and after a run ----------------------------------------------------------------------------------------------


def begin_run(place: Path, config: RunConfig, data_sha256: str, **entries: Any) -> None:
    """Write ``run.json``, with further entries, and ``run.yaml``; not for a ``baseline``: that would train a model."""
    began: dict[str, Any] = {"config": located(config.as_dict()), "data_sha256": data_sha256, **_digests_of(config)}
    del began["config"]["output_dir"]
    place.mkdir(parents=True, exist_ok=True)
    if "baseline" not in entries:
        files.write_text(place / RUN_FILE, run_file(config))
    files.write_json(place / RUN, began | entries)


def note_in_run(place: Path, **entries: Any) -> None:
    """Write entries into ``run.json``, for when the run is resumed."""
    files.write_json(place / RUN, (read_run(place) or {}) | entries)


def set_aside(place: Path) -> None:
    """Move an unfinished run, which another one replaces, out of the partial folder."""
    if read_run(place) is not None:
        aside = name_aside(place.with_name(place.name.removeprefix(".").removesuffix(".partial")))
        aside.mkdir()
        for path in sorted(place.iterdir(), key=lambda path: path.name == RUN):  # without which checkpoints are none's
            if path.name != LOCK:
                _rename(path, aside / path.name)


def finish_run(place: Path, folder: Path, metrics: Mapping[str, Any]) -> None:
    """Record the files of a run, write ``metrics.json`` and put the run in its folder."""
    for path in place.iterdir():
        if files.PARTIAL.fullmatch(path.name):  # of a process that was killed
            path.unlink()
    files.share_permissions(place)
    note_in_run(place, files=digests(place))
    files.write_json(place / METRICS, metrics)
    put_in_place(place, folder)


def put_in_place(place: Path, folder: Path) -> None:
    """Put a finished run in its folder, if it is not there yet, without its checkpoints: it is never resumed."""
    if place != folder:
        delete_checkpoints(place)
        (place / LOCK).unlink(missing_ok=True)  # of this process, which has nothing to change any more
        _put(place, folder)


def delete_checkpoints(place: Path) -> None:
    """Delete the checkpoints of a run."""
    for checkpoint in (*place.glob("checkpoint-*"), place / SELECTION):
        shutil.rmtree(checkpoint, ignore_errors=True)
