"""Attention layers, and the selection of layers by kind and number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attendrop.errors import AttendropError

KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer of a model in one forward pass.

    Attributes:
        name: Qualified name of the module; ``name#k`` for the ``k``-th call of a module that is called repeatedly
            (ALBERT).
        kind: ``"encoder"``, ``"decoder"`` (causal self-attention, also of decoder-only models) or ``"cross"``.
        index: Number among the layers of its kind, from 0, in the order of execution.
    """

    name: str
    kind: str
    index: int

    @property
    def key(self) -> str:
        """Short unique name, such as ``encoder.3``."""
        return f"{self.kind}.{self.index}"


def select_layers(
    attention_layers: Sequence[AttentionLayer], layers: str | int | Sequence[int]
) -> list[AttentionLayer]:
    """Select attention layers by kind and number.

    Args:
        attention_layers: The layers to select from.
        layers: ``"all"``; ``"first"`` (the first of each kind); numbers within a kind, as a list or as ``"0,3"``; any
            of these for one kind only, ``"encoder"``, ``"cross:first"``, ``"decoder:0,1"``; several joined by ``;``.

    Raises:
        AttendropError: The selection is malformed, or names a layer or kind that the model does not have.
    """
    wanted = parse_layers(layers)
    selected = []
    kinds = {layer.kind for layer in attention_layers}
    for kind, numbers in wanted:
        if kind is not None and kind not in kinds:
            raise AttendropError(
                f"layers={layers!r}: the model has no {kind} attention; it has {', '.join(sorted(kinds))}."
            )
        candidates = [layer for layer in attention_layers if kind in (None, layer.kind)]
        missing = set(numbers or ()) - {layer.index for layer in candidates}
        if missing:
            last = max(layer.index for layer in candidates)
            raise AttendropError(f"layers={layers!r}: the model has no layer {min(missing)}; layers are 0 to {last}.")
        selected += [layer for layer in candidates if numbers is None or layer.index in numbers]
    return [layer for layer in attention_layers if layer in selected]


def select_self_attention(
    attention_layers: Sequence[AttentionLayer], layers: str | int | Sequence[int]
) -> list[AttentionLayer]:
    """Select as :func:`select_layers` does; keep the encoder's self-attention, or if there is none the decoder's."""
    selected = select_layers(attention_layers, layers)
    for kind in ("encoder", "decoder"):
        found = [layer for layer in selected if layer.kind == kind]
        if found:
            return found
    raise AttendropError(f"layers={layers!r} leaves no self-attention; choose encoder or decoder layers.")


def checked_layers(layers: str | int | Iterable[int]) -> str | int | Sequence[int]:
    """Return a layer selection that is immutable; raises AttendropError if it is malformed."""
    fixed = layers if isinstance(layers, str) or not isinstance(layers, Iterable) else tuple(layers)
    parse_layers(fixed)
    return fixed


def parse_layers(layers: str | int | Sequence[int]) -> list[tuple[str | None, frozenset[int] | None]]:
    """Read a layer selection (see :func:`select_layers`) as pairs (kind or None for each, numbers or None for all)."""
    problem = AttendropError(
        f"layers={layers!r} is not a selection of layers. Use 'all', 'first', numbers such as '0,3', or a kind "
        "(encoder, decoder, cross) with or without them: 'cross:0,1'."
    )
    if isinstance(layers, int):
        layers = [layers]
    if not isinstance(layers, str):
        listed = list(layers) if isinstance(layers, Iterable) else []
        if not listed or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in listed):
            raise problem
        return [(None, frozenset(listed))]
    parsed = []
    for part in layers.split(";"):
        kind, colon, numbers = part.strip().rpartition(":")
        if not colon and numbers in KINDS:
            kind, numbers = numbers, "all"
        if kind and kind not in KINDS:
            raise problem
        numbers = {"first": "0"}.get(numbers.strip(), numbers.strip(" []"))
        if numbers != "all" and not re.fullmatch(r"\d+(\s*,\s*\d+)*\s*,?", numbers):
            raise problem
        chosen = None if numbers == "all" else frozenset(int(n) for n in re.findall(r"\d+", numbers))
        parsed.append((kind or None, chosen))
    return parsed
