"""The attention viewer in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny
from helpers.browser import OpenPage, chromium, open_page

from attendrop import ADDrop
from attendrop.reports.attention_drops import DropMoment
from attendrop.reports.attention_maps import DropSettings, LayerMaps, TextMaps
from attendrop.reports.attention_stages import Stage, Stages
from attendrop.reports.attention_viewer import ShownText, attention_page
from attendrop.tasks.heads.classification import Classification

pytestmark = pytest.mark.slow
HOSTILE = "<script>document.title='taken'</script><img src=http://example.org/x.png>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def maps(words: tuple[str, ...], *, shift: float = 0.0, causal: bool = False) -> TextMaps:
    """Maps whose numbers tell where they are: attention (layer + 1)(head + 1) / 100, and so on."""
    count = len(words)
    possible = np.tri(count, dtype=bool) if causal else np.ones((count, count), dtype=bool)
    layers = {}
    for layer in range(3):
        attention = np.zeros((2, count, count), dtype=np.float32)
        attribution = np.zeros_like(attention)
        dropped = np.zeros(attention.shape, dtype=bool)
        for head in range(2):
            attention[head] = np.where(possible, ((layer + 1) * (head + 1) + shift) / 10, 0)
            attribution[head] = -0.5 if layer else 0.5
            dropped[head, count - 1, layer] = True
        layers[f"encoder.{layer}"] = LayerMaps(attention, attribution, possible, dropped)
    return TextMaps(words, {"label": HOSTILE, "probability": 0.9}, layers)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two texts, one of them long and one hostile, before and after training."""
    long = tuple(tiny.WORDS[i % len(tiny.WORDS)] for i in range(60))
    texts = [(HOSTILE, "cat", "sees"), long]
    drops, names = DropSettings(ADDrop(p=0.5), DropMoment()), ("Before training", "After training")
    stages = tuple(Stage(name, HOSTILE, None, drops) for name in names)  # type: ignore[arg-type]
    every = Stages(stages, None, Classification(("no", "yes")), 1, 64)  # type: ignore[arg-type]
    shown = [ShownText(" ".join(words), (maps(words), maps(words, shift=0.5, causal=True))) for words in texts]
    page = tmp_path_factory.mktemp("viewer") / "page.html"
    page.write_text(attention_page(HOSTILE, every, shown), encoding="utf-8")
    return page


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[OpenPage]:
    with open_page(browser, file) as found:
        yield found
        found.check()


def readouts(opened: OpenPage) -> list[str]:
    return [str(text) for text in opened.page.locator(".readout").all_inner_texts()]


def chosen(opened: OpenPage) -> tuple[str, str]:
    layer = opened.page.locator("[data-role=layer] option:checked").inner_text()
    return layer, opened.page.locator("[data-role=head] option:checked").inner_text()


def pixels(opened: OpenPage, which: int = 0) -> str:
    return str(opened.page.locator("canvas.map").nth(which).evaluate("canvas => canvas.toDataURL()"))


def test_it_tells_the_numbers_of_the_chosen_position(opened: OpenPage) -> None:
    before, after = readouts(opened)
    assert before.startswith(f"{HOSTILE} → {HOSTILE} (layer encoder.0, head 0): attention 0.1")
    assert "attribution 0.500." in before
    assert "attention 0.15" in after
    assert "In this head 1 of 9 positions are dropped (11 %)." in before
    assert "1 of 6 positions" in after
    assert opened.page.title() == f"Attention of {HOSTILE}"
    assert f"Prediction: label {HOSTILE}, probability 0.9" in opened.page.locator(".panel").first.inner_text()


def test_arrow_keys_change_layer_and_head_and_stop_at_the_ends(opened: OpenPage) -> None:
    press = opened.page.keyboard.press
    opened.page.focus("canvas.map")
    press("ArrowDown")
    press("ArrowRight")
    assert chosen(opened) == ("encoder.1", "1")
    assert "(layer encoder.1, head 1): attention 0.399" in readouts(opened)[0]
    assert "attribution -0.500" in readouts(opened)[0]
    for _ in range(4):
        press("ArrowDown")
        press("ArrowRight")
    assert chosen(opened) == ("encoder.2", "1")
    for _ in range(4):
        press("ArrowUp")
        press("ArrowLeft")
    assert chosen(opened) == ("encoder.0", "0")


def test_shift_and_arrow_keys_move_the_chosen_position(opened: OpenPage) -> None:
    opened.page.focus("canvas.map")
    opened.page.keyboard.press("Shift+ArrowDown")
    opened.page.keyboard.press("Shift+ArrowRight")
    opened.page.keyboard.press("Shift+ArrowRight")
    assert readouts(opened)[0].startswith("cat → sees")
    assert "hidden by the model's mask" in readouts(opened)[1]
    opened.page.keyboard.press("Shift+ArrowDown")
    opened.page.keyboard.press("Shift+ArrowLeft")
    opened.page.keyboard.press("Shift+ArrowLeft")
    assert ", dropped." in readouts(opened)[0]


def test_choices_change_what_is_drawn(opened: OpenPage) -> None:
    attention = pixels(opened)
    opened.page.click("text=Attribution")
    attribution = pixels(opened)
    assert opened.page.get_attribute("text=Attribution", "aria-pressed") == "true"
    opened.page.uncheck("[data-role=crosses]")
    without = pixels(opened)
    opened.page.select_option("[data-role=layer]", "1")
    assert len({attention, attribution, without, pixels(opened)}) == 4
    assert "layer encoder.1" in str(opened.page.locator("canvas.map").first.get_attribute("aria-label"))


def test_a_click_chooses_a_position_or_a_head(opened: OpenPage) -> None:
    size = opened.page.locator("canvas.map").first.bounding_box()
    opened.page.locator("canvas.map").first.click(position={"x": size["width"] - 5, "y": size["height"] - 5})
    assert readouts(opened)[0].startswith("sees → sees")
    overview = opened.page.locator("canvas.overview").first
    size = overview.bounding_box()
    overview.click(position={"x": size["width"] - 5, "y": size["height"] - 5})
    assert chosen(opened) == ("encoder.2", "1")


def test_the_row_is_also_a_table(opened: OpenPage) -> None:
    opened.page.click("text=The chosen row as a table")
    opened.page.select_option("[data-role=query]", "2")
    table = opened.page.locator("[data-role=table]")
    assert table.locator("caption").inner_text() == "Layer encoder.0, head 0: from “sees” to each token"
    assert table.locator("thead th").all_inner_texts() == [
        "", "Before training", "After training",
        "token", "attention", "attribution", "dropped", "attention", "attribution", "dropped",
    ]  # fmt: skip
    first = table.locator("tbody tr").first.locator("th, td").all_inner_texts()
    assert first[0] == HOSTILE
    assert first[3] == "dropped"
    assert table.locator("tbody tr").nth(1).locator("td").nth(2).inner_text() == ""


@pytest.mark.parametrize(("width", "dark"), [(360, False), (1280, True)])
def test_it_fits_into_the_window_in_both_colour_schemes(browser: Any, file: Path, width: int, dark: bool) -> None:
    with open_page(browser, file, width=width, height=740, dark=dark, touch=width < 600) as opened:
        opened.page.select_option("[data-role=text]", "1")
        assert readouts(opened)[0].startswith("the → the")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        tops = [box["y"] for box in (opened.page.locator("canvas.map").nth(i).bounding_box() for i in range(2))]
        assert (tops[0] == tops[1]) is (width > 600)
        corner = opened.page.locator("canvas.map").first.evaluate(
            "canvas => [...canvas.getContext('2d').getImageData(canvas.width - 4, canvas.height - 4, 1, 1).data]"
        )
        assert (sum(corner[:3]) < 380) is dark
        if width < 600:
            canvas = opened.page.locator("canvas.map").first
            canvas.tap(position={"x": 100, "y": 100})
            assert not readouts(opened)[0].startswith("the → the")
        opened.check()
