"""The page of a study in a real browser: it sorts, filters, tells values, and asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import OpenPage, chromium, open_page
from helpers.finished_runs import write_comparison

from attendrop.reports.report import write_report

pytestmark = pytest.mark.slow
HOSTILE = "<img src='http://example.org/x.png' onerror=alert(1)>"
SCORES = {
    "finetune": (0.50, 0.52, 0.51, 0.53),
    "r-drop": (0.60, 0.63, 0.61, 0.62),
    "mixout": (0.40, 0.41, 0.42, 0.43),
    HOSTILE: (0.45, 0.44, 0.46, 0.45),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_comparison(
        tmp_path_factory.mktemp("study"), SCORES, hostile="<img src=x onerror=a>the cat"
    )  # 11 tokens
    return write_report(folder).folder / "report.html"


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[OpenPage]:
    with open_page(browser, page) as found:
        yield found
        found.check()


def first_cells(opened: OpenPage, table: str = "methods-table") -> list[str]:
    return opened.page.locator(f"#{table} tbody tr:visible th").all_inner_texts()


def test_the_answer_is_on_top(opened: OpenPage) -> None:
    words = opened.page.locator("main section").first.inner_text().split()
    assert words[:3] == ["Answer", "Use", "r-drop."]


def test_columns_sort_in_both_directions_by_value_and_by_keyboard(opened: OpenPage) -> None:
    header = opened.page.locator("#methods-table th", has_text="score")
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert [name[:8] for name in first_cells(opened)] == ["r-drop", "finetune", "<img src", "mixout"]
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert [name[:8] for name in first_cells(opened)] == ["mixout", "<img src", "finetune", "r-drop"]


def test_the_filter_hides_rows_and_counts(opened: OpenPage) -> None:
    opened.page.get_by_label("Filter").first.fill("R-DROP")
    assert first_cells(opened) == ["r-drop"]
    assert opened.page.locator("output").first.inner_text() == "1 of 4 rows"
    opened.page.get_by_label("Filter").first.fill("")
    assert len(first_cells(opened)) == 4


def test_values_of_figures_are_told_under_the_pointer_and_by_keys(opened: OpenPage) -> None:
    picture = opened.page.locator(".picture").first
    picture.scroll_into_view_if_needed()
    mark = picture.locator(".mark").nth(1)
    box = mark.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    told = picture.locator(".tip")
    assert told.inner_text() == mark.get_attribute("data-text")
    opened.page.mouse.move(2, 2)
    assert told.is_hidden()
    picture.locator("svg").focus()
    opened.page.keyboard.press("ArrowRight")
    assert told.inner_text() == picture.locator(".mark").first.get_attribute("data-text")
    opened.page.keyboard.press("ArrowLeft")
    assert told.inner_text() == picture.locator(".mark").last.get_attribute("data-text")
    opened.page.keyboard.press("Escape")
    assert told.is_hidden()


def test_the_name_of_a_run_leads_to_its_options(opened: OpenPage) -> None:
    details = opened.page.locator("details.run").nth(5)
    assert details.locator("table").is_hidden()
    opened.page.locator("#runs-table tbody a").nth(5).click()
    details.locator("table").wait_for(state="visible")
    assert "training loss: 1.000 to 0.333" in details.inner_text()
    assert opened.page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_the_attention_of_the_kept_model_is_shown(opened: OpenPage) -> None:
    section = opened.page.locator("#attention")
    texts = section.locator("[data-role=text] option").all_inner_texts()
    hostile = next(number for number, text in enumerate(texts) if text.startswith("<img"))
    section.locator("[data-role=text]").select_option(str(hostile))
    before, after = section.locator(".panel").all()
    for panel in (before, after):
        assert panel.locator("[data-role=prediction]").inner_text().endswith("; in the data: yes")
    drawn = after.locator("canvas.map").evaluate("canvas => canvas.toDataURL()")
    after.locator("canvas.map").focus()
    opened.page.keyboard.press("ArrowDown")
    assert "(layer encoder.1, head 0): attention 0." in after.locator(".readout").inner_text()
    assert after.locator("canvas.map").evaluate("canvas => canvas.toDataURL()") != drawn


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1200, False)])
def test_it_fits_the_window_and_has_contrast(browser: Any, page: Path, width: int, dark: bool) -> None:
    with open_page(browser, page, width=width, dark=dark, touch=width < 500) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        methods = opened.page.locator("#methods .scroll")
        assert methods.evaluate("table => table.scrollWidth <= table.clientWidth")
        for color in ("--text", "--muted", "--accent", *(f"--series-{number}" for number in (1, 2))):
            assert opened.page.evaluate(CONTRAST, color) >= (3 if color.startswith("--series") else 4.5), color
        opened.check()


# Ratio of contrast between a variable's colour and the background, as WCAG 2 defines it.
CONTRAST = """(name) => {
  const style = getComputedStyle(document.documentElement);
  const light = (variable) => {
    const parts = style.getPropertyValue(variable).trim().match(/[0-9a-f]{2}/g).map((hex) => parseInt(hex, 16) / 255);
    const linear = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const [low, high] = [light(name), light("--background")].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""
