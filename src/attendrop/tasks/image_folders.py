"""Reader of folders of images: a folder for each class, or images alone."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from attendrop.errors import AttendropError
from attendrop.output_files import sha256
from attendrop.tasks.bad_rows import BadRows
from attendrop.tasks.file_formats import IMAGE, IMAGE_CLASS
from attendrop.tasks.image_files import is_image
from attendrop.tasks.table import Table

logger = logging.getLogger(__name__)


def read_image_folder(folder: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    """Read a folder in chunks, without opening an image: ``photos/cats/winter/1.jpg`` is of the class ``cats``.

    The column ``image`` has the paths in the folder, in alphabetical order, and ``label`` the names of the folders of
    classes, None for images beside these. Links are followed. Hidden files and folders, and files that are no images
    by their extension, are ignored, and counted in a message.

    Args:
        folder: The folder.
        size: Number of rows in a chunk; None reads one table.
        bad: Not needed: nothing is wrong with a name.

    Raises:
        AttendropError: The folder has no image.
    """
    files = list(_files(folder, frozenset()))
    images = [file for file in files if is_image(file) and not _is_hidden(file)]
    if not images:
        raise AttendropError(f"{folder} has no image; it needs files such as cats/1.jpg, in a folder for each class.")
    if len(images) < len(files):
        hidden = sum(map(_is_hidden, files))
        logger.info(
            "%s: %d images; ignored %d hidden files, and %d of other kinds.",
            *(folder, len(images), hidden, len(files) - len(images) - hidden),
        )
    rows = iter(enumerate(file.relative_to(folder) for file in images))
    while chunk := list(islice(rows, size)):
        values = [[str(name), name.parts[0] if len(name.parts) > 1 else None] for _, name in chunk]
        yield Table(folder, [IMAGE, IMAGE_CLASS], values, [_shown(name) for _, name in chunk], [n for n, _ in chunk])


def class_folders(folder: Path) -> list[str]:
    """List the folders of classes in a folder, in alphabetical order."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def folder_sha256(folder: Path) -> str:
    """Hash the names and the contents of all images in a folder, in hexadecimal."""
    digest = hashlib.sha256()
    for file in _files(folder, frozenset()):
        if is_image(file) and file.is_file():
            found = file.stat()
            content = _file_sha256(file, found.st_size, found.st_mtime_ns)
            digest.update(json.dumps([str(file.relative_to(folder)), content]).encode())
    return digest.hexdigest()


@lru_cache(maxsize=1 << 17)
def _file_sha256(file: Path, size: int, changed: int) -> str:
    return sha256(file)


def _files(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    """Yield all files in a folder, but for those in hidden folders; a link to a folder above is not followed."""
    place = os.path.realpath(folder)
    if place in above:
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = folder / entry.name
        if not entry.is_dir():
            yield path
        elif not _is_hidden(path):
            yield from _files(path, above | {place})


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _shown(name: Path) -> str:
    """Return a name that can be printed, also if it is not in UTF-8."""
    return str(name).encode(errors="backslashreplace").decode()
