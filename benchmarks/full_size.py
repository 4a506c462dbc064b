"""Run a study of ``recipes/full`` and score each epoch on the development set, too, which decides nothing.

``python benchmarks/full_size.py recipes/full/minilm.yaml FOLDER`` is ``attendrop study``, hours to days on a core.
Beside each run's ``metrics.json``, ``by_epoch.json`` has the scores after each epoch: the best is what a run reports
that chooses its epoch on the development set, as the papers do.

It knows one more method, ``attendout-shuffled`` of ``attendout_control.yaml``: AttendOut whose rewards are drawn from
all rewards so far, so that they have their size, and say nothing of what was dropped.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from attendrop import AttendOut, register_method
from attendrop.cli import main as attendrop
from attendrop.extend import in_full_precision
from attendrop.methods.attend_out import GeneratorState
from attendrop.methods.attend_out_networks import Micro, Players
from attendrop.runs import train
from attendrop.runs.data import Parts, ResolvedRun
from attendrop.runs.inference import predict_outputs
from attendrop.runs.model_loading import Loaded
from attendrop.runs.run_trainer import RunTrainer
from attendrop.support.files import write_json
from attendrop.tasks.metrics import compute_scores, row_scores
from attendrop.tasks.tokenization import columns_of

BY_EPOCH = "by_epoch.json"


class ScoredEpochs(TrainerCallback):
    """Scores of the model on the development set after each epoch, in full precision, written into the run's folder."""

    def __init__(self, run: ResolvedRun, loaded: Loaded, encoded: Parts, place: Path) -> None:
        self.run, self.tokenizer, self.place = run, loaded.tokenizer, place
        self.encoded, self.found = columns_of(encoded.report["dev"]), list[dict[str, Any]]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        path = self.place / BY_EPOCH  # of a run that is resumed
        self.found = json.loads(path.read_text())[: int(state.epoch or 0)] if path.exists() else []

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        task, config = self.run.task, self.run.config
        with in_full_precision(model):  # as for the score of the run
            outputs = predict_outputs(
                model, self.tokenizer, task.type, self.encoded, config.eval_batch_size, config.device
            )
        model.train()
        references = task.type.references(self.encoded)
        by_row = row_scores(task, outputs, references, self.run.parts.report["dev"])
        scores = compute_scores(task, outputs, references)
        self.found.append({"scores": scores, "by_row": by_row and by_row.as_dict()})
        write_json(self.place / BY_EPOCH, self.found)


def fit(run: ResolvedRun, loaded: Loaded, encoded: Parts, **how: Any) -> RunTrainer:
    """As :func:`attendrop.runs.train.fit`, with the scores of each epoch."""
    scored = ScoredEpochs(run, loaded, encoded, how["place"])
    return _fit(run, loaded, encoded, **{**how, "callbacks": [*how.get("callbacks", ()), scored]})


class _ShuffledState(GeneratorState):
    def _create(self, first: dict[str, Any]) -> Players:
        players, seen = super()._create(first), list[float]()
        learn = players.learn

        def learn_from_shuffled(period: Sequence[Sequence[Micro]], rewards: Tensor) -> dict[str, float]:
            seen.extend(rewards.tolist())
            chance = random.Random(f"{period[0][0].key.seed}/{len(seen)}")
            return learn(period, torch.tensor(chance.choices(seen, k=len(rewards)), dtype=rewards.dtype))

        players.learn = learn_from_shuffled  # type: ignore[method-assign]
        return players


@register_method
class ShuffledAttendOut(AttendOut):
    """AttendOut with shuffled rewards: the control."""

    info = replace(AttendOut.info, name="attendout-shuffled", evidence=())
    state_class = _ShuffledState


_fit = train.fit
train.fit = fit  # type: ignore[assignment] # of the same form

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    attendrop(["study", sys.argv[1], "--output-dir", sys.argv[2], "--workers", "0"])  # this process knows all of it
