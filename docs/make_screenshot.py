"""Make a picture of a page in a headless Chromium: `python docs/make_screenshot.py PAGE PICTURE.png`.

Needs `pip install attendrop[browser]` and a Chromium. `--width`, `--height` and `--dark` choose the window.
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
    program = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if program is None:
        parser.error("there is no Chromium; install one")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        window = {"width": given.width, "height": given.height}
        page = browser.new_page(viewport=window, color_scheme="dark" if given.dark else "light")
        page.goto(given.page.resolve().as_uri())
        page.screenshot(path=given.picture)
        browser.close()


if __name__ == "__main__":
    main()
