"""Atomic writing of files, and protection of existing ones and of what symbolic links point to."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from attendrop.errors import DISK_FULL, AttendropError

# Names of files that are being written, or were when their process was killed.
PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.partial")
# Messages of PyTorch, which only reports a failed write.
_TOLD_OF_FULL_DISK = ("PytorchStreamWriter failed", "unexpected pos", "iostream error")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def finite(value: Any) -> Any:
    """Replace NaN and infinite numbers, which JSON does not have, by None; also within mappings and lists."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_text(path: Path, content: str) -> None:
    """Write a text file atomically, in UTF-8."""
    write_bytes(path, content.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a binary file atomically; remove it if the disk is full."""
    with disk_errors(path), new_file(path) as file:
        partial = Path(file.name)
        try:
            file.write(content)
            file.close()
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def new_file(path: Path, mode: str = "xb", **how: Any) -> IO[Any]:
    """Open a new file beside ``path``, which is renamed to it when complete; ``how`` as for :func:`open`.

    All files are made here. Neither an existing file nor what a symbolic link points to is ever written: the file is
    made exclusively, under a name that nobody knows before, :data:`PARTIAL`, and a link at ``path`` is replaced.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial").open(mode, **how)


def refuse_links(folder: Path) -> None:
    """Raise AttendropError if a folder holds a symbolic link, at any depth: attendrop makes none, and follows none."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(path := os.path.join(place, name)):
                raise AttendropError(
                    f"'{path}' is a symbolic link, to '{os.readlink(path)}', and attendrop makes and follows none: "
                    "delete it, or put what it points to in its place."
                )


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Convert errors of libraries that are due to the disk, such as a full one, to OSError, with a path."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL and error.filename is None:
            raise OSError(error.errno, error.strerror, str(place)) from error
        raise
    except Exception as error:  # safetensors' class has no other base
        number = _disk_error(error)
        if number is not None:
            raise OSError(number, os.strerror(number), str(place)) from error
        raise


def _disk_error(error: BaseException | None) -> int | None:
    """Return the operating system's error number in an error or its cause; None if there is none."""
    if error is None:
        return None
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return error.errno
    if found := re.search(r"os error (\d+)", str(error)):  # in messages of safetensors
        return int(found[1])
    if any(part in str(error) for part in _TOLD_OF_FULL_DISK):
        return errno.EFBIG if _files_are_limited() else errno.ENOSPC
    return _disk_error(error.__cause__ or error.__context__)


def _files_are_limited() -> bool:
    """Return whether this process may write files up to a size only; Windows has no such limit."""
    try:
        import resource
    except ImportError:
        return False
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, once per process unless its size or time changes."""
    state = path.stat()
    return _sha256(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1 << 17)
def _sha256(path: Path, size: int, changed: int) -> str:
    return sha256(path)


def share_permissions(folder: Path) -> None:
    """Give all files in a folder the permissions of the umask; safetensors restricts its files to the owner."""
    with new_file(folder / "probe") as probe:
        mode = os.fstat(probe.fileno()).st_mode
    os.unlink(probe.name)
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(mode)


def check_output(output: str | Path, inputs: Iterable[str | Path], *, overwrite: bool) -> None:
    """Refuse to replace ``inputs``, whichever path or link ``output`` is, and other files unless ``overwrite``.

    Raises:
        AttendropError: ``output`` is a folder, in a file or a folder that cannot be written, or an input, or exists and
            may not be replaced.
    """
    if os.path.isdir(output):
        raise AttendropError(f"The output '{output}' is a folder; name a file.")
    above = next(place for place in Path(output).absolute().parents if place.exists())
    if not above.is_dir():
        raise AttendropError(
            f"The output '{output}' cannot be written, since '{above}' is a file; name another folder."
        )
    if not os.access(above, os.W_OK):  # before a model is loaded
        raise AttendropError(
            f"The output '{output}' cannot be written: '{above}' does not allow it; name another folder."
        )
    if not os.path.lexists(output):
        return
    if os.path.exists(output) and not os.path.isfile(output):
        raise AttendropError(f"The output '{output}' is a device or a pipe; name a file.")
    for name in inputs:
        if os.path.exists(output) and os.path.exists(name) and os.path.samefile(output, name):
            raise AttendropError(f"The output '{output}' is the file '{name}', which is read; name another.")
    if not overwrite:
        told = broken_link(output) or f"The file '{output}' exists; --overwrite replaces it, or name another."
        raise AttendropError(told)


def broken_link(path: str | Path) -> str | None:
    """Describe a symbolic link to nothing, which files and folders cannot be written to; None if it is none."""
    if not os.path.islink(path) or os.path.exists(path):
        return None
    return f"'{path}' is a link to '{os.readlink(path)}', which does not exist; delete it, or name another."
