"""Make a picture of a page in a headless Chromium: `python tools/make_screenshot.py PAGE PICTURE.png`.

Needs `pip install 'attendrop[browser]'` and a Chromium. `--width`, `--height` and `--dark` choose the window.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    """Open the page and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--height", type=int, default=1300)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    # That of the system, or playwright's own.
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with (
        sync_playwright() as driver,
        driver.chromium.launch(executable_path=program, args=["--no-sandbox"]) as browser,
    ):
        window = {"width": given.width, "height": given.height}
        page = browser.new_page(viewport=window, color_scheme="dark" if given.dark else "light")
        page.goto(given.page.resolve().as_uri())
        page.screenshot(path=given.picture)


if __name__ == "__main__":
    main()
