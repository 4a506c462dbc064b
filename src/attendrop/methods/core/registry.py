"""Registry of methods by name.

Third-party packages register methods with :func:`register_method`, or with an entry point in the group
``attendrop.methods`` that refers to the class.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from attendrop.errors import AttendropError, suggestion
from attendrop.methods import builtin
from attendrop.methods.core.base import Compose, Method, MethodInfo
from attendrop.methods.core.options import read_option

logger = logging.getLogger(__name__)
_METHODS: dict[str, type[Method]] = {}
# Those of them that come neither from the library nor from an entry point.
_OF_PROGRAM: set[str] = set()


def register_method(method: type[Method]) -> type[Method]:
    """Register a method under its ``name``; usable as a class decorator.

    Raises:
        AttendropError: It is not a :class:`Method` subclass, or lacks its ``info``; the name has characters other than
            letters, digits, ``-`` and ``_`` (which are equivalent); or the name is taken, except by an earlier
            definition of the same class, as when a notebook cell runs again.
    """
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise AttendropError(f"{method!r} is not a method; derive the class from attendrop.extend.Method.")
    info = getattr(method, "info", None)
    if not isinstance(info, MethodInfo):
        raise AttendropError(f"{method.__name__} has no info; set this class attribute to a MethodInfo.")
    if not re.fullmatch(r"[\w-]+", info.name):
        raise AttendropError(f"A method cannot be named {info.name!r}; use letters, digits, '-' and '_'.")
    taken = next((known for known in _METHODS.values() if known.source == method.source), method)
    if (taken.__module__, taken.__qualname__) != (method.__module__, method.__qualname__):
        raise AttendropError(f"A method named '{taken.info.name}' is registered already: {taken.__name__}.")
    _METHODS[info.name] = method
    _OF_PROGRAM.add(info.name)
    return method


for _method in vars(builtin).values():
    if isinstance(_method, type):
        register_method(_method)
_OF_PROGRAM.clear()


@cache
def _load_plugins() -> None:
    for entry_point in entry_points(group="attendrop.methods"):
        try:
            _OF_PROGRAM.discard(register_method(entry_point.load()).info.name)
        except (Exception, SystemExit) as error:  # a failing import of one package does not affect the others
            logger.warning(
                "Method '%s' of a third-party package is skipped (entry point %s): %s: %s",
                entry_point.name, entry_point.value, type(error).__name__, error,
            )  # fmt: skip


def method_names() -> list[str]:
    """Return the names of all methods, the baseline first."""
    _load_plugins()
    return list(_METHODS)


def is_of_this_program(name: str) -> bool:
    """Return whether a method, or one joined by ``+``, was registered in this program only."""
    _load_plugins()
    return any(each.strip() in _OF_PROGRAM for each in name.split("+"))


def own_code_sha256(method: Method) -> str:
    """Hash the code of what of a method is not the project's: SHA-256, in hexadecimal; empty if nothing is.

    That is the file of each class, but of one in a program or notebook, which also have other parts, its functions.
    """
    code = ""
    for kind in dict.fromkeys(kind for part in method.parts for kind in type(part).__mro__):
        if not issubclass(kind, Method) or kind.__module__.partition(".")[0] in ("attendrop", "attendrop_methods"):
            continue
        of_program = kind.__module__ == "__main__"
        for each in filter(inspect.isfunction, vars(kind).values()) if of_program else [kind]:
            with suppress(OSError, TypeError):  # generated, or typed into an interpreter
                code += inspect.getsource(each) if of_program else "".join(inspect.findsource(each)[0])
    return hashlib.sha256(code.encode()).hexdigest() if code else ""


def get_method(name: str) -> type[Method]:
    """Return the class of a method; raises AttendropError, which suggests the nearest name, if there is none."""
    names = tuple(method_names())
    if name not in names:
        raise AttendropError(f"There is no method '{name}'.{suggestion(name, names)}")
    return _METHODS[name]


def build_method(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Create a method from its name and options. Option values may be text, as on the command line.

    Args:
        name: Name of a method, or several names joined by ``+``.
        options: Options by name. For several methods, ``{"ad-drop.p": 0.3}`` or ``{"ad-drop": {"p": 0.3}}``. In names
            of methods and options, ``-`` and ``_`` are equivalent.

    Raises:
        AttendropError: A name or option is unknown, a value is out of its range, or methods cannot be combined.
    """
    names = [part.strip() for part in name.split("+")]
    classes = [get_method(part) for part in names]
    parts: list[Method] = []
    by_method = _by_method(name, names, options or {})
    for kind, part in zip(classes, names, strict=True):
        known, given = tuple(field.name for field in dataclasses.fields(kind)), by_method[part]
        for option in given:
            if not known:
                raise AttendropError(f"Method '{part}' has no options, but '{option}' is set; remove it.")
            if option not in known:
                raise AttendropError(f"Method '{part}' has no option '{option}'.{suggestion(option, known)}")
        parts.append(kind(**{option: read_option(kind, option, value) for option, value in given.items()}))
    return parts[0] if len(parts) == 1 else Compose(*parts)


def _by_method(name: str, methods: Sequence[str], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Divide options, spelled with ``_``, among the methods of a composition ``name``; a single one has all."""
    found: dict[str, dict[str, Any]] = {method: {} for method in methods}
    spelled = {method.replace("-", "_"): method for method in methods}
    for option, value in given.items():
        owner, dot, own = option.partition(".")
        if len(methods) == 1:
            owner, dot, own = methods[0], ".", option
        method = spelled.get(owner.replace("-", "_"), "")
        if not method or (not dot and not isinstance(value, Mapping)):
            raise AttendropError(
                f"Option '{option}' belongs to none of the methods {name}; write METHOD.OPTION=VALUE, such as "
                f"{methods[0]}.{option.rpartition('.')[2]}."
            )
        found[method] |= {each.replace("-", "_"): inner for each, inner in ({own: value} if dot else value).items()}
    return found


def given_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that must be passed to a method, without defaults and what follows from other options.

    Takes the names and options of :func:`build_method`, which raises AttendropError for others.
    """
    options = flat_options(build_method(name, options).options())
    given = options  # a default among them may be needed: defaults can depend on other options
    for option in reversed(tuple(options)):
        fewer = {other: value for other, value in given.items() if other != option}
        try:
            follows = flat_options(build_method(name, fewer).options()) == options
        except AttendropError:
            continue
        if follows:
            given = fewer
    return given


def spelled_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names that :func:`flat_options` has for them; names are those of :func:`build_method`."""
    methods = name.split("+")
    spelled = _by_method(name, methods, given)
    return flat_options(spelled) if len(methods) > 1 else spelled[name]


def labelled_method(name: str, options: Mapping[str, Any]) -> str:
    """Name a method with the options that it was given, such as "METHOD p=0.9"; with all, if it is not known here."""
    try:
        given = given_options(name, options)
    except AttendropError:  # of a package that is not installed
        given = flat_options(options)
    return " ".join(
        [name, *(f"{key}={f'{value:g}' if isinstance(value, float) else value}" for key, value in given.items())]
    )


def decided_by_data(name: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """Name what a method became by :meth:`Method.for_data`; None where that is what it is without many classes."""
    try:
        usual = build_method(name, given).for_data(classes=1, rows=0)
        found = build_method(name, options)  # also of a run that has not all of them, since its version was older
    except AttendropError:  # of a package that is not installed
        return None
    return None if usual.options() == found.options() else labelled_method(name, options)


def check_method(value: Any) -> Method:
    """Return a method; raise AttendropError for anything else, such as the name or the class of one."""
    if isinstance(value, Method):
        if not isinstance(getattr(value, "info", None), MethodInfo):
            raise AttendropError(f"{type(value).__name__} has no info; set this class attribute to a MethodInfo.")
        return value
    known = value if isinstance(value, type) and issubclass(value, Method) else _METHODS.get(str(value))
    example = "ADDrop(p=0.3)" if known is None else f"{known.__name__}()"
    raise AttendropError(f"A method is an object, such as {example}, and not {value!r}.")


def flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the options of a method; those of several methods become ``METHOD.OPTION``."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{own}": inner for own, inner in value.items()}
        else:
            found[name] = value
    return found
