"""Figures of matplotlib as files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, file: Path | IO[bytes], **options: Any) -> None:
    """Save a figure, without a warning for each character that its font lacks, which is drawn as a box.

    Args:
        figure: The figure.
        file: Where to.
        options: Arguments of ``Figure.savefig``.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, **options)
