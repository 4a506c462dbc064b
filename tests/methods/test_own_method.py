"""The complete example of docs/own_method.md, as it is printed there."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.training import Gradients, trainer_of
from torch import Tensor

from attendrop import Method, regularize
from attendrop.extend import ComputeLoss, MethodInfo, StepContext

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def self_drop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    page, path = (DOCS / "own_method.md").read_text(encoding="utf-8"), tmp_path_factory.mktemp("own") / "self_drop.py"
    path.write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("self_drop", path)
    sys.modules["self_drop"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SelfDrop


def test_it_drops_the_diagonal(self_drop: Any) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert", (40, 40))
    with regularize(model, self_drop(p=0.5)) as reg:
        reg.loss(batch)
        assert reg.logs()["self_drop/dropped"] == pytest.approx(0.5 / 40, rel=0.2)


@dataclass(frozen=True)
class TwoPasses(Method):
    """Takes passes of its own, and adds a mean of its own to their loss."""

    info = MethodInfo("two-passes", uses_attention=False)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        loss, outputs = compute_loss(context.batch)
        return loss + 0.5 * compute_loss(context.batch)[0] + 3 * outputs.logits.square().mean(), outputs


def test_terms_of_ones_own_are_weighted_by_accumulation(tmp_path: Path) -> None:
    """Micro-batches of 4 and of 2 rows give the gradient of the whole batch of 6."""
    found = []
    for size, parts in ((6, 1), (4, 2)):
        keep = Gradients()
        rows = zoo.rows("bert", [5, 7, 4, 6, 8, 3])
        trainer = trainer_of(
            tmp_path, TwoPasses(), model=zoo.build("bert", dtype=torch.float64), train_dataset=rows, max_steps=1,
            per_device_train_batch_size=size, gradient_accumulation_steps=parts, callbacks=[keep], max_grad_norm=0.0,
        )  # fmt: skip
        trainer.train()
        found.append(keep.steps[0])
    zoo.assert_same(found[0], found[1], 1e-6)
