"""The attention viewer: its figure, as Vega draws it, and its page."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vl_convert
from helpers import tiny

from attendrop import ADDrop
from attendrop.reports.attention_viewer import (
    Drops,
    LayerMaps,
    ShownText,
    Stage,
    Stages,
    TextMaps,
    attention_page,
    viewer_spec,
)
from attendrop.tasks.types.classification import Classification

TAKEN = "<script>document.title='taken'</script><img src=http://example.org/x.png>"
FEW = ("cat", "sees", "cat")


def maps(words: tuple[str, ...], *, shift: float = 0.0, causal: bool = False) -> TextMaps:
    """Maps whose numbers tell where they are: attention (layer + 1)(head + 1) / 10, and so on."""
    count = len(words)
    possible = np.tri(count, dtype=bool) if causal else np.ones((count, count), dtype=bool)
    layers = {}
    for layer in range(3):
        attention, attribution = np.zeros((2, 2, count, count), dtype=np.float32)
        dropped = np.zeros(attention.shape, dtype=bool)
        for head in range(2):
            attention[head] = np.where(possible, ((layer + 1) * (head + 1) + shift) / 10, 0)
            attribution[head] = -0.5 if layer else 0.5
            attribution[head, 0, 0] = 1.0
            dropped[head, count - 1, layer] = True
        layers[f"encoder.{layer}"] = LayerMaps(attention, attribution, possible, dropped)
    return TextMaps(words, {"label": TAKEN, "probability": 0.9}, layers)


def shown(*texts: tuple[str, ...]) -> tuple[Stages, list[ShownText]]:
    drops, names = Drops(ADDrop(p=0.5)), ("Before training", "After training")
    stages = tuple(Stage(name, TAKEN, None, drops) for name in names)  # type: ignore[arg-type]
    every = Stages(stages, None, Classification(("no", "yes")), 1, 64, method=drops.method)  # type: ignore[arg-type]
    found = [ShownText(" ".join(words), (maps(words), maps(words, shift=0.5, causal=True))) for words in texts]
    return every, found


def cells(spec: dict[str, Any], **chosen: Any) -> list[str]:
    """What the cells of the maps tell in an SVG of the viewer, with other values of its parameters."""
    params = [each | ({"value": chosen[each["name"]]} if each["name"] in chosen else {}) for each in spec["params"]]
    svg = vl_convert.vegalite_to_svg(json.dumps(spec | {"params": params}))
    return [text for text in re.findall(r'aria-label="([^"]*)"', svg) if "from: " in text]


def test_the_map_of_the_chosen_head_text_and_values_is_drawn_in_both_models() -> None:
    spec = viewer_spec(*shown(FEW, tuple(tiny.WORDS[i % len(tiny.WORDS)] for i in range(20))))
    first = cells(spec)
    rects = [text for text in first if "shape" not in text and "size: " in text]
    assert len(rects) == 9 + 6  # the mask of the second model hides three
    assert "from: 1 cat; to: 2 sees; attention: 0.100; attribution, of the largest: +0.50; dropped: no" in rects[1]
    assert "sign: attention weight" in rects[1] and "attention: 0.150" in rects[-1]
    assert len(first) - len(rects) == 2  # crosses
    assert len(cells(spec, crosses=False)) == len(rects)
    other = cells(spec, chosen=[{"layer": "encoder.2", "head": 1}], shows="attribution")
    assert "attention: 0.600; attribution, of the largest: −0.50" in other[1]
    assert "sign: lowers the score" in other[1] and "sign: raises the score" in other[0]
    assert len(cells(spec, text=1, crosses=False)) == 400 + 210
    heads = [each for each in spec["datasets"]["heads"] if each["text"] == 1]
    assert {len(each["a"]) for each in heads} == {49}  # 20 tokens in blocks of three


def test_a_page_holds_hostile_texts_and_nothing_from_elsewhere() -> None:
    page = attention_page(TAKEN, *shown((TAKEN, "cat", "sees"), FEW))
    own = re.findall(r"(?s)<script>.*?</script>", page)
    assert len(own) == 2 and "<img" not in page.replace(own[0], "")  # the library, and the lines that call it
    assert '<th scope="row">2. cat sees cat</th>' in page and "Positions that" in page


@pytest.mark.slow
def test_a_browser_draws_it_and_asks_for_nothing(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'attendrop[browser]'")
    file, seen = tmp_path / "page.html", []
    file.write_text(attention_page(TAKEN, *shown((TAKEN, "cat", "sees"), FEW)), encoding="utf-8")
    with playwright.sync_playwright() as driver:
        program = shutil.which("chromium") or driver.chromium.executable_path
        if not Path(program).exists():
            pytest.skip("needs a Chromium: apt install chromium, or playwright install chromium")
        # Chromium's own sandbox needs rights that containers do not give.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(offline=True)
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: seen.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector(".vega-bindings")
        before = page.locator("canvas").first.evaluate("canvas => canvas.toDataURL()")
        page.locator(".vega-bindings select").nth(0).select_option(index=1)
        page.wait_for_timeout(500)
        assert page.locator("canvas").first.evaluate("canvas => canvas.toDataURL()") != before
        assert page.title() == f"Attention of {TAKEN}"
        assert [each for each in seen if not each.startswith((file.as_uri(), "data:", "blob:"))] == []
        browser.close()
