"""Files of benchmarks with tabs between columns, as GLUE, HANS and PAWS-X have them, and the same rows on the hub."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.argument_checks import did_you_mean
from attendrop.errors import AttendropError
from attendrop.tasks.sources import Row
from attendrop.tasks.text_files import tabbed_lines
from attendrop.wording import counted

_BROKEN_SHARE = 0.001  # only QQP has broken rows, about 20 in 360,000


@dataclass(frozen=True)
class TabbedFile:
    """Reader of files without quoting, in which lines end with a line feed only, and columns are found by name.

    Rows with a wrong number of fields, an empty text or an empty label are skipped with a warning if they are at most
    one in a thousand. More of them is an error, as is one in a file without labels, because a submission needs every
    row.

    Attributes:
        texts: Columns of the texts.
        label: Column of the labels.
        header: The columns of files that have no header line.
        index: Column with the ids of rows; where it has no whole number, rows are numbered.
        groups: Columns of groups.
        tests_have_labels: Whether test files have labels.
        read_label: Function that converts a label, given the place of its row.
    """

    texts: tuple[str, ...]
    label: str
    header: tuple[str, ...] = ()
    index: str = "index"
    groups: tuple[str, ...] = ()
    tests_have_labels: bool = False
    read_label: Callable[[str, str], Any] = lambda label, place: label

    def read(self, paths: Sequence[Path], split: str) -> Iterator[Row]:
        """Yield the rows of the file of a split.

        Raises:
            AttendropError: The file has no rows, lacks a column, or has too many broken rows.
        """
        (path,) = paths
        labelled = self.tests_have_labels or not split.startswith("test")
        wanted = (*self.texts, *((self.label,) if labelled else ()))
        lines = list(tabbed_lines(path))
        header = list(self.header)
        if not header or set(wanted) <= set(lines[0][1]):
            (_, header), *lines = lines
        for column in (*wanted, *self.groups):
            if column not in header:
                hint = did_you_mean(column, header) or f"; its header is {', '.join(map(repr, header))}."
                raise AttendropError(f"{path} has no column {column!r}{hint}")
        if not lines:
            raise AttendropError(f"{path} has no rows.")
        rows: list[Row] = []
        broken = []
        for place, values in lines:
            fields = dict(zip(header, values, strict=False))
            if len(values) != len(header):
                broken.append(f"{place}: {counted(len(values), 'field')} instead of {len(header)}")
            elif labelled and not all(fields[column].strip() for column in wanted):
                broken.append(f"{place}: an empty text or label")
            else:
                number = fields.get(self.index, "")
                others: dict[str, Any] = {group: fields[group] for group in self.groups}
                others["index"] = int(number) if number.isdecimal() else len(rows)
                label = self.read_label(fields[self.label], f"{path}, {place}") if labelled else None
                rows.append(Row(path, place, tuple(fields[column] for column in self.texts), label, others))
        if broken and (not labelled or len(broken) > len(lines) * _BROKEN_SHARE):
            raise AttendropError(
                f"{path}, {broken[0]}; {len(broken)} of {len(lines)} rows are broken; download the file again."
            )
        if broken:
            skipped = f"skipped {len(broken)} broken rows of {len(lines)}, the first at {broken[0]}"
            warnings.warn(f"{path}: {skipped}.", stacklevel=5)
        yield from rows


def hub_rows(texts: Sequence[str], groups: Sequence[str], name: str, raw: Dataset) -> Iterator[Row]:
    """Yield the rows of a data set of the hub, given its columns of texts and of groups; their ids are in "idx"."""
    columns = (raw[column][:] for column in (*texts, *groups))
    numbers = raw["idx"][:] if "idx" in raw.column_names else range(len(raw))
    for label, number, *values in zip(raw["label"][:], numbers, *columns, strict=True):
        others = dict(zip(groups, values[len(texts) :], strict=True)) | {"index": number}
        yield Row(name, f"row {number}", tuple(values[: len(texts)]), label, others)
