"""Shared code of heads whose labels are names from the training data: classes, labels or tags."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Self

from datasets import Dataset

from attendrop.errors import AttendropError, did_you_mean
from attendrop.tasks.heads.base import Array, Head
from attendrop.tasks.table import COUNT_AS_WRONG

# Number of names that a message lists.
_SHOWN = 10


class NamedLabels(Head):
    """Head whose labels are made of names, ``label_names``: one or several for each row."""

    label_noun: ClassVar[tuple[str, str, str]]  # what a value in a file is called, a name, and several names

    @classmethod
    def of_names(cls, names: Sequence[str], where: object) -> Self:
        """Make the head with the names in training files, for :meth:`from_labels`; refuse fewer than two."""
        if len(names) < 2:
            found = f"only one {cls.label_noun[1]}, {names[0]!r}" if names else f"no {cls.label_noun[1]}"
            raise AttendropError(f"{where} has {found}; training needs at least two.")
        return cls(tuple(names))

    @property
    def answers(self) -> tuple[str, ...]:
        return self.label_names

    @cached_property
    def label_ids(self) -> dict[str, int]:
        """The ids of names."""
        return {name: number for number, name in enumerate(self.all_names)}

    @cached_property
    def _hints(self) -> dict[str, str]:
        """What unknown names may stand for, once it is found: many rows have the same, and names may be many."""
        return {}

    @abstractmethod
    def names_in(self, value: Any) -> list[str]:
        """Return the names in a label of a file."""

    @abstractmethod
    def ids_in(self, label: Any) -> Iterable[int]:
        """Return the ids of the names in a label."""

    def unknown_labels(self, value: Any) -> list[str]:
        return [name for name in self.names_in(value) if name not in self.label_ids]

    def label_problem(self, value: Any) -> str | None:
        unknown = self.unknown_labels(value)
        if not unknown:
            return None
        (value_noun, _, several), names = self.label_noun, self.label_names
        others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        known = ", ".join(map(repr, names[:_SHOWN])) + others
        hints = self._hints
        if (hint := hints.get(unknown[0])) is None:
            hint = hints[unknown[0]] = did_you_mean(unknown[0], names) or f"; the {several} are {known}"
        counts = f" {COUNT_AS_WRONG}" if self.keeps_unknown else ""
        return f"the {value_noun} {unknown[0]!r} is not among those of training{counts}{hint.removesuffix('.')}"

    def counted(self, labels: Iterable[Any]) -> dict[str, int]:
        """Count each of ``label_names`` in labels."""
        counts = Counter(map(int, chain.from_iterable(map(self.ids_in, labels))))
        return {name: counts[number] for number, name in enumerate(self.label_names)}

    def predicted_counts(self, outputs: Array) -> dict[str, int]:
        return {name: count for name, count in self.counted(self.decode(outputs)).items() if count}

    def shown_label(self, label: Any) -> str:
        return ", ".join(self.all_names[number] for number in self.ids_in(label))

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        return {self.label_noun[-1]: self.counted(rows["label"][:])}

    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        _, one, several = self.label_noun
        return count_lines([part[several] for part in parts], f"rows of a {one}")

    def label_warnings(self, train: Mapping[str, Any], scored: Sequence[Mapping[str, Any]] = ()) -> list[str]:
        several = self.label_noun[-1]
        missing = [name for name, count in train[several].items() if count == 0]
        found = {f"No row of train has one of these {several}, which cannot be learnt": missing}
        if scored:  # a class of a single row is never held out
            single = [name for name, count in train[several].items() if count == 1]
            unscored = [name for name in single if not any(part[several][name] for part in scored)]
            found[f"These {several} occur once, in a row that is trained on, so that no score is of them"] = unscored
        return [f"{what}: {_listed(names)}." for what, names in found.items() if names]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


# Up to this many classes are listed; for more, only the smallest and the largest number of rows are shown.
MOST_LISTED = 12


def count_lines(counts: Sequence[Mapping[str, int]], title: str, form: str = "{} to {}") -> list[list[str]]:
    """Return the lines of a table with the counts of each class in each part.

    Of more than 12 classes, one line, with this title, has the smallest and the largest count in this form.
    """
    if len(counts[0]) <= MOST_LISTED:
        return [[f"  {name}", *(str(part[name]) for part in counts)] for name in counts[0]]
    return [[title, *(form.format(min(part.values()), max(part.values())) for part in counts)]]
