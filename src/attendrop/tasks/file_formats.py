"""Columns that files of a format have by name, so that nobody needs to give them."""

from pathlib import Path

# The columns of the words and of the labels.
_COLUMNS = {".conll": (("tokens",), "tags"), ".conllu": (("tokens",), "upos")}


def default_columns(path: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return the text columns and the label column of a file by its extension; none if the format names no columns.

    Args:
        path: The file, or a format such as ``"x.conll"``.
    """
    return _COLUMNS.get(Path(path or "").suffix.lower(), ((), None))
