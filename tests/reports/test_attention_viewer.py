"""The attention viewer: maps are those of the stock model, drops those of a method's own passes; its page, as drawn."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
import vl_convert
from helpers import tiny, zoo
from helpers.table import TABLE, given
from torch import Tensor

import attendrop
from attendrop import ADDrop
from attendrop.attention.adapter import ModelAdapter
from attendrop.attribution.gradient import gradient_attribution
from attendrop.errors import AttendropError
from attendrop.randomness.candidates import candidate_region
from attendrop.reports.attention_viewer import (
    Drops,
    LayerDrops,
    LayerMaps,
    ShownText,
    Stage,
    Stages,
    TextMaps,
    acting_in_attention,
    attention_page,
    record_drops,
    text_maps,
    viewer_spec,
)
from attendrop.tasks.types.classification import Classification

TEXT = "the cat sees not the red bird"
MOMENT = {"seed": 3, "step": 2, "total_steps": 4, "epoch": 1}
ACTING = [name for name, method in TABLE.items() if acting_in_attention(method) and name != "compose"]


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of two classes, with random weights so large that attention is far from uniform."""
    folder = tmp_path_factory.mktemp(request.param)
    (tiny.save_tiny_gpt2 if request.param == "gpt2" else tiny.save_tiny_bert)(folder)
    torch.manual_seed(0)
    model = load(folder, num_labels=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, **options: Any) -> Any:
    return hf.AutoModelForSequenceClassification.from_pretrained(folder, **options)


def maps_of(folder: Path, **settings: Any) -> TextMaps:
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    return text_maps(load(folder), tokenizer, Classification(("no", "yes")), dict(tokenizer(TEXT)), **settings)


def test_weights_and_attributions_are_those_of_the_stock_model(folder: Path) -> None:
    maps, model = maps_of(folder), load(folder, attn_implementation="eager")
    stock = model(**hf.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt"), output_attentions=True)
    best = int(stock.logits.argmax())
    gradients = torch.autograd.grad(stock.logits[0, best], stock.attentions)
    assert maps.prediction["label"] == ("no", "yes")[best]
    assert len(maps.layers) == len(stock.attentions) == 2
    for layer, weight, gradient in zip(maps.layers.values(), stock.attentions, gradients, strict=True):
        np.testing.assert_allclose(layer.attention, weight[0].detach().numpy(), atol=1e-5)
        np.testing.assert_allclose(layer.attribution, gradient[0].numpy(), atol=1e-5)
        assert not layer.dropped.any()
        every = np.ones((len(maps.tokens),) * 2, dtype=bool)
        assert np.array_equal(layer.possible, np.tril(every) if model.config.model_type == "gpt2" else every)
    ((key, layer),) = maps_of(folder, attribution="integrated_gradient", layers="1").layers.items()
    assert key == list(maps.layers)[1] and not np.allclose(layer.attribution, maps.layers[key].attribution)


# What a method drops -------------------------------------------------------------------------------------------------


def record(method: attendrop.Method, name: str = "bert", model: Any = None, **moment: Any) -> dict[str, LayerDrops]:
    return record_drops(model or zoo.build(name), Drops(method, **MOMENT | moment), zoo.batch_of(name))


def fraction(found: LayerDrops) -> Tensor:
    return found.dropped.sum() / found.possible.expand(found.dropped.shape).sum()


@pytest.mark.parametrize("name", ["bert", "gpt2-class"])
def test_what_ad_drop_drops_is_its_candidate_region(name: str) -> None:
    model, batch = zoo.build(name), zoo.batch_of(name)
    found = record(attendrop.ADDrop(p=0.4, q=1.0, layers="all"), name, model)
    with ModelAdapter(model) as adapter:
        layers = adapter.trace(batch)
        attributions = gradient_attribution(adapter, batch, layers, "pseudo_label")
    length = batch["input_ids"].shape[1]
    valid = batch["attention_mask"].bool()[:, None, None, :].expand(-1, 1, length, -1)
    if name == "gpt2-class":
        valid = valid & torch.ones(length, length, dtype=torch.bool).tril()
    rows = batch["attention_mask"].bool()[:, None, :, None]
    assert [*found] == [layer.key for layer in layers]
    for key, drops in found.items():
        assert torch.equal(drops.possible, valid & rows)
        assert torch.equal(drops.dropped, candidate_region(attributions[key], valid, 0.4).mask & rows)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ACTING)
def test_nothing_of_the_model_changes(name: str) -> None:
    model = zoo.build("bert", dropout=0.1)
    model.bert.encoder.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    record(TABLE[name], model=model)
    zoo.assert_same(before, model.state_dict())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or "forward" in module.__dict__ for module in model.modules())
    with attendrop.regularize(model.train(), attendrop.FineTune()):  # and it can be regularised again
        pass


def test_dropped_heads_and_layers_count_with_all_their_positions() -> None:
    found = record(attendrop.DropHead(p_start=0.5, schedule="constant"))
    for drops in found.values():
        whole = (drops.dropped == drops.possible).flatten(2).all(-1)
        assert (whole | ~drops.dropped.flatten(2).any(-1)).all()
    assert any(drops.dropped.any() for drops in found.values())
    for method in (attendrop.AttentionLayerDrop(p=0.5), attendrop.LayerDrop(p=0.5)):
        shares = set()
        for step in range(6):
            found = record(method, seed=0, step=step, epoch=0)
            assert [*found] == ["encoder.0", "encoder.1"]
            shares |= {fraction(drops).item() for drops in found.values()}
        assert shares == {0.0, 1.0}


def test_the_models_own_dropout_is_off_as_in_evaluation() -> None:
    model = zoo.build("bert", dropout=0.5)
    found = record(attendrop.Vanilla(p=0.2, where="weights"), model=model)
    assert 0.05 < fraction(found["encoder.0"]).item() < 0.4
    high = attendrop.ADDrop(q=1.0, layers="all")
    trained, evaluated = (record(high, model=each)["encoder.0"].dropped for each in (model.train(), model.eval()))
    assert torch.equal(trained, evaluated)
    assert not model.training


def test_which_methods_act_in_attention() -> None:
    assert acting_in_attention(attendrop.FineTune()) is None
    drop = attendrop.ADDrop(cross_tuning=True)
    assert acting_in_attention(attendrop.Compose(drop, attendrop.RDrop())) == drop
    both = attendrop.Compose(drop, attendrop.Vanilla())
    assert acting_in_attention(both) is both


def test_a_method_drops_by_what_a_run_learnt() -> None:
    method = attendrop.AttendOut(dropout_step=1)
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with attendrop.regularize(model, method, **given(model, batch)) as reg:
        reg.loss(batch)
        saved = {key: value.clone() for key, value in reg.method_state.tensors()["generator"].items()}
    for name in ("query", "key"):  # such that the scores of all positions are equal and high
        saved[f"{name}.weight"].zero_()
        saved[f"{name}.bias"].fill_(10.0)
    new, trained = (record(method, learnt=each) for each in (None, ({}, {"generator": saved})))
    assert all(0.3 < fraction(drops) < 0.7 for drops in new.values())
    assert all(fraction(drops) == 1 for drops in trained.values())
    with pytest.raises(AttendropError, match=r"kept no generator\.safetensors"):
        record(method, learnt=({}, {}))


def test_what_is_recorded_in_one_pass_is_dropped_in_the_next() -> None:
    assert any(drops.dropped.any() for drops in record(TABLE["ad-drop recorded"]).values())


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
