"""Table of the methods that are tested on every model, with a row for each variant of a method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

import attendrop
import attendrop_methods
from attendrop.attention.plan import Plan
from attendrop.methods.core.base import MethodState
from attendrop.methods.core.context import StepContext, TrainingContext
from attendrop.support.models import ROW_INDEX
from helpers import zoo


@dataclass(frozen=True, eq=False)
class RecordedOfAll(attendrop.ADDrop):
    """Recorded attributions; where a loop does not say which rows a batch has, equal rows are the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, attendrop.ADDrop) and self.options() == other.options()

    __hash__ = attendrop.ADDrop.__hash__

    def start(self, training: TrainingContext) -> MethodState:
        state = super().start(training)
        plan = state.plan

        def plan_of_known_rows(context: StepContext) -> Plan | None:
            if ROW_INDEX not in context.batch:
                context = replace(context, batch={**context.batch, ROW_INDEX: torch.tensor(contents(context.batch))})
            return plan(context)

        state.plan = plan_of_known_rows  # type: ignore[method-assign]
        return state


def contents(batch: zoo.Batch) -> list[int]:
    """Hash the inputs of each row, wherever it is padded."""
    if "input_ids" not in batch:
        return [hash(tuple(row.flatten().tolist())) for row in batch["pixel_values"]]
    pairs = zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)
    return [hash(tuple(row[mask].tolist())) for row, mask in pairs]


# Rows of the second package, of which each test of the table runs a part by default, and the slow tests the others.
SAMPLED_ROWS: dict[str, attendrop.Method] = {
    "dropconnect": attendrop_methods.DropConnect(p=0.2),
    "unidrop": attendrop_methods.UniDrop(structure=0.3, data=0.2, token=0.3),
    "unidrop tokens": attendrop_methods.UniDrop(feature=0, structure=0, data=0, token=0.5),
    "headmask": attendrop_methods.HeadMask(fraction=0.5),
    "headmask importance": attendrop_methods.HeadMask(fraction=0.5, select_by="importance"),
    "dropblock": attendrop_methods.DropBlock(p=0.3, block_size=2),
    "dropblock block_rows": attendrop_methods.DropBlock(p=0.3, block_size=2, block_rows=2),
    "alpha-dropout": attendrop_methods.AlphaDropout(p=0.2),
    "concrete-dropout": attendrop_methods.ConcreteDropout(p=0.3),
    "dropattention": attendrop_methods.DropAttention(p=0.3),
    "dropattention elements": attendrop_methods.DropAttention(p=0.3, unit="element", window=2),
    "r3f": attendrop_methods.R3F(scale=1.0),
    "token-cutoff": attendrop_methods.TokenCutoff(fraction=0.3),
    "l2-sp": attendrop_methods.L2SP(beta=1.0),
    "layer-reinit": attendrop_methods.LayerReinit(),
    "smart": attendrop_methods.SMART(epsilon=0.1, noise=0.1, step_size=0.1),
    "sam": attendrop_methods.SAM(rho=0.2),
    "variational-dropout": attendrop_methods.VariationalDropout(alpha=0.3),
    "learnable-bernoulli": attendrop_methods.LearnableBernoulli(p=0.3),
    "adversarial-dropout": attendrop_methods.AdversarialDropout(p=0.2, delta=0.1),
    "contextual-dropout": attendrop_methods.ContextualDropout(p=0.3),
    "edropout": attendrop_methods.EDropout(p=0.5),
}
TABLE: dict[str, attendrop.Method] = {
    "finetune": attendrop.FineTune(),
    "ad-drop": attendrop.ADDrop(p=0.3, layers="all"),
    "ad-drop attention": attendrop.ADDrop(p=0.3, attribution="attention", layers="all"),
    "ad-drop random": attendrop.ADDrop(p=0.3, attribution="random", layers="all"),
    "ad-drop integrated": attendrop.ADDrop(p=0.3, attribution="integrated_gradient", steps=2, layers="all"),
    "ad-drop layerwise": attendrop.ADDrop(
        p=0.3, attribution="integrated_gradient", steps=2, scope="layerwise", layers="all"
    ),
    "ad-drop gold low first": attendrop.ADDrop(p=0.3, target="gold_label", direction="low", layers="first"),
    "ad-drop hidden": attendrop.ADDrop(p=0.3, units="hidden", layers="all"),
    "ad-drop recorded": RecordedOfAll(p=0.3, attribution="recorded", layers="all"),
    "attention-layerdrop": attendrop.AttentionLayerDrop(p=0.3),
    "scheduler": attendrop.Scheduler(),
    "vanilla": attendrop.Vanilla(p=0.3),
    "vanilla weights": attendrop.Vanilla(p=0.3, where="weights"),
    "layerdrop": attendrop.LayerDrop(p=0.4),
    "r-drop": attendrop.RDrop(),
    "r-drop mean": attendrop.RDrop(reduction="mean"),
    "mixout": attendrop.Mixout(),
    "mixout elements": attendrop.Mixout(unit="element"),
    "child-tuning": attendrop.ChildTuning(),
    "child-tuning driven": attendrop.ChildTuning(variant="D"),
    "drophead": attendrop.DropHead(p_start=0.5),
    "supert": attendrop.SuperT(fraction=0.5),
    "hiddencut": attendrop.HiddenCut(alpha=0.3),
    "hiddencut random": attendrop.HiddenCut(alpha=0.3, select_by="random", views=2, where="feed_forward"),
    "scal": attendrop.SCAL(),
    "scal attention": attendrop.SCAL(where="attention", contrast=0),
    "compose": attendrop.Compose(
        attendrop.ADDrop(p=0.3, layers="all"), attendrop.Vanilla(), attendrop.RDrop(reduction="mean")
    ),
    "attendout": attendrop.AttendOut(dropout_step=2),
    "attendout pruning": attendrop.AttendOut(variant="pruning", granularity="head", dropout_step=2),
    **SAMPLED_ROWS,
}

# The terms and the parts of methods that have several, each alone.
SAMPLED_TERMS: dict[str, attendrop.Method] = {
    "unidrop feature": attendrop_methods.UniDrop(feature=0.3, structure=0, token=0),
    "unidrop layers": attendrop_methods.UniDrop(feature=0, structure=0.5, token=0),
    "token-cutoff span": attendrop_methods.TokenCutoff(fraction=0.3, unit="span", beta=0),
    "token-cutoff features": attendrop_methods.TokenCutoff(fraction=0.3, unit="features", alpha=0),
}
TERMS: dict[str, attendrop.Method] = {
    "supert heads": attendrop.SuperT(fraction=0.5, feed_forward=False),
    "supert feed-forward": attendrop.SuperT(fraction=0.5, heads=False),
    "hiddencut loss": attendrop.HiddenCut(alpha=0.3, eta=0),
    "hiddencut divergence": attendrop.HiddenCut(alpha=0.3, gamma=0),
    "scal copies": attendrop.SCAL(contrast=0),
    "scal contrast": attendrop.SCAL(adversarial=0),
    **SAMPLED_TERMS,
}
# Rows of the table in which a term looks at a micro-batch as a whole, or at how far it is padded.
BY_MICRO_BATCH: set[str] = {"scal", "sam"}
# Pairs of a row and a model that are refused, with a part of the message.
_NO_WORDS = ("scal", "scal copies", "scal contrast", "r3f", "smart")
_CUTOFF = ("token-cutoff", "token-cutoff span", "token-cutoff features")
_SHARED = ("layer-reinit", "supert", "supert heads", "supert feed-forward")
UNFIT: dict[tuple[str, str], str] = {
    **{(row, "vit"): "embeds no words" for row in (*_NO_WORDS, *_CUTOFF)},
    **{(row, "vit"): "no 'input_ids'" for row in ("unidrop", "unidrop tokens")},
    **{(row, "deberta"): "in one projection" for row in ("unidrop", "unidrop feature", "contextual-dropout")},
    ("concrete-dropout", "deberta"): "value projection .* cannot be found",
    ("learnable-bernoulli", "deberta"): "value projection .* cannot be found",
    **{(row, "albert"): "shares its layers" for row in _SHARED},
}
# Rows whose first steps are those of plain fine-tuning, to the bit: what they try, they try on a second model.
PLAIN: set[str] = {"finetune"}
# Rows that only act on weights that training has moved.
ON_MOVED_WEIGHTS: set[str] = {"l2-sp"}
# The first step that is not one of plain fine-tuning, by plan or by chance, where that is not the first.
FIRST_STEP: dict[str, int] = dict.fromkeys(
    ("supert", "supert heads", "supert feed-forward", "layerdrop", "unidrop layers"), 2
) | {"ad-drop recorded": 2}


def given(model: Any, batch: zoo.Batch) -> dict[str, Any]:
    """Return additional arguments that some methods need."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"optimizer": optimizer, "reward_data": [batch], "train_data": [batch], "total_steps": 4}
