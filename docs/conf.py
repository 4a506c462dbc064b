"""The documentation site, for `make site`: Sphinx with MyST and furo.

So pages stay Markdown that reads well in the repository, too. (Material for MkDocs is maintained until 2027 only, and
mkdocstrings for its successor is young.)
"""

import os
import re
import sys
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = DOCS / "_made"
sys.path.insert(0, str(ROOT / "src"))

project = "attendrop"
author = "The attendrop developers"
release = installed("attendrop")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_made/readme.md"]
suppress_warnings = ["myst.header"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"attendrop {release}"
html_show_sphinx = False

# Files of the repository that the site shows as pages, and the tables of commands' options, which tests keep true.
SHOWN = {
    ROOT / "README.md": DOCS / "index.md",  # which includes it
    ROOT / "benchmarks/RESULTS.md": MADE / "speed.md",
    ROOT / "benchmarks/NOTES.md": MADE / "speed_notes.md",
    ROOT / "recipes/README.md": MADE / "recipes.md",
    ROOT / "CONTRIBUTING.md": MADE / "contributing.md",
    ROOT / "CHANGELOG.md": MADE / "changelog.md",
}
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def rewritten(text: str, before: Path, after: Path) -> str:
    """Rewrite the links of a page that moves: to pages of the site, to pictures, or, to other files, as plain text."""

    def link(found: re.Match[str]) -> str:
        if "://" in found["target"]:
            return found[0]
        target = (before.parent / found["target"]).resolve()
        page = SHOWN.get(target, target)
        if not page.is_relative_to(DOCS):
            return found["text"]
        return f"[{found['text']}]({os.path.relpath(page, after.parent)}{found['anchor'] or ''})"

    return LINK.sub(link, text)


def make_pages(app: Sphinx) -> None:
    """Write the pages that are made: those of the repository's files, and one of all commands."""
    MADE.mkdir(exist_ok=True)
    for file, page in SHOWN.items():
        text = rewritten(file.read_text(encoding="utf-8"), file, page)
        (MADE / "readme.md" if page.name == "index.md" else page).write_text(text, encoding="utf-8")
    lines = ["# Commands", ""]
    for file in sorted((ROOT / "tests/frozen").glob("help-*.txt")):
        name = file.stem.removeprefix("help-")
        shown = file.read_text(encoding="utf-8").removeprefix("exit code 0\n").partition("--- standard error")[0]
        lines += [
            f"## {name if name == 'attendrop' else f'attendrop {name}'}",
            "",
            "```text",
            shown.rstrip(),
            "```",
            "",
        ]
    (MADE / "commands.md").write_text("\n".join(lines), encoding="utf-8")


def rewrite(app: Sphinx, page: str, source: list[str]) -> None:
    """Rewrite the links of a page of ``docs/`` to files beyond it."""
    file = DOCS / f"{page}.md"
    if not file.is_relative_to(MADE):
        source[0] = rewritten(source[0], file, file)


def setup(app: Sphinx) -> None:
    """Register what this file adds."""
    app.connect("builder-inited", make_pages)
    app.connect("source-read", rewrite)
