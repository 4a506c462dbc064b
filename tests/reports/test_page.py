"""Pages are one file: all values are escaped, and the browser may load nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest
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
        HOSTILE, [section, Section("second", "Second", Markup(""), data={"d": HOSTILE})], summary=HOSTILE
    )
    elements = Elements(page)
    assert not [tag for tag, _ in elements.found if tag == "img"]
    assert [name for name, _ in elements.scripts] == ["d"]
    assert json.loads(elements.scripts[0][1]) == HOSTILE


def test_json_holds_no_markup_and_gives_the_values_back() -> None:
    text = script_json({HOSTILE: [1.5, None, True, HOSTILE], "a": (math.nan, [math.inf, 1.0])})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {HOSTILE: [1.5, None, True, HOSTILE], "a": [None, [None, 1.0]]}


def test_nothing_is_loaded_from_elsewhere() -> None:
    elements = Elements(render_page("Page", [Section("only", "Only", Markup("<p>text</p>"))]))
    for tag, attributes in elements.found:
        places = [attributes.get(name) or "" for name in ("src", "href", "action", "data")]
        assert all(place == "" or place.startswith(("#", "data:")) for place in places), tag
    policy = next(each for tag, each in elements.found if "http-equiv" in each)["content"] or ""
    assert policy.startswith("default-src 'none'")


def test_only_the_scripts_of_the_page_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import attendrop.reports.page as html_page

    source = html_page._source
    script = Markup("let one = 1 < 2 && '\"';\n")
    monkeypatch.setattr(html_page, "_source", lambda name: script if name == "own.js" else source(name))
    sections = [Section(name, "Heading", Markup(""), scripts=("own.js",)) for name in ("first", "second")]
    page = render_page("Page", sections, scripts=["own.js"])
    assert Elements(page).scripts == [(None, str(script))]
    expected = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert re.findall(r"'sha256-([^']*)'", page) == [expected]
