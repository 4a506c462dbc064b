"""Writing files such that none is found in part."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file such that a reader finds all of it or what was there before."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file in the same way."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(content, encoding="utf-8")
    os.replace(partial, path)


def share_permissions(folder: Path) -> None:
    """Give every file below a folder what the umask allows to a new one; safetensors' are for their owner alone."""
    (folder / ".probe").touch()
    mode = (folder / ".probe").stat().st_mode
    (folder / ".probe").unlink()
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)
