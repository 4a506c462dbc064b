"""What a method declares: facts, capabilities, compatibility rules, published settings, layer rankings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

# Traits, to which rules refer.
ANY = "any method"
DECIDES_PASSES = "decides which passes a step takes"
EXCHANGES_WEIGHTS = "puts other weights into the model between steps"
REPLACES_PARAMETERS = "replaces the parameters of a pass"
REPLACES_DROPOUT = "replaces the model's own dropout of attention weights"
SCORES_ROWS = "needs labelled rows set aside"
SKIPS_BLOCKS = "leaves out blocks"
SECOND_MODEL = "trains a second model"


@dataclass(frozen=True)
class Rule:
    """Compatibility rule: methods with the traits, or names, ``one`` and ``other`` are not combined, for a reason."""

    one: str
    other: str
    reason: str


@dataclass(frozen=True)
class MethodInfo:
    """Facts of a method: its identity, its row in the table of the documentation, and its capabilities.

    Attributes:
        name: Name on the command line and in checkpoints: letters, digits, ``-`` and ``_``.
        summary: Description in one line.
        paper: Source, as "Authors (year), title"; empty if there is none.
        link: Address of the paper.
        evidence: How it compared with plain fine-tuning when measured, for logs and documentation: for each measured
            setting, the options that are not the defaults, and a sentence. Logs quote it for exactly that setting.
        compared: Whether comparisons include it where no methods are named.
        acts_on: Some of ``scores``, ``weights``, ``heads``, ``layers``, ``hidden states``, ``embeddings``, ``inputs``,
            ``parameters``, ``gradients`` and ``loss``.
        forward: Forward passes per step; plain fine-tuning takes one.
        backward: Backward passes per step.
        state: State kept between steps.
        tasks: Supported tasks.
        units: The units whose dropped fraction is logged.
        order: Position among several methods that change or read the same thing, such as the batch, the outputs of
            heads or weights: lower numbers come first, then names. The order within a composition has no effect.
        traits: Traits that restrict combinations, mapped to the option value under which the method has them:
            ``"where=weights"``, ``"structure above 0"``; empty if always.
        rules: The method's own compatibility rules.
        uses_attention: Whether it needs a model with supported attention layers; if False, any model works.
        self_attention_only: Whether it acts on self-attention only: the selected layers of the encoder, or, if there
            are none, those of the decoder.
        adds_penalty: Whether it, or its state, defines a penalty.
        edits_gradients: Whether its state defines :meth:`MethodState.edit_gradients`.
        edits_pretrained_weights: Whether it changes weights of the model even if they are frozen. A PEFT adapter is
            saved without them, so the method is refused with an adapter.
        reads_weights: Whether its penalty is computed from weights of the model itself.
        skips_parameters: Whether some parameters may get no gradient in a step (needed for DDP).
        needs_loss_scale: Whether it reads gradients that are multiplied by the loss scale of float16.
        reports_all_effects: Whether the reported dropped units are its only effect, so that zero means no effect.
        inactive_epochs_hint: Sentence for warnings: the epochs in which it is inactive, and how to activate it in all.
    """

    name: str
    summary: str = ""
    paper: str = ""
    link: str = ""
    evidence: tuple[tuple[Mapping[str, Any], str], ...] = ()
    compared: bool = False
    acts_on: tuple[str, ...] = ()
    forward: str = "1"
    backward: str = "1"
    state: str = "none"
    tasks: str = "all"
    units: str = "attention positions"
    order: int = 0
    traits: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    uses_attention: bool = True
    self_attention_only: bool = False
    adds_penalty: bool = False
    edits_gradients: bool = False
    edits_pretrained_weights: bool = False
    reads_weights: bool = False
    skips_parameters: bool = False
    needs_loss_scale: bool = False
    reports_all_effects: bool = True
    inactive_epochs_hint: str = ""

    def citation(self) -> str:
        """Return the paper in Markdown, with its link if it has one; empty if there is none."""
        return f"[{self.paper}]({self.link})" if self.link else self.paper

    def measured(self) -> str:
        """Return the evidence in sentences that name the setting of each; empty if there is none."""
        found = []
        for options, sentence in self.evidence:
            setting = " ".join(f"{name}={value}" for name, value in options.items()) or "the defaults"
            found.append(f"Measured with {setting}: {sentence}")
        return " ".join(found)

    @classmethod
    def of_several(cls, infos: Sequence[MethodInfo]) -> MethodInfo:
        """Return the facts of a composition."""
        any_of = ("uses_attention", "adds_penalty", "edits_gradients", "skips_parameters", "needs_loss_scale")
        facts: dict[str, Any] = {name: any(getattr(info, name) for info in infos) for name in any_of}
        return cls("+".join(info.name for info in infos), "several methods at once", **facts)


RULES = (
    Rule(DECIDES_PASSES, DECIDES_PASSES, "Both control the passes of a training step."),
    Rule(EXCHANGES_WEIGHTS, EXCHANGES_WEIGHTS, "Both replace the model's weights during training."),
    Rule(
        REPLACES_PARAMETERS,
        REPLACES_PARAMETERS,
        "Both replace the parameters of a pass, and only one replacement would take effect.",
    ),
    Rule(REPLACES_DROPOUT, REPLACES_DROPOUT, "Both replace the model's dropout of attention weights."),
    Rule(SCORES_ROWS, SCORES_ROWS, "Both need held-out labelled rows."),
)


def rules_among(own: Iterable[Sequence[Rule]]) -> list[Rule]:
    """Return the general rules, followed by each method's ``own`` rules."""
    return list(dict.fromkeys((*chain.from_iterable(own), *RULES)))


@dataclass(frozen=True)
class Preset:
    """Options of a method in a published setting.

    Attributes:
        training: Options of the run, such as ``max_length``, that differ from the setting's defaults.
        options: Options of the method.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerRanking:
    """Ranking of layers for pruning.

    Attributes:
        ranked_by: Name of the criterion, for reports.
        drop_fractions: Fraction of dropped units, by layer key. Layers with the highest fractions are pruned first.
        told_from_noise: Whether the fractions are statistically significant; otherwise they are used on request only.
    """

    ranked_by: str
    drop_fractions: Mapping[str, float]
    told_from_noise: bool = True
