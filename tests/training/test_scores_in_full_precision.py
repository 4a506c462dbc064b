"""Scores that reward a method, computed without autocast, however the model trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers import zoo
from helpers.training import examples, trainer_of

from attendrop import AttendOut, RegularizedTrainer


def loss_of(model: torch.nn.Module, batch: dict[str, Any]) -> float:
    """Loss of a new model with the same weights, in float32."""
    new = zoo.build("bert").eval()
    new.load_state_dict(model.state_dict())
    with torch.no_grad():
        return float(new(**batch).loss)


class Scoring(RegularizedTrainer):
    """Trainer that compares each loss without gradients with that of the same weights in float32."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        found = super().compute_loss(model, inputs, *args, **options)
        if not torch.is_grad_enabled():
            self.scored.append((float(found), loss_of(model, inputs)))
        return found

    scored: ClassVar[list[tuple[float, float]]] = []


def test_models_are_scored_in_float32_while_they_train_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the trainer trains again, which prepares the model for mixed precision twice."""
    monkeypatch.setattr(Scoring, "scored", [])
    options = {"bf16": True, "max_steps": 4, "reward_dataset": examples(count=4)}
    trainer = trainer_of(tmp_path, AttendOut(dropout_step=1), kind=Scoring, **options)
    for _ in range(2):
        trainer.train()
    assert Scoring.scored
    assert [found for found, _ in Scoring.scored] == [expected for _, expected in Scoring.scored]
    batch = zoo.collate(examples(count=4))
    with torch.no_grad():
        assert float(trainer.model.eval()(**batch).loss) != loss_of(trainer.model, batch)  # it still is in bfloat16
