"""Make the picture of the attention viewer in docs/attention_viewer.md: train on rows of CoLA, and photograph the page.

Needs `pip install 'attendrop[browser]'`, a Chromium, and the GLUE files that ATTENDROP_DATA names. A few minutes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import chromium

from attendrop.cli import main

PICTURE = Path(__file__).parents[1] / "docs" / "attention_viewer.png"
TRAIN = ["--task", "cola", "--max-train-samples", "1000", "--max-steps", "240", "--method", "ad-drop"]
TRAIN += ["--set", "cross_tuning=false", "--seed", "0", "--device", "cpu"]
TEXT = "The books that the boy reads is on the table."
# Of the menus and buttons above the maps, in their order.
LAYER, HEAD = "encoder.2", "3"


def make(folder: Path) -> None:
    """Train, make the page and write the picture."""
    for command in (["train", *TRAIN, "--output-dir", f"{folder}/run"], ["attend", f"{folder}/run", TEXT]):
        if main(command):
            sys.exit(f"`attendrop {command[0]}` failed.")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto((folder / "run" / "attention.html").resolve().as_uri())
        page.wait_for_selector(".vega-bindings")
        page.check("input[value=attribution]")
        page.select_option("select[name=chosen_layer]", LAYER)
        page.select_option("select[name=chosen_head]", HEAD)
        page.locator("#maps").screenshot(path=PICTURE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
