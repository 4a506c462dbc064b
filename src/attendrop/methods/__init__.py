"""The methods, by name.

Packages of third parties add theirs with :func:`register_method`, or by an entry point of the group
``attendrop.methods`` that names the class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from attendrop.errors import AttendropError
from attendrop.methods.ad_drop import ADDrop
from attendrop.methods.alpha_dropout import AlphaDropout
from attendrop.methods.attend_out import AttendOut
from attendrop.methods.attention_layerdrop import AttentionLayerDrop
from attendrop.methods.autodropout import AutoDropout
from attendrop.methods.base import FineTune, Method, suggestion
from attendrop.methods.child_tuning import ChildTuning
from attendrop.methods.compose import Compose
from attendrop.methods.concrete_dropout import ConcreteDropout
from attendrop.methods.dropblock import DropBlock
from attendrop.methods.dropconnect import DropConnect
from attendrop.methods.drophead import DropHead
from attendrop.methods.headmask import HeadMask
from attendrop.methods.hiddencut import HiddenCut
from attendrop.methods.layerdrop import LayerDrop
from attendrop.methods.mixout import Mixout
from attendrop.methods.r_drop import RDrop
from attendrop.methods.scal import SCAL
from attendrop.methods.scheduler import Scheduler
from attendrop.methods.structure_mask import StructureMask
from attendrop.methods.supert import SuperT
from attendrop.methods.unidrop import UniDrop
from attendrop.methods.vanilla import Vanilla

__all__ = [
    "SCAL",
    "ADDrop",
    "AlphaDropout",
    "AttendOut",
    "AttentionLayerDrop",
    "AutoDropout",
    "ChildTuning",
    "Compose",
    "ConcreteDropout",
    "DropBlock",
    "DropConnect",
    "DropHead",
    "FineTune",
    "HeadMask",
    "HiddenCut",
    "LayerDrop",
    "Method",
    "Mixout",
    "RDrop",
    "Scheduler",
    "StructureMask",
    "SuperT",
    "UniDrop",
    "Vanilla",
    "register_method",
]

_METHODS: dict[str, type[Method]] = {}


def register_method(method: type[Method]) -> type[Method]:
    """Add a method under its ``name``; usable as a class decorator.

    Raises:
        AttendropError: Another method has that name.
    """
    if _METHODS.get(method.name, method) is not method:
        raise AttendropError(f"A method named '{method.name}' is registered already: {_METHODS[method.name].__name__}.")
    _METHODS[method.name] = method
    return method


for _method in (
    FineTune,
    ADDrop,
    AttendOut,
    Vanilla,
    Scheduler,
    DropBlock,
    StructureMask,
    AutoDropout,
    ConcreteDropout,
    DropHead,
    HeadMask,
    AlphaDropout,
    LayerDrop,
    AttentionLayerDrop,
    HiddenCut,
    UniDrop,
    SCAL,
    Mixout,
    DropConnect,
    ChildTuning,
    SuperT,
    RDrop,
):
    register_method(_method)


@cache
def _load_plugins() -> None:
    for entry_point in entry_points(group="attendrop.methods"):
        register_method(entry_point.load())


def method_names() -> list[str]:
    """The names of all methods, the baseline first."""
    _load_plugins()
    return list(_METHODS)


def get_method(name: str) -> type[Method]:
    """Look a method's class up by name.

    Raises:
        AttendropError: There is no such method; the nearest name is given.
    """
    names = tuple(method_names())
    if name not in names:
        raise AttendropError(f"There is no method '{name}'.{suggestion(name, names)}")
    return _METHODS[name]


def build_method(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Make a method from its name and options, which may be given as text, as on the command line.

    Args:
        name: A method's name, or several joined by ``+``.
        options: By name. Of several methods ``{"ad-drop.p": 0.3}``, or ``{"ad-drop": {"p": 0.3}}``.

    Raises:
        AttendropError: Unknown name or option (the nearest is given), a value that is not of the option's type or out
            of its range, or methods that cannot be combined.
    """
    if "+" not in name:
        return _build(name, options or {})
    names = [part.strip() for part in name.split("+")]
    sorted_out: dict[str, dict[str, Any]] = {get_method(part).name: {} for part in names}
    for option, value in (options or {}).items():
        method, dot, own = option.partition(".")
        method = method.replace("_", "-")
        if method not in sorted_out or (not dot and not isinstance(value, Mapping)):
            raise AttendropError(
                f"Option '{option}' is of none of the methods {name}; write METHOD.OPTION=VALUE, such as "
                f"{names[0]}.{option.rpartition('.')[2]}."
            )
        sorted_out[method] |= {own: value} if dot else value
    return Compose(*(_build(part, sorted_out[part]) for part in names))


def flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options on one level, those of several as ``METHOD.OPTION``."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= (
            {f"{name}.{own}": inner for own, inner in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return found


def _build(name: str, options: Mapping[str, Any]) -> Method:
    method = get_method(name)
    fields = {field.name: field for field in dataclasses.fields(method)}
    values = {}
    for option, value in options.items():
        option = option.replace("-", "_")
        if not fields:
            raise AttendropError(f"Method '{name}' has no options, so '{option}' cannot be set.")
        if option not in fields:
            raise AttendropError(f"Method '{name}' has no option '{option}'.{suggestion(option, tuple(fields))}")
        values[option] = _read(option, value, fields[option].default)
    return method(**values)


_SWITCHES = dict.fromkeys(("true", "on", "yes", "1"), True) | dict.fromkeys(("false", "off", "no", "0"), False)


def _read(option: str, value: object, default: object) -> object:
    """Read an option, text or a value from JSON, as the type of its default."""
    if isinstance(default, bool):
        if str(value).lower() not in _SWITCHES:
            raise AttendropError(f"{option}={value!r} must be true or false.")
        return _SWITCHES[str(value).lower()]
    if isinstance(default, int | float):
        kind, noun = (int, "a whole number") if isinstance(default, int) else (float, "a number")
        if isinstance(value, bool) or not isinstance(value, str | int | kind):
            raise AttendropError(f"{option}={value!r} is not {noun}.")
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            raise AttendropError(f"{option}={value!r} is not {noun}.") from None
    return value
