"""Pages are one file: all values are escaped, and the browser may load nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

from markupsafe import Markup

from attendrop.reports.page import Section, render_page, script_json

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028\u2029"


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes, and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs).get("id"), ""))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script" and self.cdata_elem == "script":
            name, text = self.scripts[-1]
            self.scripts[-1] = (name, text + data)


def test_values_are_escaped_wherever_they_stand() -> None:
    section = Section("first", HOSTILE, Markup("<p>{}</p>").format(HOSTILE))
    page = render_page(
        HOSTILE, [section, Section("second", "Second", Markup(""), {"d": {"title": HOSTILE}})], summary=HOSTILE
    )
    elements = Elements(page)
    assert not [tag for tag, _ in elements.found if tag == "img"]
    assert [name for name, _ in elements.scripts] == ["d", None, None]
    assert json.loads(elements.scripts[0][1]) == {"title": HOSTILE}
    assert "vegaEmbed(place, spec, {ast: true" in elements.scripts[2][1]
    expected = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for _, text in elements.scripts[1:]]
    assert re.findall(r"'sha256-([^']*)'", page) == expected  # no other script may run


def test_json_holds_no_markup_and_gives_the_values_back() -> None:
    text = script_json({HOSTILE: [1.5, None, True, HOSTILE], "a": (math.nan, [math.inf, 1.0])})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {HOSTILE: [1.5, None, True, HOSTILE], "a": [None, [None, 1.0]]}


def test_nothing_is_loaded_from_elsewhere() -> None:
    elements = Elements(render_page("Page", [Section("only", "Only", Markup("<p>text</p>"))]))
    assert not elements.scripts
    for tag, attributes in elements.found:
        places = [attributes.get(name) or "" for name in ("src", "href", "action", "data")]
        assert all(place == "" or place.startswith(("#", "data:")) for place in places), tag
    policy = next(each for tag, each in elements.found if "http-equiv" in each)["content"] or ""
    assert policy.startswith("default-src 'none'") and policy.endswith("script-src 'none'")
