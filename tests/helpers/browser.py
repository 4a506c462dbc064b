"""Pages in a headless Chromium: what they log and what they ask for is collected."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Chromium's own sandbox needs rights that containers do not give.
_OPTIONS = ["--no-sandbox", "--force-color-profile=srgb"]


@dataclass(frozen=True)
class OpenPage:
    """A page in the browser.

    Attributes:
        page: Playwright's page.
        errors: Errors and warnings of the console, and exceptions of scripts.
        requests: Addresses that were asked for beyond the file itself.
    """

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Assert that nothing went wrong, and nothing was asked for."""
        assert self.errors == []
        assert self.requests == []


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the Chromium that is installed, or playwright's own; skip the test without one, or without playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'attendrop[browser]'")
    with playwright.sync_playwright() as driver:
        program = next(filter(None, map(shutil.which, PROGRAMS)), driver.chromium.executable_path)
        if not Path(program).exists():
            pytest.skip("needs a Chromium: apt install chromium, or playwright install chromium")
        browser = driver.chromium.launch(executable_path=program, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(
    browser: Any, file: Path, *, width: int = 1200, height: int = 900, dark: bool = False, touch: bool = False
) -> Iterator[OpenPage]:
    """Open a file without network.

    Args:
        browser: From :func:`chromium`.
        file: The page.
        width: Width of the window in CSS pixels; 360 is a phone's.
        height: Its height.
        dark: Whether the browser prefers dark colours.
        touch: Whether it has a touch screen.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        has_touch=touch,
        offline=True,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.set_default_timeout(20_000)
    found = OpenPage(page)
    page.on("console", lambda message: _note(found.errors, message.text, message.type in ("error", "warning")))
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    address = file.resolve().as_uri()
    inside = ("data:", "blob:", address)
    page.on("request", lambda request: _note(found.requests, request.url, not request.url.startswith(inside)))
    try:
        page.goto(address)
        yield found
    finally:
        context.close()


def _note(notes: list[str], text: str, wanted: bool) -> None:
    if wanted:
        notes.append(text)
