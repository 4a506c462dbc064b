"""Self-contained HTML pages: styles, scripts, pictures and data in one file, which needs no network.

Templates are in ``templates/``. Every value that is put into one is escaped. The page forbids the browser to load
anything, and to run scripts other than those of this package (Content-Security-Policy).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attendrop.support.files import finite

# Maximum size of an HTML page, in bytes.
MOST_BYTES = 6_000_000
_TEMPLATES = Path(__file__).parent / "templates"
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# JSON within a script element: no end of the element, and no line separators, which scripts once took for line ends.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Section:
    """Section of a page.

    Attributes:
        identifier: Its id, for links.
        heading: Its heading, also in the page's navigation.
        content: Its HTML, from :func:`render`.
        styles, scripts: What it needs beside those of the page, see :func:`render_page`.
        data: JSON values by the id of the element that holds them; a script reads one by
            ``JSON.parse(document.getElementById(ID).textContent)``. NaN and infinite numbers become null.
    """

    identifier: str
    heading: str
    content: Markup
    styles: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def render(template: str, **values: Any) -> Markup:
    """Fill a template of ``templates/`` with all its variables; they are escaped, unless they are ``Markup``."""
    return Markup(_ENVIRONMENT.get_template(template).render(values))


def render_page(
    title: str,
    sections: Sequence[Section],
    *,
    summary: str = "",
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
) -> str:
    """Make the HTML of a page of sections, with a title and a sentence below it.

    Styles and scripts are names of files in ``templates/``. The page has ``page.css``, its own, and those of its
    sections, each once; scripts run in this order when the page is complete.
    """
    names = dict.fromkeys([*scripts, *chain.from_iterable(each.scripts for each in sections)])
    content = [_source(name) for name in names]
    style_names = dict.fromkeys(["page.css", *styles, *chain.from_iterable(each.styles for each in sections)])
    page = str(
        render(
            "base.html",
            title=title,
            summary=summary,
            sections=sections,
            styles=[_source(name) for name in style_names],
            scripts=content,
            hashes=[_hash(script) for script in content],
            data={name: script_json(value) for section in sections for name, value in section.data.items()},
        )
    )
    # Half of a character, as JSON may hold, has no encoding.
    return page.encode("utf-8", "replace").decode()


def script_json(value: Any) -> Markup:
    """Write a value as JSON that may stand in a ``<script>`` element; NaN and infinite numbers become null."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPES))


def _source(name: str) -> Markup:
    """Read a style sheet or a script of this package as it is."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


def _hash(script: str) -> str:
    """Hash a script for a Content-Security-Policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
