"""Make the picture of the attention viewer in docs/attention_viewer.md: train on rows of CoLA, and draw its maps.

Needs `pip install 'attendrop[plots]'` and the GLUE files that ATTENDROP_DATA names. A few minutes.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import vl_convert

from attendrop.cli import main

PICTURE = Path(__file__).parents[1] / "docs" / "attention_viewer.png"
TRAIN = ["--task", "cola", "--max-train-samples", "1000", "--max-steps", "240", "--method", "ad-drop"]
TRAIN += ["--set", "cross_tuning=false", "--seed", "0", "--device", "cpu"]
TEXT = "The books that the boy reads is on the table."
# What a reader of the page would choose.
CHOSEN = {"shows": "attribution", "chosen": [{"layer": "encoder.0", "head": 3}]}


def make(folder: Path) -> None:
    """Train, make the page, and draw its maps."""
    for command in (["train", *TRAIN, "--output-dir", f"{folder}/run"], ["attend", f"{folder}/run", TEXT]):
        if main(command):
            sys.exit(f"`attendrop {command[0]}` failed.")
    page = (folder / "run" / "attention.html").read_text(encoding="utf-8")
    spec = json.loads(re.search(r'id="maps-chart">(.*?)</script>', page, re.DOTALL)[1])
    for param in spec["params"]:
        param["value"] = CHOSEN.get(param["name"], param["value"])
    PICTURE.write_bytes(vl_convert.vegalite_to_png(spec | {"background": "white"}, scale=1.25))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
