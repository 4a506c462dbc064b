"""Why recorded attributions differ from those of a separate pass, on the demonstration's messages.

The separate pass attributes the predicted class's logit, by the current weights, and drops at once. A record is of the
loss (it contrasts the label with the classes that it is confused with), one epoch old, and made under the masks of that
epoch's dropping. Each of these is changed separately here: ``python benchmarks/why_recorded.py FOLDER``, about an hour
on a core. The answer is in FOLDER; the results are in docs/experiments.md.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import attendrop
from attendrop import ADDrop, register_method
from attendrop.attention.edits import AttentionCall, DropoutDraws
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import Plan
from attendrop.attribution.recording import GradientPlan, isolated_pass
from attendrop.cli.demo_messages import write_messages
from attendrop.extend import MethodState, StepContext, TrainingContext
from attendrop.methods.ad_drop import Candidates, RecordedState
from attendrop.methods.ad_drop_records import RowMask, RowRecords


def attribute_loss(context: StepContext, layers: Sequence[AttentionLayer], plan: GradientPlan) -> None:
    """Attribute the log-likelihood of the labels in a pass of its own, without parameter gradients."""
    with isolated_pass(context.adapter.model), torch.enable_grad():
        logits = context.adapter.forward(context.inputs, plan).logits
        plan.differentiate(-functional.cross_entropy(logits.float(), context.batch["labels"], reduction="sum"))


@register_method
class OwnPassOfLoss(ADDrop):
    """An own pass in each step, of the log-likelihood of the label in place of the predicted class's logit."""

    info = replace(ADDrop.info, name="own-pass-of-loss", evidence=())

    def _attribute(
        self, context: StepContext, attention_layers: Sequence[AttentionLayer], draws: DropoutDraws
    ) -> dict[str, Candidates]:
        kept = {}

        def keep(call: AttentionCall, attribution: Tensor) -> None:
            kept[call.layer.key] = self.candidates(call, attribution)

        attribute_loss(context, attention_layers, GradientPlan(attention_layers, keep, draws=draws))
        return kept


@register_method
class RecordedWithoutMasks(ADDrop):
    """Records of a pass of its own, of the loss, in which nothing is dropped; used in the next epoch."""

    info = replace(ADDrop.info, name="recorded-without-masks", evidence=())

    def start(self, training: TrainingContext) -> MethodState:
        return _FromOwnPass(self, training)


class _FromOwnPass(RecordedState):
    def plan(self, context: StepContext) -> Plan:
        row_pass = self.recorder.begin_pass(context, self.options.units)
        layers = self.options.selected_layers(context.adapter.attention_layers)

        def keep(call: AttentionCall, attribution: Tensor) -> None:
            mask = self.options.candidate_mask(call, attribution)
            self.recorder.add(row_pass.rows, call.layer.key, mask, row_pass.spans(call), torch.tensor(True))

        attribute_loss(context, layers, GradientPlan(layers, keep))
        return self.options.recorded_plan(context, row_pass, records=False)


@register_method
class RecordedTwoEpochsOld(ADDrop):
    """What the epoch before the last recorded."""

    info = replace(ADDrop.info, name="recorded-two-epochs-old", evidence=())

    def start(self, training: TrainingContext) -> MethodState:
        state = RecordedState(self, training)
        state.recorder.records = _Aged(None)
        return state


class _Aged(RowRecords):
    def __init__(self, limit: int | None) -> None:
        super().__init__(limit)
        self._before: dict[int, dict[str, RowMask]] = {}

    def get(self, row: int, layer: str) -> RowMask | None:
        return self._before.get(row, {}).get(layer)

    def put(self, row: int, masks: Mapping[str, RowMask]) -> None:
        self._before[row] = dict(self._rows.get(row, {}))
        super().put(row, masks)


@register_method
class RecordedAtRandom(ADDrop):
    """As many candidates of each row, at random places: the control."""

    info = replace(ADDrop.info, name="recorded-at-random", evidence=())

    def start(self, training: TrainingContext) -> MethodState:
        state = RecordedState(self, training)
        generator = torch.Generator().manual_seed(training.seed)
        choose = state.options.candidate_mask

        def at_random(call: AttentionCall, attribution: Tensor) -> Tensor:
            return choose(call, torch.rand(attribution.shape, generator=generator))

        object.__setattr__(state.options, "candidate_mask", at_random)
        return state


def main() -> None:
    """Compare them all; goes on where it stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    train, test = write_messages(given.folder)
    strength: dict[str, Any] = {"p": 0.3, "layers": "all"}
    recorded = strength | {"attribution": "recorded"}
    methods = [
        ADDrop(**recorded),
        OwnPassOfLoss(**strength),
        RecordedAtRandom(**recorded),
        RecordedTwoEpochsOld(**recorded),
        RecordedWithoutMasks(**recorded),
        ADDrop(**recorded, cross_tuning=True),
        ADDrop(**strength),
    ]
    outcome = attendrop.compare(
        train_file=str(train),
        eval_file=str(test),
        text_columns=["message"],
        label_column="topic",
        label_names="none",
        epochs=10,
        bf16=True,
        methods=methods,
        seeds=given.seeds,
        baselines=["frozen"],
        keep_best=False,
        workers=0,
        output_dir=str(given.folder / "answer"),
    )
    print(*outcome.lines(), sep="\n")


if __name__ == "__main__":
    main()
