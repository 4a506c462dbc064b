"""The attention viewer: its figure, as Vega draws it, and the section of a report."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf
import vl_convert
from datasets import Dataset
from helpers import tiny
from helpers.browser import chromium, open_page
from helpers.command_line import Captured, assert_refused
from helpers.finished_runs import write_comparison, write_runs

from attendrop import ADDrop, cli
from attendrop.errors import AttendropError
from attendrop.reports.attention_drops import DropMoment
from attendrop.reports.attention_maps import DropSettings, LayerMaps, Stage, Stages, TextMaps
from attendrop.reports.attention_viewer import (
    DEFAULT_VIEWER,
    ShownText,
    ViewerOptions,
    attention_page,
    attention_part,
    typical_rows,
    viewer_spec,
)
from attendrop.reports.page import Section
from attendrop.reports.results import read_results
from attendrop.support.files import write_json
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.types.classification import Classification

HOSTILE = "</script><img src=x>the"  # 11 tokens
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
    drops, names = DropSettings(ADDrop(p=0.5), DropMoment()), ("Before training", "After training")
    stages = tuple(Stage(name, TAKEN, None, drops) for name in names)  # type: ignore[arg-type]
    every = Stages(stages, None, Classification(("no", "yes")), 1, 64)  # type: ignore[arg-type]
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
    inputs = {each["name"]: each["bind"] for each in spec["params"]}
    assert inputs["chosen"]["layer"]["options"] == [f"encoder.{layer}" for layer in range(3)]
    assert inputs["text"]["labels"][0] == "1. cat sees cat" and inputs["chosen"]["head"]["options"] == [0, 1]
    heads = [each for each in spec["datasets"]["heads"] if each["text"] == 1]
    assert {len(each["a"]) for each in heads} == {49}  # 20 tokens in blocks of three


def test_a_page_holds_hostile_texts_a_table_of_all_heads_and_nothing_from_elsewhere() -> None:
    page = attention_page(TAKEN, *shown((TAKEN, "cat", "sees"), FEW))
    own = re.findall(r"(?s)<script>.*?</script>", page)
    assert len(own) == 2 and "<img" not in page.replace(own[0], "")  # the library, and the lines that call it
    assert '<th scope="row">1</th><td>After training</td><td>encoder.2</td><td>1</td>' in page
    assert "cat → " in page and "Predictions" in page and "Positions that" in page


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_it_and_asks_for_nothing(tmp_path: Path, dark: bool) -> None:
    file = tmp_path / "page.html"
    file.write_text(attention_page(TAKEN, *shown((TAKEN, "cat", "sees"), FEW)), encoding="utf-8")
    with chromium() as browser, open_page(browser, file, dark=dark) as opened:
        opened.page.wait_for_selector(".vega-bindings")
        before = opened.page.locator("canvas").first.evaluate("canvas => canvas.toDataURL()")
        opened.page.locator(".vega-bindings select").nth(0).select_option(index=1)
        opened.page.wait_for_timeout(500)
        assert opened.page.locator("canvas").first.evaluate("canvas => canvas.toDataURL()") != before
        assert opened.page.title() == f"Attention of {TAKEN}"
        opened.check()


# In a report ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison whose kept model was trained with AD-DROP, with a hostile evaluation row."""
    folder = write_comparison(tmp_path_factory.mktemp("comparison"), {"finetune": (0.5,)}, hostile=HOSTILE)
    for run in (folder / "runs").iterdir():  # without curves: figures take time
        metrics = tiny.read_metrics(run)
        write_json(run / "metrics.json", metrics | {"history": []})
    return folder


def part(folder: Path, viewer: ViewerOptions = DEFAULT_VIEWER, room: int = 10**7) -> tuple[Section, str]:
    return attention_part(read_results(folder), viewer, room)


def data(section: Section) -> Any:
    (found,) = section.charts.values()
    return found["datasets"]


def test_the_kept_model_is_shown_before_and_after_training_on_evaluation_rows(folder: Path, capsys: Captured) -> None:
    assert cli.main(["report", str(folder), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "Attention viewer" not in out
    assert "attention maps of 3 texts" in err
    page = (folder / "report" / "report.html").read_text(encoding="utf-8")
    assert page.index('id="figures"') < page.index('id="attention"') < page.index('id="runs"')
    assert "ad-drop, seed 0, 40 training rows" in page
    assert "3 of the evaluation rows, those whose length is nearest to 16 tokens, of different labels.</p>" in page
    assert "Crossed out is" not in page  # said only where the method is not the run's own
    assert "<img src=x" not in page and HOSTILE not in page
    assert "&lt;/script&gt;&lt;img src=x&gt;the ‖ the cat" in page
    found = json.loads(re.search(r'id="attention-chart">(.*?)</script>', page, re.DOTALL).group(1))["datasets"]
    before, after = ([each for each in found["maps"] if each["stage"] == stage] for stage in (0, 1))
    assert [each["layer"] for each in after[:: len(after) // 6]] == 3 * ["encoder.0", "encoder.1"]
    assert before[0]["a"] != after[0]["a"] and any(each["d"] for each in after)
    assert len(found["texts"]) == 3


def test_rows_are_those_nearest_to_a_length_with_a_share_for_each_label(tmp_path: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path))
    words = [3, 14, 13, 15, 14, 30, 14]  # and two special tokens
    rows = Dataset.from_dict({"text": [" ".join(["cat"] * count) for count in words], "label": [0, 0, 0, 0, 0, 1, 0]})
    task = files_task(("text",), Classification(("no", "yes")))
    assert typical_rows(rows, task, tokenizer, 128) == [1, 4, 5]
    assert typical_rows(rows.select([5]), task, tokenizer, 128) == [0]
    windows_before = rows.select([5, 0, 1, 2, 3, 4, 6])
    assert typical_rows(windows_before, task.with_long_texts("windows"), tokenizer, 20) == [2, 5, 0]


def test_rows_that_were_set_aside_are_found_again_and_were_trained_on(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, {"finetune": (0.5,)}, test_fraction=0.25, method="finetune", options={})
    section, _ = part(folder)
    assert "The kept model was trained on all rows, including these." in section.content
    assert "Its own method drops nothing in attention. Crossed out is what ad-drop with" in section.content
    training = (tmp_path / "train.csv").read_text(encoding="utf-8")
    texts = re.findall(r'<th scope="row">\d\. (.*?) ‖', section.content)
    assert len(texts) == 3 and all(text in training for text in texts)


def test_a_kept_baseline_has_its_own_name(folder: Path, tmp_path: Path) -> None:
    """It is made by a run of plain fine-tuning that trains nothing."""
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    metrics = tiny.read_metrics(copied / "best")
    metrics["config"] |= {"max_steps": 0, "head_init": "linear-probe"}
    write_json(copied / "best" / "metrics.json", metrics)
    assert "kept: the linear model on the frozen encoder, seed 0, 40 training rows" in part(copied)[0].content


def test_own_texts_take_the_place_of_rows_and_a_small_page_has_fewer(folder: Path) -> None:
    section, missing = part(folder, ViewerOptions(("the cat", "the bird"), ("a dog", "a cat"), "cpu"))
    assert data(section)["texts"][0]["tokens"] == ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "[SEP]"]
    assert "evaluation rows" not in section.content and not missing
    size = len(section.content) + len(json.dumps(next(iter(section.charts.values()))))
    fewer, missing = part(folder, ViewerOptions(("the cat", "the bird"), ("a dog", "a cat"), "cpu"), int(0.7 * size))
    assert missing == "To keep the page small, it has only 1 of 2 texts." and missing in fewer.content
    none, missing = part(folder, room=0)
    assert not none.charts and missing.startswith("The page has no room left") and "no room left" in none.content


def test_runs_without_a_kept_model_tell_how_to_get_one(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, "finetune", (0.5, 0.52, 0.51, 0.53))
    assert '`attendrop attend RUN "TEXT"` shows that of a run that kept its model' in part(tmp_path)[1]
    with pytest.raises(AttendropError, match="whose attention could be shown"):
        part(tmp_path, ViewerOptions(("the cat",)))
    for run in runs + write_runs(tmp_path, "r-drop", (0.6, 0.63, 0.61, 0.62)):
        (run / "run.yaml").write_text("model: minilm")
    section, told = part(tmp_path)
    recommended = tmp_path / "runs" / "4-seed0"  # a run of r-drop
    command = f"attendrop train --config {recommended}/run.yaml --output-dir FOLDER"
    assert f"`{command}`" in told and f"<code>{command}</code>" in section.content
    (recommended / "config.json").write_text("{}")
    assert f'`attendrop attend {recommended} "TEXT"`' in part(tmp_path)[1]


def test_a_kept_model_that_cannot_be_shown_does_not_keep_the_report_from_being_made(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    copy = tmp_path / "answer"
    shutil.copytree(folder, copy)
    options = (copy / "best" / "run.yaml").read_text(encoding="utf-8")
    (copy / "best" / "run.yaml").write_text(options.replace("dev.csv", "gone.csv"), encoding="utf-8")
    assert cli.main(["report", str(copy), "--device", "cpu"]) == 0
    assert re.search(r"Not made: Attention viewer: .*gone\.csv", capsys.readouterr().out)
    assert "gone.csv" in (copy / "report" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "the cat"], "was trained on pairs of texts; give one --text-pair for each text"),
        (["--text-pair", "the cat"], "give --text for each --text-pair"),
        (["--text", "the cat", "--no-viewer"], "--no-viewer shows no texts"),
    ],
)
def test_texts_that_cannot_be_shown_are_refused(
    folder: Path, tmp_path: Path, capsys: Captured, arguments: list[str], message: str
) -> None:
    out = tmp_path / "out"
    assert_refused(["report", str(folder), "--quiet", "--output-dir", str(out), *arguments], out, message, capsys)
