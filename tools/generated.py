"""Pages of the documentation that a program writes."""

import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(pages: Mapping[Path, str]) -> None:
    """Write the pages; with ``--check`` on the command line, only compare them."""
    for file, text in pages.items():
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != text:
            sys.exit(f"docs/{file.name} is not up to date; run `make docs`.")
