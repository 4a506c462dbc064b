"""Options of a method: ``--set``, and JSON files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError


def read_options(file: str, method: str) -> dict[str, Any]:
    """Read a JSON file of options: ``{"p": 0.3}``, or ``{"method": ..., "options": {...}}`` as `patterns --fit` writes.

    Raises:
        AttendropError: There is no such file, it does not have this form, or its options are for another method.
    """
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AttendropError(f"There is no options file '{file}'; name a JSON file of the method's options.") from None
    except IsADirectoryError:
        raise AttendropError(f"The options file '{file}' is a folder; name a JSON file.") from None
    except ValueError as error:
        raise AttendropError(f"The options file '{file}' is not valid JSON ({error}); correct it.") from None
    if isinstance(found, dict) and found.keys() == {"method", "options"}:
        if found["method"] != method:
            raise AttendropError(
                f"The options file '{file}' is for method {found['method']!r}; add --method {found['method']}, or name "
                "another file."
            )
        found = found["options"]
    if not isinstance(found, dict):
        raise AttendropError(f"The options file '{file}' must hold an object such as {{\"p\": 0.3}}.")
    return {name.replace("-", "_"): value for name, value in found.items()}


def read_settings(pairs: Sequence[str], option: str = "--set", example: str = "p=0.3") -> dict[str, str]:
    """Read the values of ``--set`` or of a similar option, ``NAME=VALUE``.

    Raises:
        AttendropError: One is not of this form, or a name is given twice.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value):
            raise AttendropError(f"{option} {pair!r} is not of the form NAME=VALUE; write, for example, {example}.")
        if name in settings:
            raise AttendropError(f"{option} gives {name} twice; give it once.")
        settings[name] = value
    return settings
