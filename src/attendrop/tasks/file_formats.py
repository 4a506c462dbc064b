"""File formats by file name, with the columns and labels of each format."""

from __future__ import annotations

from pathlib import Path

SOURCE, TARGET = "source", "target"
_SEPARATOR = ","


# Columns of the texts, that of the labels, and type of the labels.
_Format = tuple[tuple[str, ...], str | None, str]
_FORMATS: dict[str, _Format] = {
    ".conll": (("tokens",), "tags", "auto"),
    ".conllu": (("tokens",), "upos", "auto"),
    ".txt": (("text",), None, "auto"),
}


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

    The name is that of a file, as for :func:`files_of`, or of a format such as ``"x.conll"``.
    """
    return _format(name)[:2]


def default_label_type(name: str | None) -> str:
    """Return what the labels of custom data are, as of :func:`default_columns`; "auto" if the format does not say."""
    return _format(name)[2]


def _format(name: str | None) -> _Format:
    files = files_of(name or "")
    if len(files) > 1:
        return (SOURCE,), TARGET, "text"
    return _FORMATS.get(extension_of(files[0]), ((), None, "auto"))
