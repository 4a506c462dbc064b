"""Recipes: one for each table and figure of the papers, each with a twin; they parse, start, and say what they are."""

from __future__ import annotations

import dataclasses
import math
import re
import runpy
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as hf
import yaml
from helpers import tiny, zoo
from helpers.stand_in_data import write_stand_ins
from torch.nn import functional

from attendrop.attention.adapter import ModelAdapter
from attendrop.attribution.gradient import gradient_attribution
from attendrop.studies.executor import RunSpec, perform
from attendrop.studies.study import read_study

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"
PAPERS = yaml.safe_load((ROOT / "docs" / "paper_tables.yaml").read_text(encoding="utf-8"))
ITEMS = [item for paper in PAPERS for item in paper["items"]]
ALL = sorted(str(path.relative_to(RECIPES)) for path in RECIPES.rglob("*.yaml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data in the place of those that recipes name."""
    folder = tmp_path_factory.mktemp("recipes")
    tiny.save_tiny_bert(folder / "model", num_hidden_layers=5)  # SuperT prunes a tenth of the heads
    return write_stand_ins(folder)


@pytest.fixture(autouse=True)
def _data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENDROP_DATA", str(folder))
    for name in ("ATTENDROP_DRAWS", "ATTENDROP_ALIKE", "ATTENDROP_CONTROLS", "ATTENDROP_UNLABELLED"):
        monkeypatch.setenv(name, str(folder))


def test_every_item_of_the_papers_has_a_recipe_and_a_twin() -> None:
    assert sorted(item["recipe"] for item in ITEMS) == sorted(path.stem for path in RECIPES.glob("a*.yaml"))
    assert sorted(item["recipe"] for item in ITEMS) == sorted(path.stem for path in RECIPES.glob("small/*.yaml"))
    assert all(len(values) == len(item["columns"]) for item in ITEMS for values in item["rows"].values())


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_is_valid_and_says_how_many_runs_it_has_and_a_twin_is_small(name: str) -> None:
    specs = read_study(str(RECIPES / name)).specs
    found = re.search(r"(\d+) runs", (RECIPES / name).read_text(encoding="utf-8"))
    assert specs and (int(found[1]) == len(specs) if found else "does_it_help" in name)
    for config in [spec.config for spec in specs] if name.startswith(("small", "quick")) else ():
        assert (config.model, config.bf16) == ("minilm", True)
        assert (config.max_train_samples or 2 * (config.shots or 10_000)) <= 1000
        assert (config.max_steps or 10_000) <= 256


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore")  # few rows
def test_the_first_run_of_each_method_of_a_recipe_starts(name: str, folder: Path, tmp_path: Path) -> None:
    first = {spec.method: spec for spec in reversed(read_study(str(RECIPES / name)).specs)}
    for method, spec in first.items():
        rows = None if spec.config.shots else 32
        shortened = {"epochs": None, "max_steps": 4, "max_train_samples": rows, "max_length": 24, "batch_size": 16}
        config = dataclasses.replace(spec.config, model=str(folder / "model"), **shortened)
        outcome = perform(RunSpec(config, spec.baseline), tmp_path / method)
        assert "error" not in outcome, outcome["error"]
        assert outcome["metrics"]["method"] == method
        assert outcome["metrics"]["score"] is not None


RECIPE = Path(__file__).parent.parent / "recipes" / "probe.py"


def batches() -> list[Any]:
    return [zoo.batch_of("bert", (8, 5, 3)), zoo.batch_of("bert", (6, 4), seed=5)]


def probed(model: Any, rates: list[float], **how: Any) -> pd.Series[float]:
    """Mean change of the loss, by layer, rate and direction."""
    found = runpy.run_path(str(RECIPE))["probe"](model, batches(), rates, **how)
    assert sorted(found["row"].unique()) == [0, 1, 2, 3, 4]
    return found.groupby(["layer", "rate", "direction"])["change"].mean()


def dropped(direction: str, rate: float) -> float:
    """Mean loss with a region of the first layer dropped by an eager model and an additive mask, written out."""
    found: list[torch.Tensor] = []
    for batch in batches():
        with ModelAdapter(model := zoo.build("bert").eval()) as adapter:
            attribution = gradient_attribution(adapter, batch, adapter.trace(batch), "gold_label")["encoder.0"]
        drop = torch.zeros_like(attribution, dtype=torch.bool)
        for row, length in enumerate(batch["attention_mask"].sum(-1).tolist()):
            for head in range(attribution.shape[1]):
                for query in range(length):
                    order = attribution[row, head, query, :length].argsort()
                    number = math.floor(rate * length + 1e-6)
                    kept = math.floor((1 - rate) * length + 1e-6)
                    drop[row, head, query, order[:number] if direction == "low" else order[max(kept, 1) :]] = True
        eager = zoo.build("bert", "eager").eval()
        eager.load_state_dict(model.state_dict())
        own = eager.bert.encoder.layer[0].attention.self

        def masked(*args: Any, forward: Any = own.forward, drop: Any = drop, **kwargs: Any) -> Any:
            mask = kwargs.pop("attention_mask", None)
            mask = args[1] if mask is None else mask
            mask = mask.expand(drop.shape).masked_fill(drop, torch.finfo(torch.float32).min)
            return forward(args[0], attention_mask=mask, **kwargs)

        own.forward = masked
        logits = eager(**{key: value for key, value in batch.items() if key != "labels"}).logits
        found.append(functional.cross_entropy(logits, batch["labels"], reduction="none"))
    return float(torch.cat(found).mean().detach())


def test_high_and_low_attributions_are_dropped_in_one_layer() -> None:
    plain = dropped("low", 0.0)
    found = probed(zoo.build("bert"), [0.4])
    for direction in ("high", "low"):
        expected = dropped(direction, 0.4) - plain
        assert found["encoder.0", 0.4, direction] == pytest.approx(expected, abs=1e-5)
        assert abs(expected) > 1e-4


def test_the_figure_is_drawn_for_a_model_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    place = str(tiny.save_tiny_bert(tmp_path / "model"))
    hf.AutoModelForSequenceClassification.from_pretrained(place, **classes).save_pretrained(place)
    file = tiny.write_csv(tmp_path / "dev.csv", ["no", "yes"] * 10)
    given = [str(RECIPE), place, str(file), "--texts", "sentence1", "--output", f"{tmp_path}/p.png"]
    monkeypatch.setattr(sys, "argv", [*given, "--label", "label", "--rates", "0.3,0.6"])
    runpy.run_path(str(RECIPE), run_name="__main__")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    found = pd.read_csv(tmp_path / "p.png.csv")
    places = list(product(("encoder.0", "encoder.1"), (0.3, 0.6), ("high", "low", "random")))
    assert list(zip(found["layer"], found["rate"], found["direction"], strict=True)) == places
    monkeypatch.setattr(sys, "argv", [*given, "--label", "sentence2"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(RECIPE), run_name="__main__")
    assert "the model has no classes" in capsys.readouterr().err
    assert set(re.findall(r"(?:from|import) (attendrop[\w.]*)", RECIPE.read_text("utf-8"))) == {"attendrop.extend"}
