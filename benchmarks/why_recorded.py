"""Why recorded attributions differ from those of a separate pass, on the demonstration's messages.

The separate pass attributes the predicted class's logit, by the current weights, and drops at once. A record is of the
loss (it contrasts the label with the classes that it is confused with), one epoch old, and made under the masks of that
epoch's dropping. Target, age and places are changed here: ``python benchmarks/why_recorded.py FOLDER``, about an hour
on a core. The answer is in FOLDER; the results are in docs/experiments.md.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import attendrop
from attendrop import ADDrop, register_method
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, DropoutDraws
from attendrop.attribution.recording import GradientPlan, isolated_pass
from attendrop.cli.demo import write_messages
from attendrop.extend import MethodState, StepContext, TrainingContext
from attendrop.methods.ad_drop import ADDropState, RecordedState, Recorder, RowMask
from attendrop.methods.core.context import Processes
from attendrop.randomness.candidates import Region, kept


def attribute_loss(context: StepContext, layers: Sequence[AttentionLayer], plan: GradientPlan) -> None:
    """Attribute the log-likelihood of the labels in a pass of its own, without parameter gradients."""
    with isolated_pass(context.adapter.model), torch.enable_grad():
        logits = context.adapter.forward(context.inputs, plan).logits
        plan.differentiate(-functional.cross_entropy(logits.float(), context.batch["labels"], reduction="sum"))


@register_method
class OwnPassOfLoss(ADDrop):
    """An own pass in each step, of the log-likelihood of the label in place of the predicted class's logit."""

    info = replace(ADDrop.info, name="own-pass-of-loss", evidence=())

    def start(self, training: TrainingContext) -> MethodState:
        return _OwnPassState(self, training)


class _OwnPassState(ADDropState):
    def _attribute(
        self, context: StepContext, attention_layers: Sequence[AttentionLayer], draws: DropoutDraws
    ) -> dict[str, tuple[Callable[[], Tensor], Tensor]]:
        region, found = self.region(context), dict[str, tuple[Callable[[], Tensor], Tensor]]()

        def keep(call: AttentionCall, attribution: Tensor) -> None:
            own = region(attribution, call.valid)
            of_layers = zip(map(kept, call.split(own.mask)), call.split(own.signal), strict=True)
            found.update(zip((layer.key for layer in call.layers), of_layers, strict=True))

        attribute_loss(context, attention_layers, GradientPlan(attention_layers, keep, draws=draws))
        return found


@register_method
class RecordedTwoEpochsOld(ADDrop):
    """What the epoch before the last recorded."""

    info = replace(ADDrop.info, name="recorded-two-epochs-old", evidence=())

    def start(self, training: TrainingContext) -> MethodState:
        state = RecordedState(self, training)
        state.recorder = _Aged(None, training.processes)
        return state


class _Aged(Recorder):
    """Recorder that shows what it had of a row before the last time."""

    def __init__(self, limit: int | None, processes: Processes) -> None:
        super().__init__(limit, processes)
        self._newest: dict[int, dict[str, RowMask]] = {}

    def put(self, row: int, masks: Mapping[str, RowMask]) -> None:
        super().put(row, self._newest.get(row, {}))
        self._newest[row] = dict(masks)


@register_method
class RecordedAtRandom(ADDrop):
    """As many candidates of each row, at random places: the control."""

    info = replace(ADDrop.info, name="recorded-at-random", evidence=())

    def start(self, training: TrainingContext) -> MethodState:
        return _AtRandomState(self, training)


class _AtRandomState(RecordedState):
    def __init__(self, method: ADDrop, training: TrainingContext) -> None:
        super().__init__(method, training)
        self.generator = torch.Generator().manual_seed(training.seed)

    def region(self, context: StepContext) -> Callable[[Tensor, Tensor | None], Region]:
        region = super().region(context)
        return lambda attribution, valid: region(torch.rand(attribution.shape, generator=self.generator), valid)


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
