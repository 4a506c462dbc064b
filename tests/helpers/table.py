"""Table of the methods that are tested on every model, with a row for each variant of a method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from attendrop import (
    L2SP,
    R3F,
    SAM,
    SCAL,
    SMART,
    ADDrop,
    AdversarialDropout,
    AlphaDropout,
    AttendOut,
    AttentionLayerDrop,
    AutoDropout,
    ChildTuning,
    Compose,
    ConcreteDropout,
    ContextualDropout,
    DropAttention,
    DropBlock,
    DropConnect,
    DropHead,
    EDropout,
    FineTune,
    HeadMask,
    HiddenCut,
    LayerDrop,
    LayerReinit,
    LearnableBernoulli,
    Method,
    Mixout,
    NEFTune,
    RDrop,
    Scheduler,
    StructureMask,
    SuperT,
    TokenCutoff,
    UniDrop,
    Vanilla,
    VariationalDropout,
)
from attendrop.attention.plan import Plan
from attendrop.methods.core.base import MethodState
from attendrop.methods.core.context import StepContext, TrainingContext
from attendrop.model_support.batches import ROW_INDEX, number_of_rows
from helpers import zoo


@dataclass(frozen=True, eq=False)
class StructureOfAll(StructureMask):
    """Structure mask as if the batch had a column of structures: a tree in which the parent of token i is i // 2."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructureMask) and self.options() == other.options()

    __hash__ = StructureMask.__hash__

    def plan(self, context: StepContext) -> Plan:
        tree = torch.arange(40) // 2
        graph = tree[:, None] == torch.arange(40)
        column = (tree if self.structure == "dependencies" else graph.long())[None]
        rows = number_of_rows(context.batch)
        return super().plan(replace(context, extra={self.column: column.repeat(rows, *[1] * (column.ndim - 1))}))


@dataclass(frozen=True, eq=False)
class RecordedOfAll(ADDrop):
    """Recorded attributions; where a loop does not say which rows a batch has, equal rows are the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ADDrop) and self.options() == other.options()

    __hash__ = ADDrop.__hash__

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


# Rows of which each test of the table runs a part by default, and the slow tests the others.
SAMPLED_ROWS: dict[str, Method] = {
    "dropattention": DropAttention(p=0.3),
    "dropattention elements": DropAttention(p=0.3, unit="element", window=2),
    "neftune": NEFTune(alpha=15.0),
    "r3f": R3F(scale=1.0),
    "token-cutoff": TokenCutoff(fraction=0.3),
    "l2-sp": L2SP(beta=1.0),
    "layer-reinit": LayerReinit(),
    "smart": SMART(epsilon=0.1, noise=0.1, step_size=0.1),
    "sam": SAM(rho=0.2),
    "variational-dropout": VariationalDropout(alpha=0.3),
    "learnable-bernoulli": LearnableBernoulli(p=0.3),
    "adversarial-dropout": AdversarialDropout(p=0.2, delta=0.1),
    "contextual-dropout": ContextualDropout(p=0.3),
    "edropout": EDropout(p=0.5),
}
TABLE: dict[str, Method] = {
    "finetune": FineTune(),
    "ad-drop": ADDrop(p=0.3, layers="all"),
    "ad-drop attention": ADDrop(p=0.3, attribution="attention", layers="all"),
    "ad-drop random": ADDrop(p=0.3, attribution="random", layers="all"),
    "ad-drop integrated": ADDrop(p=0.3, attribution="integrated_gradient", steps=2, layers="all"),
    "ad-drop layerwise": ADDrop(p=0.3, attribution="integrated_gradient", steps=2, scope="layerwise", layers="all"),
    "ad-drop gold low first": ADDrop(p=0.3, target="gold_label", direction="low", layers="first"),
    "ad-drop hidden": ADDrop(p=0.3, units="hidden", layers="all"),
    "ad-drop recorded": RecordedOfAll(p=0.3, attribution="recorded", layers="all"),
    "attention-layerdrop": AttentionLayerDrop(p=0.3),
    "scheduler": Scheduler(),
    "vanilla": Vanilla(p=0.3),
    "vanilla weights": Vanilla(p=0.3, where="weights"),
    "layerdrop": LayerDrop(p=0.4),
    "r-drop": RDrop(),
    "r-drop mean": RDrop(reduction="mean"),
    "mixout": Mixout(),
    "mixout elements": Mixout(unit="element"),
    "child-tuning": ChildTuning(),
    "child-tuning driven": ChildTuning(variant="D"),
    "dropconnect": DropConnect(p=0.2),
    "unidrop": UniDrop(structure=0.3, data=0.2, token=0.3),
    "unidrop tokens": UniDrop(feature=0, structure=0, data=0, token=0.5),
    "drophead": DropHead(p_start=0.5),
    "headmask": HeadMask(fraction=0.5),
    "headmask importance": HeadMask(fraction=0.5, select_by="importance"),
    "dropblock": DropBlock(p=0.3, block_size=2),
    "dropblock block_rows": DropBlock(p=0.3, block_size=2, block_rows=2),
    "structure-mask": StructureMask(p=0.8, window=1),
    "structure-mask dependencies": StructureOfAll(p=0.5, structure="dependencies"),
    "structure-mask adjacency": StructureOfAll(p=0.5, structure="adjacency"),
    "alpha-dropout": AlphaDropout(p=0.2),
    "concrete-dropout": ConcreteDropout(p=0.3),
    "supert": SuperT(fraction=0.5),
    "autodropout": AutoDropout(trials=1, search=0.6),
    "hiddencut": HiddenCut(alpha=0.3),
    "hiddencut random": HiddenCut(alpha=0.3, select_by="random", views=2, where="feed_forward"),
    "scal": SCAL(),
    "scal attention": SCAL(where="attention", contrast=0),
    "compose": Compose(ADDrop(p=0.3, layers="all"), Vanilla(), RDrop(reduction="mean")),
    "attendout": AttendOut(learner="policy_gradient", dropout_step=2),
    "attendout effects": AttendOut(dropout_step=1),
    "attendout pruning": AttendOut(variant="pruning", granularity="head", dropout_step=2),
    **SAMPLED_ROWS,
}

# The terms and the parts of methods that have several, each alone.
SAMPLED_TERMS: dict[str, Method] = {
    "token-cutoff span": TokenCutoff(fraction=0.3, unit="span", beta=0),
    "token-cutoff features": TokenCutoff(fraction=0.3, unit="features", alpha=0),
}
TERMS: dict[str, Method] = {
    "unidrop feature": UniDrop(feature=0.3, structure=0, token=0),
    "unidrop layers": UniDrop(feature=0, structure=0.5, token=0),
    "supert heads": SuperT(fraction=0.5, feed_forward=False),
    "supert feed-forward": SuperT(fraction=0.5, heads=False),
    "hiddencut loss": HiddenCut(alpha=0.3, eta=0),
    "hiddencut divergence": HiddenCut(alpha=0.3, gamma=0),
    "scal copies": SCAL(contrast=0),
    "scal contrast": SCAL(adversarial=0),
    **SAMPLED_TERMS,
}
# Rows of the table in which a term looks at a micro-batch as a whole, or at how far it is padded.
BY_MICRO_BATCH: set[str] = {"scal", "sam"}
# Pairs of a row and a model that are refused, with a part of the message.
UNFIT: dict[tuple[str, str], str] = {
    ("unidrop", "vit"): "no 'input_ids'",
    ("unidrop tokens", "vit"): "no 'input_ids'",
    ("scal", "vit"): "embeds no words",
    ("scal copies", "vit"): "embeds no words",
    ("scal contrast", "vit"): "embeds no words",
    ("unidrop", "deberta"): "in one projection",
    ("unidrop feature", "deberta"): "in one projection",
    ("concrete-dropout", "deberta"): "value projection .* cannot be found",
    ("learnable-bernoulli", "deberta"): "value projection .* cannot be found",
    ("contextual-dropout", "deberta"): "in one projection",
    ("neftune", "vit"): "embeds no words",
    ("r3f", "vit"): "embeds no words",
    ("smart", "vit"): "embeds no words",
    ("token-cutoff", "vit"): "embeds no words",
    ("token-cutoff span", "vit"): "embeds no words",
    ("token-cutoff features", "vit"): "embeds no words",
    ("layer-reinit", "albert"): "shares its layers",
    ("supert", "albert"): "shares its layers",
    ("supert heads", "albert"): "shares its layers",
    ("supert feed-forward", "albert"): "shares its layers",
}
# Rows whose first steps are those of plain fine-tuning, to the bit: what they try, they try on a second model.
PLAIN: set[str] = {"finetune", "attendout effects"}
# Rows that only act on weights that training has moved.
ON_MOVED_WEIGHTS: set[str] = {"l2-sp"}
# The first step that is not one of plain fine-tuning, by plan or by chance, where that is not the first.
FIRST_STEP: dict[str, int] = dict.fromkeys(
    ("supert", "supert heads", "supert feed-forward", "layerdrop", "unidrop layers", "attendout effects"), 2
) | {"ad-drop recorded": 2}


def given(model: Any, batch: zoo.Batch) -> dict[str, Any]:
    """Return additional arguments that some methods need."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"optimizer": optimizer, "reward_data": [batch], "train_data": [batch], "total_steps": 4}
