"""Images: folders of images, their pixels as model inputs, and checks that they can be read."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attendrop.errors import AttendropError
from attendrop.files.output_files import known_sha256
from attendrop.tasks.file_formats import IMAGE, IMAGE_CLASS
from attendrop.tasks.table import Table, in_chunks

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
# A check decodes JPEG files at this fraction of their size, which takes a fraction of the time.
_CHECKED_AT = 8
# Checks of more files are announced, because they take long.
_MANY = 1000
logger = logging.getLogger(__name__)


class ImageFile(NamedTuple):
    """Result of the check of a file: what is wrong with it, or None, and the hash of its bytes."""

    problem: str | None
    sha256: str = ""


def is_image(path: str | Path) -> bool:
    """Return whether a file is an image, by its extension."""
    return Path(path).suffix.lower() in IMAGE_SUFFIXES


def read_image(path: str | Path) -> Image:
    """Read an image as RGB: upright, as its EXIF orientation says, without transparency, of several frames the first.

    This is what ``transformers.pipeline`` does, except for grey images of more than 8 bits, which it makes white or
    black: 16 bits are scaled, unless all are small, and 32, of no known range, refused. Raises AttendropError if the
    file cannot be read.
    """
    try:
        with _pillow().open(path) as image:
            return _rgb(image)
    except AttendropError:
        raise
    except Exception as error:  # Pillow's readers have no common exception
        raise AttendropError(f"{path}: {_unreadable(error)}.") from error


def _rgb(image: Image) -> Image:
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        values = np.asarray(upright)
        if 0 < values.max() < 256:
            raise ValueError("its values of 16 bits are all below 256, which is black; save it with 8")
        upright = _pillow().fromarray((values >> 8).astype(np.uint8))
    if upright.mode in ("I", "F"):
        raise ValueError("its values have 32 bits or a sign, and no known range; save it with 8 or 16")
    if "transparency" in upright.info:  # of a palette, of which Pillow warns
        upright = upright.convert("RGBA")
    return upright.convert("RGB")


def check_images(paths: Sequence[str]) -> None:
    """Check files on all cores, so that :func:`check_image` knows the results."""
    if len(paths) > _MANY:
        logger.info("Checking %d images.", len(paths))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(check_image, paths))


def check_image(path: str) -> ImageFile:
    """Read a file, and decode its pixels without keeping them; results are remembered until the file changes."""
    _pillow()
    try:
        found = os.stat(path)
    except OSError as error:
        return ImageFile(f"the file cannot be read ({error.strerror})")
    return _checked(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1 << 17)
def _checked(path: str, size: int, changed: int) -> ImageFile:
    try:
        content = Path(path).read_bytes()
        with _pillow().open(io.BytesIO(content)) as image:
            image.draft("RGB", (max(1, image.width // _CHECKED_AT), max(1, image.height // _CHECKED_AT)))
            _rgb(image)
    except Exception as error:  # as above
        return ImageFile(_unreadable(error))
    return ImageFile(None, hashlib.sha256(content).hexdigest())


def _unreadable(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"the file cannot be read ({error.strerror})"
    # Pillow's message of an unknown format has the file's path, or the place of a buffer in memory.
    reason = "it is not an image of a known format" if "cannot identify" in str(error) else str(error).splitlines()[0]
    return f"the image cannot be read ({reason})"


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise AttendropError("Images need Pillow; run `pip install 'attendrop[images]'`.") from None
    return Image


def read_image_folder(folder: Path, size: int | None) -> Iterator[Table]:
    """Read a folder in chunks, without opening an image: ``photos/cats/winter/1.jpg`` is of the class ``cats``.

    The column ``image`` has the paths in the folder, in alphabetical order, and ``label`` the names of the folders of
    classes, None for images beside these. Links are followed. Hidden files and folders, and files that are not images
    by their extension, are ignored, and counted in a message.

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

    def row(index: int, name: Path) -> tuple[int, str, list[str | None]]:
        place = str(name).encode(errors="backslashreplace").decode()  # can be printed, also if it is not in UTF-8
        return index, place, [str(name), name.parts[0] if len(name.parts) > 1 else None]

    rows = (row(index, file.relative_to(folder)) for index, file in enumerate(images))
    yield from in_chunks(folder, [IMAGE, IMAGE_CLASS], rows, size)


def class_folders(folder: Path) -> list[str]:
    """List the folders of classes in a folder, in alphabetical order."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def folder_sha256(folder: Path) -> str:
    """Hash the names and the contents of all images in a folder, in hexadecimal."""
    digest = hashlib.sha256()
    for file in _files(folder, frozenset()):
        if is_image(file) and file.is_file():
            digest.update(json.dumps([str(file.relative_to(folder)), known_sha256(file)]).encode())
    return digest.hexdigest()


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
