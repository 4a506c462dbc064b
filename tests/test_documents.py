"""Links and anchors of the documents, and the Python in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attendrop.runs import data as recipe

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs/**/*.md", "recipes/*.md", "benchmarks/*.md", "*.md")
MADE = {"_made", "_build"}
PAGES = sorted(page for pattern in FOLDERS for page in ROOT.glob(pattern) if not MADE & set(page.parts))
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)
NUMBER = re.compile(r"\d[\d.,]*(?:e-\d+)?")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_python_is_valid(page: Path) -> None:
    text, broken = page.read_text(encoding="utf-8"), []
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        compile(block, str(page), "exec")


(SMALL, RATE), (_, RATE_OF_BASE), (_, RATE_OF_LARGE) = recipe.LEARNING_RATES


CONSTANTS = [recipe.EPOCHS, recipe.BATCH_SIZE, recipe.LEAST_STEPS, recipe.MOST_STEPS, recipe.LEAST_EPOCHS]


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("train.md", r"`--max-steps` \| (.*?)\. ", CONSTANTS),
        ("train.md", r"`--batch-size` \| (.*) \|", [recipe.BATCH_SIZE]),
        ("train.md", r"`--learning-rate` \| (.*) \|", [RATE, SMALL, RATE_OF_BASE, RATE_OF_LARGE]),
        ("train.md", r"`--selection-fraction` \| (.*) \|", [0, recipe.SELECTION_FRACTION]),
        ("guides/when_nothing_helps.md", r"steps for small data \((.*) or more\)", [recipe.LEAST_STEPS]),
    ],
)
def test_pages_tell_the_constants_of_the_recipe(page: str, text: str, expected: list[float]) -> None:
    """Those of ``runs/data.py``."""
    (told,) = re.findall(text, (ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert [float(number.strip(".,").replace(",", "")) for number in NUMBER.findall(told)] == expected
