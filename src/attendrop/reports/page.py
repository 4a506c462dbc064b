"""Self-contained HTML pages: styles, figures and the library that draws them in one file, which needs no network.

Every value that is put into a template of ``templates/`` is escaped. The page forbids the browser to load anything,
and to run scripts other than its own two (Content-Security-Policy): Vega, which draws the figures, and the lines that
call it. Vega interprets its expressions (``ast``), so that no text can become code.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attendrop.support.files import finite

# Maximum size of an HTML page, in bytes; Vega has 0.9 million of them.
MOST_BYTES = 6_000_000
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# JSON within a script element: no end of the element, and no line separators, which scripts once took for line ends.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_DRAW = """
(async () => {
  const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : undefined;
  const actions = {export: true, source: false, compiled: false, editor: false};
  for (const place of document.querySelectorAll("[data-chart]")) {
    const spec = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    const renderer = place.dataset.renderer || "svg";
    await vegaEmbed(place, spec, {ast: true, theme, renderer, actions, config: {background: "transparent"}});
  }
})();
"""


@dataclass(frozen=True)
class Section:
    """Section of a page: its id, for links, its heading, its HTML, from :func:`render`, and its figures in Vega-Lite.

    An element with ``data-chart="ID"`` shows the figure of this id.
    """

    identifier: str
    heading: str
    content: Markup
    charts: Mapping[str, Any] = field(default_factory=dict)


def render(macro: str, **values: Any) -> Markup:
    """Fill a macro of ``templates/sections.html``; values are escaped, unless they are ``Markup``."""
    return Markup(getattr(_ENVIRONMENT.get_template("sections.html").module, macro)(**values))


def render_page(title: str, sections: Sequence[Section], *, summary: str = "") -> str:
    """Make the HTML of a page of sections, with a title and a sentence below it."""
    charts = {name: script_json(chart) for section in sections for name, chart in section.charts.items()}
    scripts: list[str] = []
    if charts:
        from vl_convert import javascript_bundle

        scripts = [javascript_bundle(), _DRAW]  # type: ignore[call-arg]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    scripts, told = [Markup(script) for script in scripts], {"title": title, "summary": summary}
    template = _ENVIRONMENT.get_template("page.html")
    page = template.render(sections=sections, charts=charts, scripts=scripts, hashes=hashes, **told)
    # Half of a character, as JSON may hold, has no encoding.
    return page.encode("utf-8", "replace").decode()


def script_json(value: Any) -> Markup:
    """Write a value as JSON that may stand in a ``<script>`` element; NaN and infinite numbers become null."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPES))
