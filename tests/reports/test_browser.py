"""Pages in a real browser: the bare page, and that the tests' collector of errors and requests collects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import chromium, open_page
from markupsafe import Markup

from attendrop.reports.page import Section, render_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.mark.parametrize("dark", [False, True])
def test_a_hostile_page_is_harmless(browser: Any, tmp_path: Path, dark: bool) -> None:
    hostile = "<script>document.title='taken'</script><img src='http://example.org/x.png'>"
    section = Section("one", hostile, Markup("<p>{}</p>").format(hostile), data={"d": hostile})
    page = render_page(hostile, [section])
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    with open_page(browser, tmp_path / "page.html", dark=dark) as opened:
        assert opened.page.title() == hostile
        assert opened.page.inner_text("p:has-text('document')") == hostile
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is not dark
        opened.check()
