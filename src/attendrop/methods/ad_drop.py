"""AD-DROP: drop the attention positions that a prediction relies on most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from attendrop import attribution
from attendrop.attention import Plan
from attendrop.errors import AttendropError
from attendrop.masks import candidate_region, draw, origins_of, real_rows
from attendrop.methods.base import Method, Pass, check_choice, check_share
from attendrop.scoring import Call, Edit
from attendrop.sites import Site, parse_layers, select_sites

ATTRIBUTIONS = ("gradient", "integrated_gradient", "attention", "random")
TARGETS = ("pseudo_label", "gold_label")

# Where the paper drops in the first layer only (section 3.2), and in the encoder's self-attention (appendix A.2).
_PAPER_LAYERS = dict.fromkeys(("sst2", "mnli", "qnli", "qqp", "stsb"), "first") | {"translation": "encoder"}


@dataclass(frozen=True)
class ADDrop(Method):
    """Attribution-driven dropout.

    Each training step first attributes the model's prediction to the attention positions (one pass forward, one
    backward, no parameter gradients), then drops positions of high attribution from the scores of the pass that trains.

    Example:
        >>> with regularize(model, ADDrop(p=0.3, q=0.3)) as reg:
        ...     reg.set_epoch(epoch)
        ...     reg.loss(batch).backward()

    Args:
        p: Share of the keys of each row that are candidates, in (0, 1).
        q: Probability with which each candidate is dropped, in (0, 1].
        attribution: ``"gradient"`` (Eq. 5), ``"integrated_gradient"`` (Eq. 3), ``"attention"`` (the weights
            themselves), ``"random"`` (each valid position is a candidate with probability ``p``; no attribution pass).
        target: ``"pseudo_label"``, what the model predicts, or ``"gold_label"``. Regression always uses its gold value.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.sites.select_sites`.
        direction: ``"high"``, or ``"low"`` as in the paper's prior experiment (Fig. 2).
        cross_tuning: Plain fine-tuning in epochs 0, 2, 4, ... and AD-DROP in 1, 3, 5, ... (Algorithm 1; counted from
            0).
        scope: Of integrated gradients, ``"joint"`` or ``"layerwise"``.
        rule: Of integrated gradients, ``"gauss_legendre"`` or ``"riemann"``.
        steps: Of integrated gradients, the number of nodes. The paper's setting is layerwise, riemann, 20.
        units: ``"attention"``, or ``"hidden"``: the same rule on the hidden units that the heads put out, token by
            token. Dropped units are zero and the others of the token are scaled up to keep its mass.

    Raises:
        AttendropError: An option is out of its range.

    Source: Yang et al. (2022), https://arxiv.org/abs/2210.05883. Deviations: one backward pass serves all layers (the
    reference code takes one for each); ``steps`` defaults to 8 Gauss-Legendre nodes; a row without signal has no
    candidates; p and q default to 0.3 (the paper searches both for each data set). ``units="hidden"`` is the paper's
    outlook, and its rule here is ours.
    """

    name: ClassVar[str] = "ad-drop"
    summary: ClassVar[str] = "drops the attention positions that a prediction relies on most"
    paper: ClassVar[str] = (
        "Yang et al. (2022), AD-DROP: Attribution-Driven Dropout for Robust Language Model Fine-Tuning"
    )

    bibtex: ClassVar[str] = """@inproceedings{yang2022addrop,
  title     = {{AD-DROP}: Attribution-Driven Dropout for Robust Language Model Fine-Tuning},
  author    = {Yang, Tao and Deng, Jinghao and Quan, Xiaojun and Wang, Qifan and Nie, Shaoliang},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {35},
  year      = {2022},
  url       = {https://arxiv.org/abs/2210.05883}
}"""

    p: float = 0.3
    q: float = 0.3
    attribution: str = "gradient"
    target: str = "pseudo_label"
    layers: str | int | Sequence[int] = "all"
    direction: str = "high"
    cross_tuning: bool = True
    scope: str = "joint"
    rule: str = "gauss_legendre"
    steps: int = 8
    units: str = "attention"

    def __post_init__(self) -> None:
        check_share("p", self.p, one_allowed=False)
        check_share("q", self.q, one_allowed=True)
        check_choice("attribution", self.attribution, ATTRIBUTIONS)
        check_choice("target", self.target, TARGETS)
        check_choice("direction", self.direction, ("high", "low"))
        check_choice("scope", self.scope, attribution.SCOPES)
        check_choice("rule", self.rule, attribution.RULES)
        check_choice("units", self.units, ("attention", "hidden"))
        if self.steps < 1:
            raise AttendropError(f"steps={self.steps} must be at least 1.")
        if self.units == "hidden" and self.attribution == "attention":
            raise AttendropError("attribution='attention' has no meaning for units='hidden'; use 'gradient'.")
        if not isinstance(self.layers, str | int):
            object.__setattr__(self, "layers", tuple(self.layers))
        parse_layers(self.layers)

    @staticmethod
    def paper_layers(task: str) -> str:
        """The layers in which the paper drops on a task: a GLUE name in lower case, or ``"translation"``."""
        return _PAPER_LAYERS.get(task, "all")

    def active(self, epoch: int) -> bool:
        return not self.cross_tuning or epoch % 2 == 1

    def needs_epoch(self) -> bool:
        return self.cross_tuning

    def plan(self, step: Pass) -> Plan:
        sites = select_sites(step.attachment.sites, self.layers)
        return _DropHigh(self, step, {site.key for site in sites}, self._attribute(step, sites))

    def _attribute(self, step: Pass, sites: Sequence[Site]) -> dict[str, Tensor]:
        options: dict[str, Any] = {"target": self.target, "units": self.units}
        options |= {"loss_scale": step.loss_scale, "inputs": step.inputs}
        match self.attribution:
            case "gradient":
                return attribution.gradient(step.attachment, step.batch, sites, **options)
            case "integrated_gradient":
                options |= {"scope": self.scope, "rule": self.rule, "steps": self.steps}
                return attribution.integrated_gradient(step.attachment, step.batch, sites, **options)
            case "attention":
                return attribution.attention(step.attachment, step.inputs, sites)
            case _:
                return {}


class _DropHigh(Plan):
    """Drops candidates at the chosen sites; each site's mask is made when the site first runs, and kept."""

    def __init__(self, method: ADDrop, step: Pass, keys: set[str], attributions: dict[str, Tensor]) -> None:
        super().__init__()
        self.method = method
        self.step = step
        self.keys = keys
        self.attributions = attributions
        self.edits: dict[str, Edit] = {}
        self.origins: dict[str, tuple[Tensor | None, Tensor]] = {}

    def wants(self, site: Site) -> bool:
        return site.key in self.keys

    def edit(self, call: Call) -> Edit:
        key = call.site.key
        if key not in self.edits:
            choose = self._on_attention if self.method.units == "attention" else self._on_hidden
            self.edits[key] = choose(call)
        return self.edits[key]

    def _on_attention(self, call: Call) -> Edit:
        rows = real_rows(call)
        if self.method.attribution == "random":
            drop = self._draw(self.method.p * self.method.q, call, call.shape)
            drop = drop if call.valid is None else drop & call.valid
        else:
            found = self.attributions.pop(call.site.key)
            region = candidate_region(found, call.valid, self.method.p, self.method.direction)
            drop = region.mask & self._draw(self.method.q, call, call.shape)
            rows = region.signal if rows is None else region.signal & rows
        self._report(call, drop, rows, call.valid)
        return Edit(drop=drop)

    def _on_hidden(self, call: Call) -> Edit:
        return Edit(output=partial(self._drop_hidden, call, {}))

    def _drop_hidden(self, call: Call, memory: dict[str, Tensor], output: Tensor) -> Tensor:
        """Drop units of ``output``, ``(batch, query, heads, dim)``; a token's units form one row."""
        if "kept" not in memory:
            batch, queries, heads, dim = output.shape
            shape = (batch, 1, queries, heads * dim)
            rows = real_rows(call)
            if self.method.attribution == "random":
                drop = self._draw(self.method.p * self.method.q, call, shape)
            else:
                found = self.attributions.pop(call.site.key).reshape(shape)
                region = candidate_region(found, None, self.method.p, self.method.direction)
                drop = region.mask & self._draw(self.method.q, call, shape)
                rows = region.signal if rows is None else rows & region.signal
            drop = drop if rows is None else drop & rows
            self._report(call, drop, rows, None)
            kept = ~drop
            scale = shape[-1] / kept.sum(-1, keepdim=True).clamp(min=1)
            memory["kept"] = (kept * scale).to(output.dtype).reshape(output.shape)
        return output * memory["kept"]

    def _draw(self, p: float, call: Call, shape: tuple[int, int, int, int]) -> Tensor:
        kind, batch = call.site.kind, call.shape[0]
        mask, origins = self.origins.get(kind, (None, None))
        if origins is None or mask is not call.valid or len(origins) != batch:
            origins = origins_of(call)
            self.origins[kind] = (call.valid, origins)
        if self.method.units == "hidden":
            origins = origins * torch.tensor([1, 0], device=origins.device)
        return draw(p, self.step.key, call.site.key, shape, origins, call.device)

    def _report(self, call: Call, drop: Tensor, rows: Tensor | None, valid: Tensor | None) -> None:
        """Count what was dropped, of the valid positions in the ``rows`` that could have candidates (None: in all)."""
        columns = torch.tensor(drop.shape[-1]) if valid is None else valid.sum(-1, keepdim=True)
        # Bytes add up faster than booleans. Padding rows have candidates where attention weights themselves rank them.
        dropped = drop.view(torch.uint8).sum(-1, keepdim=True, dtype=torch.int32)
        if rows is None:
            rows = torch.ones(1, dtype=torch.bool, device=drop.device)
        possible = (rows * columns.to(drop.device)).expand(*drop.shape[:-1], 1).sum()
        self.step.report(call.site.key, (dropped * rows).sum(), possible)
