"""Tables of labels for the report on data: counts of classes, and lengths of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Up to this many classes are listed; for more, only the smallest and the largest number of rows are shown.
MOST_LISTED = 12


def count_lines(counts: Sequence[Mapping[str, int]], title: str, form: str = "{} to {}") -> list[list[str]]:
    """Return the lines of a table with the counts of each class in each part.

    Args:
        counts: Counts by class, of each part.
        title: Title of a line with the smallest and the largest, instead of a line for each of more than 12 classes.
        form: Form of these two.
    """
    if len(counts[0]) <= MOST_LISTED:
        return [[f"  {name}", *(str(part[name]) for part in counts)] for name in counts[0]]
    return [[title, *(form.format(min(part.values()), max(part.values())) for part in counts)]]


def word_counts(texts: Sequence[str]) -> dict[str, Any]:
    """Summarize the numbers of words of texts, for :func:`word_line`."""
    words = [len(text.split()) for text in texts]
    return {"words": {"mean": float(np.mean(words)), "max": max(words)}}


def word_line(title: str, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the line of a table with the mean and the largest number of words of each part."""
    return [[title, *("{mean:.1f}, up to {max}".format(**part["words"]) for part in parts)]]
