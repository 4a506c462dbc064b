"""Running statistics of the training passes, for the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_NONE = torch.zeros(2)


class RunningStatistics:
    """Counts of passes and dropped units, and sums of metrics, kept on their device to avoid synchronization.

    ``active`` is the number of ``passes`` in which each source was active; ``counts`` holds the numbers of dropped and
    of possible units by ``source/layer``, and ``notes`` the sum and number of values by ``source/name``.
    """

    def __init__(
        self,
        passes: int = 0,
        active: Mapping[str, int] | None = None,
        counts: Mapping[str, Sequence[float]] | None = None,
        notes: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.passes = passes
        self.active = dict(active or {})
        self.counts = {name: torch.tensor(pair) for name, pair in (counts or {}).items()}
        self.notes = {name: torch.tensor(pair, dtype=torch.float64) for name, pair in (notes or {}).items()}

    def begin(self, acting: Sequence[str]) -> None:
        """Count a pass in which these sources are active."""
        self.passes += 1
        for source in acting:
            self.active[source] = self.active.get(source, 0) + 1

    def count(self, source: str, layer: str, dropped: Tensor, possible: Tensor) -> None:
        """Add the numbers of dropped and of possible units of a layer."""
        _add(self.counts, f"{source}/{layer}", torch.stack([dropped, possible]))

    def note(self, source: str, name: str, value: Tensor | float) -> None:
        """Add a value to the sum of a metric."""
        value = value.detach() if isinstance(value, Tensor) else torch.tensor(value)
        _add(self.notes, f"{source}/{name}", torch.stack([value.double(), torch.ones_like(value).double()]))

    def took_effect(self, source: str) -> bool:
        """Return whether a source was active in a pass and, if it counts dropped units, dropped any."""
        counts = [pair for name, pair in self.counts.items() if name.partition("/")[0] == source]
        return self.active.get(source, 0) > 0 and (not counts or any(pair[0] > 0 for pair in counts))

    def state_dict(self) -> dict[str, Any]:
        """Return the constructor arguments that restore this object, as plain values."""
        counts = {key: pair.tolist() for key, pair in self.counts.items()}
        notes = {key: pair.tolist() for key, pair in self.notes.items()}
        return {"passes": self.passes, "active": self.active, "counts": counts, "notes": notes}

    @classmethod
    def merged(cls, states: Iterable[Mapping[str, Any]]) -> RunningStatistics:
        """Sum the :meth:`state_dict` of several processes."""
        found = cls()
        for each in (cls(**state) for state in states):
            found.passes += each.passes
            for source, count in each.active.items():
                found.active[source] = found.active.get(source, 0) + count
            for sums, others in ((found.counts, each.counts), (found.notes, each.notes)):
                for name, pair in others.items():
                    _add(sums, name, pair)
        return found

    def summary(
        self, sources: Sequence[str], total: Callable[[Tensor], Tensor], gather: Callable[[Any], list[Any]]
    ) -> dict[str, float]:
        """Return the metrics of these sources, over all processes, which may have counted different ones.

        ``SOURCE/active``: the fraction of passes in which it was active; ``SOURCE/dropped`` and
        ``SOURCE/dropped/LAYER``: the fractions of dropped units, if it counts any; ``SOURCE/NAME``: means of metrics.
        """
        known = gather((list(self.counts), list(self.notes)))
        counts = sorted({key for each, _ in known for key in each}, key=_place)
        notes = sorted({key for _, each in known for key in each})
        pairs = [torch.tensor([self.active.get(source, 0), self.passes]) for source in sources]
        pairs += [self.counts.get(key, _NONE).cpu() for key in counts]
        pairs += [self.notes.get(key, _NONE).cpu() for key in notes]
        summed = iter(total(torch.stack([pair.double() for pair in pairs])).tolist() if pairs else [])
        active = {source: next(summed) for source in sources}
        of_counts, of_notes = {key: next(summed) for key in counts}, {key: next(summed) for key in notes}
        found = {}
        for source in sources:
            found[f"{source}/active"] = _ratio(active[source])
            dropped = {key.partition("/")[2]: pair for key, pair in of_counts.items() if key.startswith(f"{source}/")}
            if dropped:
                found[f"{source}/dropped"] = _ratio([sum(pair[i] for pair in dropped.values()) for i in (0, 1)])
                found |= {f"{source}/dropped/{layer}": _ratio(pair) for layer, pair in dropped.items()}
            found |= {key: _ratio(pair) for key, pair in of_notes.items() if key.startswith(f"{source}/")}
        return found


def _add(sums: dict[str, Tensor], name: str, pair: Tensor) -> None:
    sums[name] = pair + sums[name].to(pair.device) if name in sums else pair


def _ratio(pair: Sequence[float]) -> float:
    return pair[0] / max(pair[1], 1)


def _place(name: str) -> tuple[str, str, int]:
    """Sort key of layers: source, kind and number."""
    source, _, layer = name.partition("/")
    kind, _, number = layer.partition(".")
    return source, kind, int(number) if number.isdecimal() else 0
