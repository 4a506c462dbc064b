"""What the name of a file says: its format, and the columns and labels that files of this format have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCE, TARGET = "source", "target"
IMAGE, IMAGE_CLASS = "image", "label"
_SEPARATOR = ","


@dataclass(frozen=True)
class _Format:
    """Columns of the texts and of the labels, and type of the labels."""

    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    label_type: str = "auto"


_FORMATS = {
    ".conll": _Format(("tokens",), "tags"),
    ".conllu": _Format(("tokens",), "upos"),
    ".txt": _Format(("text",)),
}
_PARALLEL = _Format((SOURCE,), TARGET, "text")
_FOLDER = _Format((IMAGE,), IMAGE_CLASS, "image-class")


def files_of(name: str | Path) -> tuple[Path, ...]:
    """Return the files that the name of custom data stands for: one, or parallel text files with commas between them.

    ``train.tr,train.en`` is two files, with a text and its translation in the same lines.
    """
    text = str(name)
    if _SEPARATOR not in text or Path(text).exists():
        return (Path(text),)
    return tuple(Path(part.strip()) for part in text.split(_SEPARATOR))


def extension_of(path: str | Path) -> str:
    """Return the extension of a file in lower case, such as ".csv" for ``a.csv`` and for ``a.CSV.gz``."""
    name = str(path).lower()
    return Path(name.removesuffix(".gz")).suffix or Path(name).suffix


def default_columns(name: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return the text columns and the label column of custom data; none if their format names no columns.

    Args:
        name: A file, as for :func:`files_of`, a folder of images, or a format such as ``"x.conll"``.
    """
    found = _format(name)
    return found.text_columns, found.label_column


def default_label_type(name: str | None) -> str:
    """Return what the labels of custom data are, as of :func:`default_columns`; "auto" if the format does not say."""
    return _format(name).label_type


def _format(name: str | None) -> _Format:
    files = files_of(name or "")
    if len(files) > 1:
        return _PARALLEL
    unknown = _FOLDER if name and files[0].is_dir() else _Format()
    return _FORMATS.get(extension_of(files[0]), unknown)
