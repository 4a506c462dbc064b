"""Reading of YAML files, in which no key is given twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from attendrop.errors import AttendropError


def read_yaml(path: str | Path, what: str) -> Any:
    """Read a YAML file.

    Args:
        path: The file.
        what: What it is, for messages, such as "study file".

    Raises:
        AttendropError: The file is missing or is not YAML, or a key is given twice.
    """
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise AttendropError(f"There is no {what} '{path}'.") from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise AttendropError(f"The {what} '{path}' cannot be read{line}: {error.problem}.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AttendropError(f"The {what} '{path}' cannot be read ({str(error).splitlines()[0]}).") from None


def _construct_mapping(loader: Any, node: Any, deep: bool = False) -> Any:
    known = set()
    for key, _ in node.value:
        name = (key.tag, str(key.value).replace("-", "_"))  # options may be written with either
        if name in known:
            problem = f"the key {key.value!r} is given twice; delete one"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
        known.add(name)
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_Loader: Any = type("_Loader", (yaml.SafeLoader,), {"construct_mapping": _construct_mapping})
