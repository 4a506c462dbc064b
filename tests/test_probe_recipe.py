"""The probe of AD-DROP's appendix B, `recipes/probe.py`: it drops what it says, and draws its figure."""

from __future__ import annotations

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
from helpers import tiny, zoo
from torch.nn import functional

from attendrop.attention.adapter import ModelAdapter
from attendrop.attribution.gradient import gradient_attribution

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
