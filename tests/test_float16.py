"""Training under float16 autocast with a real gradient scaler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from test_trainer import trainer_of, weights
from torch import Tensor
from torch.optim import Optimizer

from attendrop import SCAL, ADDrop, AttendropError, HeadMask, Method, attribution, regularize
from attendrop.attention import Attachment
from attendrop.gradients import finite_gradients

HALF = {"device_type": "cpu", "dtype": torch.float16}


def model_of(task: str) -> Any:
    if task != "questions":
        return zoo.build(task)
    return zoo.from_class("BertForQuestionAnswering", {**zoo.ZOO["bert"].options, "num_labels": 2}, "sdpa").train()


def rows_of(task: str, count: int = 3) -> list[zoo.Batch]:
    rows = zoo.rows("bert" if task == "questions" else task, [8, 5, 3, 6, 7, 4][:count])
    if task == "questions":
        for row in rows:
            first = row.pop("labels")
            row |= {"start_positions": first, "end_positions": first + 1}
    return rows


def loop(
    model: Any,
    method: Method,
    batch: zoo.Batch,
    *,
    half: bool = True,
    steps: int = 2,
    rate: float = 1e-3,
    scale: float = 2.0**16,
    **given: Any,
) -> dict[str, float]:
    """Train as PyTorch's documentation of mixed precision does; gives the figures of the log."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=half)
    with regularize(model, method, **given) as reg:
        for _ in range(steps):
            with torch.autocast(**HALF, enabled=half):
                loss = reg.loss(batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            reg.step()
        return reg.logs()


ATTRIBUTIONS: dict[str, Method] = {
    "gradient": ADDrop(cross_tuning=False),
    "integrated": ADDrop(attribution="integrated_gradient", steps=2, cross_tuning=False),
    "hidden": ADDrop(units="hidden", cross_tuning=False),
}


@pytest.mark.parametrize("method", ATTRIBUTIONS.values(), ids=ATTRIBUTIONS)
@pytest.mark.parametrize("task", ["bert", "questions", "gpt2"])
def test_as_much_is_dropped_as_in_full_precision(task: str, method: Method) -> None:
    batch = zoo.collate(rows_of(task))
    found = [loop(model_of(task), method, batch, half=half) for half in (True, False)]
    assert found[0]["ad_drop/active"] == 1
    assert found[1]["ad_drop/dropped"] > 0.05
    for key, value in found[1].items():
        assert found[0][key] == pytest.approx(value, abs=0.03), key


@pytest.mark.parametrize("method", ATTRIBUTIONS.values(), ids=ATTRIBUTIONS)
@pytest.mark.parametrize("task", ["bert", "questions"])
def test_the_trainer_drops_as_much_as_in_full_precision(task: str, method: Method, tmp_path: Path) -> None:
    found = []
    for half in (True, False):
        options = {"train_dataset": rows_of(task, 6), "max_steps": 2, "learning_rate": 1e-4, "logging_steps": 2}
        trainer = trainer_of(tmp_path, method, model=model_of(task), logging_strategy="steps", **options)
        if half:
            in_float16(trainer)
        trainer.train()
        found.append(next(entry for entry in trainer.state.log_history if "ad_drop/dropped" in entry))
    for key in ("ad_drop/dropped", "ad_drop/dropped/encoder.0", "ad_drop/dropped/encoder.1"):
        assert found[1][key] > 0.05
        assert found[0][key] == pytest.approx(found[1][key], abs=0.04)


def in_float16(trainer: Any) -> None:
    """Make a trainer train on the CPU as ``fp16=True`` does on a GPU, where alone it is allowed."""
    accelerator = trainer.accelerator
    accelerator.state._mixed_precision, accelerator.native_amp = "fp16", True
    accelerator.scaler = torch.amp.GradScaler("cpu")


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_gradients_are_ranked_whatever_their_size(factor: float) -> None:
    """Neither do small ones vanish, so that rows lose their signal, nor do large ones overflow."""
    found = {}
    for half in (True, False):
        model, batch = model_of("bert"), zoo.batch_of("bert")
        with torch.no_grad():
            model.classifier.weight.mul_(factor)
        attachment = Attachment(model)
        attachment.attach()
        attachment.probe(batch)
        with torch.autocast(**HALF, enabled=half):
            found[half] = attribution.gradient(attachment, batch, attachment.sites, "gold_label")
    for key, exact in found[False].items():
        assert ((found[True][key] != 0) == (exact != 0)).all()
        torch.testing.assert_close(found[True][key], exact, rtol=0.1, atol=2e-3 * float(exact.abs().max()))


def test_what_overflows_is_computed_again_with_a_smaller_factor() -> None:
    asked = []

    def compute(factor: float) -> dict[str, Tensor]:
        asked.append(factor)
        return {"units": torch.tensor([900.0, 3.0], dtype=torch.float16) * factor}

    assert finite_gradients(compute)["units"].tolist() == [900, 3]
    assert asked == sorted(asked, reverse=True)
    assert len(asked) == 2


METHODS: dict[str, Method] = {
    **ATTRIBUTIONS,
    "attention": ADDrop(attribution="attention", cross_tuning=False),
    "headmask": HeadMask(share=0.5, by="importance"),
    "scal": SCAL(),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_attributions_that_are_not_finite_are_an_error(method: Method) -> None:
    model, batch = model_of("bert"), zoo.batch_of("bert")
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.weight[0] = torch.inf
    with regularize(model, method) as reg, pytest.raises(AttendropError, match="not finite"):
        reg.loss(batch)
