"""The attacker's pass: what the generator drops from it, drawn layer by layer and kept for the lesson."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attendrop.attention import Plan
from attendrop.masks import DrawKey, draw, origins_of, real_rows
from attendrop.methods.attend_out.generator import Draft
from attendrop.methods.base import Batch, Pass
from attendrop.rows import to_device
from attendrop.scoring import Call, Edit
from attendrop.sites import Site

if TYPE_CHECKING:
    from attendrop.methods.attend_out.players import Players


@dataclass
class Micro:
    """One micro-batch of a period, and what was dropped from it.

    Attributes:
        batch: The batch, with labels.
        inputs: Which of its columns the model was given.
        key: What fixed the draws.
        dropped: Of each site, the units that were dropped: ``(batch, heads, n, n)``, or with ones where a unit is all.
        valid: Of each site, the keys that could be attended to; None for all.
        units: Of each site, which positions are units: valid keys in rows that hold tokens; None for all.
    """

    batch: dict[str, Any]
    inputs: list[str]
    key: DrawKey
    dropped: dict[str, Tensor] = field(default_factory=dict)
    valid: dict[str, Tensor | None] = field(default_factory=dict)
    units: dict[str, Tensor | None] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        """How many sequences attention saw; more than rows where each row has several choices."""
        return next(iter(self.dropped.values())).shape[0]

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return vars(self) | {"key": vars(self.key)}

    @classmethod
    def load(cls, state: Mapping[str, Any], device: torch.device) -> Micro:
        """Make it again of a :meth:`state_dict`, on a device."""
        moved = {name: to_device(state[name], device) for name in ("batch", "dropped", "valid", "units")}
        return cls(inputs=state["inputs"], key=DrawKey(**state["key"]), **moved)


class Guided(Plan):
    """A pass of the model along which the generator goes, layer by layer, seeing what each layer may attend to."""

    def __init__(self, players: Players, inputs: Batch) -> None:
        super().__init__()
        self.players = players
        self.inputs = inputs
        self.keys = {site.key for site in players.sites}
        self.draft: Draft | None = None
        self.known: tuple[Tensor | None, Tensor, Tensor | None] | None = None

    def wants(self, site: Site) -> bool:
        return site.key in self.keys

    def probabilities(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The probability of dropping each unit of this layer, the next one, and which units there are (None: all)."""
        if self.draft is None:
            device = call.device.type
            self.players.autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            self.draft = self.players.generator.begin(self.inputs)
        _, positions = self.places(call)
        found = self.players.logits(self.draft, call.valid, positions).sigmoid()
        return found, positions if self.players.by_score else None

    def places(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The first token of each sequence, and which positions hold tokens that attend to tokens (None: all)."""
        if self.known is None or self.known[0] is not call.valid:  # layers mostly share their mask
            rows, valid = real_rows(call), call.valid
            self.known = valid, origins_of(call), valid if valid is None or rows is None else valid & rows
        return self.known[1], self.known[2]


class Attack(Guided):
    """The pass that trains the attacker: draws what is dropped, and keeps it.

    Args:
        players: The generator.
        step: The pass.
        micro: What is drawn is kept here.
        count: Called with each layer's key, probabilities and units.
    """

    def __init__(
        self, players: Players, step: Pass, micro: Micro, count: Callable[[str, Tensor, Tensor | None], None]
    ) -> None:
        super().__init__(players, step.inputs)
        self.step = step
        self.micro = micro
        self.count = count

    @torch.no_grad()
    def edit(self, call: Call) -> Edit:
        key = call.site.key
        if key not in self.micro.dropped:
            self._act(call)
        dropped = self.micro.dropped[key]
        if dropped.shape[1] == 1:
            return Edit(drop=dropped)
        return Edit(drop=dropped.repeat_interleave(call.shape[1] // dropped.shape[1], 1))

    def _act(self, call: Call) -> None:
        key = call.site.key
        probabilities, units = self.probabilities(call)
        batch, heads, queries, keys = probabilities.shape
        origins, positions = self.places(call)
        if not self.players.by_score:
            origins = torch.zeros_like(origins)
        dropped = draw(probabilities, self.step.key, key, (batch, heads, queries, keys), origins, call.device)
        if units is not None:
            dropped &= units
        self.micro.dropped[key], self.micro.valid[key], self.micro.units[key] = dropped, call.valid, positions
        self.count(key, probabilities, units)
        self.step.report(key, dropped.sum(), number_of(units, dropped).long())


class Decide(Guided):
    """A pass in which nothing is dropped: counts the units that the generator would drop, those above one half."""

    def __init__(self, players: Players, inputs: Batch) -> None:
        super().__init__(players, inputs)
        self.counts: dict[str, Tensor] = {}

    @torch.no_grad()
    def edit(self, call: Call) -> None:
        probabilities, units = self.probabilities(call)
        dropped = probabilities > 0.5
        dropped = dropped if units is None else dropped & units
        self.counts[call.site.key] = torch.stack([dropped.sum().float(), number_of(units, dropped)])


def number_of(units: Tensor | None, like: Tensor) -> Tensor:
    """How many units there are, given which (None: all) and a tensor with one element for each."""
    if units is None:
        return torch.tensor(float(like.numel()), device=like.device)
    return units.expand(like.shape).sum().float()
