"""Attention maps of texts in a run's model before and after training, or in any single model.

A map has the weights, the attribution of the prediction to them, and the positions that a method drops, which are
recorded from a training step of the method itself.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block
from attendrop.attention.hooks import evaluating, forked_rng
from attendrop.attention.layers import AttentionLayer, select_self_attention
from attendrop.attention.plan import AttentionCall, AttentionEdit, BlockEdit, CombinedPlan, Plan
from attendrop.attribution.gradient import attention_attribution, gradient_attribution, integrated_gradient_attribution
from attendrop.errors import AttendropError, check_choice
from attendrop.methods.core.base import Compose, Method
from attendrop.methods.core.context import TrainingContext, tokens_of
from attendrop.methods.core.registry import build_method, given_options, spelled_options
from attendrop.pruning.pruned_model import is_pruned
from attendrop.runs.config import RunConfig
from attendrop.runs.model_loading import load_config, load_for
from attendrop.runs.run_folder import check_finished, check_keeps_model, read_metrics, read_run
from attendrop.support.models import ROW_INDEX, Batch, compute_device, number_of_rows, to_device
from attendrop.tasks.base import task_type_of_model
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.registry import get_task
from attendrop.tasks.tokenization import HEAD
from attendrop.tasks.types.base import TaskType
from attendrop.training.regularization import Regularization, labelled_data, run_model

# Integrated gradients are joint over the layers, with 8 Gauss-Legendre nodes.
ATTRIBUTIONS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "gradient": gradient_attribution,
    "integrated_gradient": integrated_gradient_attribution,
}
# What a method acts on, see MethodInfo, if it can drop positions of attention.
IN_ATTENTION = frozenset({"scores", "weights", "heads", "layers"})
_NEW_HEAD = (
    "The model has no trained head for this task: its head is random, and so are its predictions, the attributions and "
    "what is dropped by them. Attention is the model's own."
)
Numbers = NDArray[Any]
logger = logging.getLogger(__name__)


# What a method drops -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drops:
    """A method, from :func:`acting_in_attention`, at a moment of a training.

    Attributes:
        step, total_steps: Number of optimizer steps taken before, and planned.
        epoch: Number of the epoch, from 0; the method must be active in it.
        learnt: The ``metrics.json`` of a finished run, and the tensors that it saved by the name of their file. None:
            the method has learnt nothing yet; one that searches before it trains is then at the first of its steps.
    """

    method: Method
    seed: int = 0
    step: int = 0
    total_steps: int = 1000
    epoch: int = 0
    learnt: tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]] | None = None


@dataclass(frozen=True)
class LayerDrops:
    """Positions of one attention layer in one pass that are neither padding nor hidden by the model's mask.

    ``possible``, ``(batch, 1, query, key)``, are all of them; ``dropped``, ``(batch, heads, query, key)``, some.
    """

    layer: AttentionLayer
    possible: Tensor
    dropped: Tensor


def acting_in_attention(method: Method) -> Method | None:
    """Return the method, or the methods of a composition, that can drop positions of attention; None if there are none.

    A skipped layer and a dropped head count as all of their positions.
    """
    parts = [part for part in method.parts if part.info.uses_attention and IN_ATTENTION & set(part.info.acts_on)]
    if len(parts) == len(method.parts):
        return method
    return Compose(*parts) if len(parts) > 1 else parts[0] if parts else None


def record_drops(model: PreTrainedModel, drops: Drops, batch: Batch, tokenizer: Any = None) -> dict[str, LayerDrops]:
    """Run a method's training step on a batch without an update, and record what its first changed pass drops.

    The model's own dropout is off, and the model stays unchanged. The batch has labels and is on the model's device;
    the tokenizer is for methods that change tokens. The attention layers are by key, in the order of execution; none
    if no pass of the step changes anything.

    Raises:
        AttendropError: The method cannot act on the model or the batch, or what it learnt was not saved.
    """
    passes: list[dict[str, LayerDrops]] = []

    def compute_loss(given: Batch, plan: Plan | None = None, other: nn.Module | None = None) -> tuple[Tensor, Any]:
        if plan is None:
            return run_model(other or model, given)
        assert regularization.adapter is not None
        watched = WatchedPlan(plan)
        regularization.adapter.bind(watched)
        found = run_model(model, given, watched)
        if watched.skipped and not watched.seen:  # the shapes of layers are known from those that run
            every = WatchedPlan(Plan())
            with torch.no_grad():
                regularization.adapter.forward(given, every)
            watched.seen = every.seen
        passes.append(watched.drops(regularization.adapter.attention_layers))
        return found

    training = TrainingContext(
        model=model,
        evaluate=run_model,
        seed=drops.seed,
        total_steps=drops.total_steps,
        optimizer=torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.0),
        metric=lambda logits, labels: 0.0,
        reward_data=labelled_data("reward_data", [batch], model.device),
        train_data=labelled_data("train_data", [batch], model.device),
        **tokens_of(tokenizer),
    )
    with forked_rng(model), evaluating(model), ExitStack() as stack:
        stack.callback(setattr, model, "training", False)
        model.training = True  # methods look at the model's own mode; its modules, and so its dropout, stay off
        torch.manual_seed(drops.seed + drops.step)
        regularization = Regularization(training, drops.method)
        stack.callback(regularization.close)
        if drops.learnt is not None:
            regularization.method_state.restore(*drops.learnt)
        regularization.set_epoch(drops.epoch)
        regularization.begin_step(drops.step)
        with torch.enable_grad():
            if drops.method.needs_rows:  # what is recorded of rows in one pass is dropped in the next
                batch = {**batch, ROW_INDEX: torch.arange(number_of_rows(batch))}
                regularization.set_epoch(max(0, drops.epoch - 1))  # with cross-tuning, a plain one
                regularization.compute(batch, compute_loss)[0].backward()  # type: ignore[no-untyped-call]
                model.zero_grad()
                passes.clear()
                regularization.set_epoch(drops.epoch)
                regularization.begin_step(drops.step + 1)
            regularization.compute(batch, compute_loss)
    return passes[0] if passes else {}


class WatchedPlan(CombinedPlan):
    """Plan that wraps another one, and records what it drops.

    A position is dropped if the plan drops its score, multiplies its weight by less than half of the largest factor in
    the layer, or sets its head to zero; and so are all positions of a layer with constant attention, or that is
    skipped.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__([plan])
        self.acts_on = plan.acts_on | {"attention"}
        self.seen: dict[str, LayerDrops] = {}
        self.skipped: dict[str, AttentionLayer] = {}

    def wants(self, layer: AttentionLayer) -> bool:
        return True

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        edit, rows = super().edit(call), call.valid_queries()
        batch, _, queries, keys = call.shape
        possible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device)
        if call.valid is not None:
            possible = call.valid.any(1, keepdim=True)
        possible = (possible if rows is None else possible & rows).expand(batch, 1, queries, keys)
        found = LayerDrops(call.layer, possible, torch.zeros(call.shape, dtype=torch.bool, device=call.device))
        found = self.seen.setdefault(call.layer.key, found)
        if edit is None:
            return None

        def note(dropped: Tensor) -> None:
            found.dropped.logical_or_(dropped & found.possible)

        if edit.constant:
            note(torch.ones_like(possible))
        if edit.drop is not None:
            note(edit.drop)
        weights, output = edit.weights, edit.output

        def watched_weights(before: Tensor) -> Tensor:
            assert weights is not None
            after = weights(before)
            kept = before > 0
            factor = after.detach() / torch.where(kept, before, 1).detach()
            note(kept & ((factor < factor.max() / 2) | (after == 0)))
            return after

        def watched_output(before: Tensor) -> Tensor:
            assert output is not None
            after = output(before)
            note(((after == 0).all(-1) & (before != 0).any(-1)).transpose(1, 2).unsqueeze(-1))
            return after

        return replace(edit, weights=weights and watched_weights, output=output and watched_output)

    def block(self, block: Block) -> BlockEdit | None:
        edit = super().block(block)
        if edit is not None and edit.skip:
            self.skipped |= {layer.key: layer for layer in block.attention_layers}
        return edit

    def drops(self, layers: list[AttentionLayer]) -> dict[str, LayerDrops]:
        """Return what was dropped in each layer that ran or was skipped, in the order of ``layers``."""
        found = dict(self.seen)
        for key, layer in self.skipped.items():
            like = next((drops for drops in self.seen.values() if drops.layer.kind == layer.kind), None)
            if like is not None:
                found[key] = LayerDrops(layer, like.possible, like.possible.expand(like.dropped.shape))
        return {layer.key: found[layer.key] for layer in layers if layer.key in found}


# Maps of a text ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerMaps:
    """Maps of one attention layer for one text, each ``(heads, tokens, tokens)``: queries by keys.

    They are the weights, the attribution of the prediction to these, and the positions that the method drops (None
    without a method). ``possible``, ``(tokens, tokens)``, are the positions that the model's mask leaves visible.
    """

    attention: Numbers
    attribution: Numbers
    possible: NDArray[np.bool_]
    dropped: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class TextMaps:
    """Maps of one text in one model, by key of the layer, in the order of execution.

    The prediction is the model's, by column, as in a file of predictions.
    """

    tokens: tuple[str, ...]
    prediction: Mapping[str, Any]
    layers: Mapping[str, LayerMaps]

    @property
    def predicted(self) -> str:
        """The prediction in words, such as "label yes, probability 0.93"."""
        values = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in self.prediction.items()}
        return ", ".join(f"{key} {value}" for key, value in values.items())


def text_maps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    row: Mapping[str, Any],
    drops: Drops | None = None,
    attribution: str = "gradient",
    layers: str | int | Sequence[int] = "all",
) -> TextMaps:
    """Compute the maps of one encoded text, ``row``.

    The model's own dropout is off. What is attributed is the score of the model's prediction, see
    :func:`attendrop.attribution.targets.fix_target`. Where ``row`` has no ``"labels"``, the prediction takes their
    place; for a predicted number it is that number plus one, so that the attributed score, minus the squared error,
    rises with the prediction.

    The ``attribution`` is one of ``ATTRIBUTIONS``. Of the ``layers``, see
    :func:`attendrop.attention.layers.select_layers`, only the encoder's self-attention is shown, or that of a
    decoder-only model.

    Raises:
        AttendropError: There is no such attribution, the model is not supported, or the method cannot act on it.
    """
    check_choice("attribution", attribution, tuple(ATTRIBUTIONS))
    accepted = {*inspect.signature(model.forward).parameters} & {*tokenizer.model_input_names, "labels"}

    def batch_of(given: Mapping[str, Any]) -> dict[str, Any]:
        collated = task_type.collator(tokenizer)([{name: value for name, value in given.items() if name in accepted}])
        return to_device(collated, model.device)

    batch = batch_of(row)
    with evaluating(model):
        with torch.no_grad():
            raw = task_type.predict(model, {name: value for name, value in batch.items() if name != "labels"})
        columns = {name: [value] for name, value in row.items()}
        outputs = task_type.row_outputs(raw, columns, tokenizer)
        if "labels" not in batch:
            assumed = [label + 1 if isinstance(label, float) else label for label in task_type.decode(outputs)]
            (target,) = task_type.targets(assumed, BatchEncoding(columns), tokenizer)
            batch = batch_of({**row, "labels": target})
        with ModelAdapter(model) as adapter:
            selected = select_self_attention(adapter.trace(batch), layers)
            positions = WatchedPlan(Plan())  # of all layers
            with torch.no_grad():
                adapter.forward(batch, positions)
            both = [attention_attribution(adapter, batch, selected)]
            both.append(ATTRIBUTIONS[attribution](adapter, batch, selected, "pseudo_label"))
    recorded = {} if drops is None else record_drops(model, drops, batch, tokenizer)
    maps = {}
    for key in both[0]:
        weights, attributions = (found[key][0].detach().float().cpu().numpy() for found in both)
        dropped = None
        if drops is not None:
            dropped = recorded[key].dropped[0].cpu().numpy() if key in recorded else np.zeros(weights.shape, bool)
        maps[key] = LayerMaps(weights, attributions, positions.seen[key].possible[0, 0].cpu().numpy(), dropped)
    (prediction,) = task_type.prediction_rows(outputs, probabilities=False)
    tokens = []
    for number in row["input_ids"]:
        token = str(tokenizer.convert_ids_to_tokens(number))
        # Pieces of WordPiece keep their mark; a part of a character, in vocabularies of bytes, has no text of its own.
        text = token if token.startswith("##") else str(tokenizer.decode([number])).strip()
        tokens.append(token if not text or "\N{REPLACEMENT CHARACTER}" in text else text)
    return TextMaps(tuple(tokens), prediction, maps)


# Models before and after training ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A model whose attention is shown, with a heading, such as "After training", and a note, which may be empty.

    ``drops`` is what its method drops; None: no method drops anything in attention.
    """

    name: str
    note: str
    model: PreTrainedModel
    drops: Drops | None = None


@dataclass(frozen=True)
class Stages:
    """Models that are shown beside one another.

    Attributes:
        num_texts: Number of texts of an input; None: unknown.
        max_length: Maximum length in tokens that the run had; None: unknown.
        long_texts: What the run did with texts that are too long, see :mod:`attendrop.tasks.tokenization`.
        method: The method whose drops are shown; None: no method drops anything in attention.
    """

    stages: tuple[Stage, ...]
    tokenizer: PreTrainedTokenizerBase
    task_type: TaskType
    num_texts: int | None
    max_length: int | None
    long_texts: str = HEAD
    method: Method | None = None


def load_stages(
    name: str,
    method: Method | None,
    default: Method,
    *,
    settings: Mapping[str, Any] = {},
    seed: int = 0,
    device: str = "auto",
) -> Stages:
    """Load what is shown for a model.

    For the folder of a run: its base model, with the head with which training began if that was random, and the trained
    model. The drops are those of ``method``, or of the run's (of the second training, if it trained again) or, if that
    drops nothing in attention, of ``default``, both with other options by ``settings``; ``seed`` determines them, and
    the head of a model that has none.

    Raises:
        AttendropError: The run is not finished, its model was not kept, or the model cannot be loaded; or the method
            has no such options.
    """
    run = read_run(Path(name)) if Path(name).is_dir() else None
    if run is None:
        found, own, epochs, steps = _of_model(name, seed), None, 2, 1000
    else:
        check_finished(name)
        metrics = read_metrics(Path(name)) or {}
        config = RunConfig(**run["config"], output_dir=name).filled(**(run.get("decided") or {}))
        found, own = _of_run(Path(name), config, metrics), acting_in_attention(config.regularizer)
        epochs, steps = len(metrics.get("history", ())), int(metrics.get("planned_steps") or 1000)
    found.task_type.refuse("attend")
    shown = method
    if shown is None:
        shown = own or default
        if settings:
            given = given_options(shown.name, shown.options()) | spelled_options(shown.name, settings)
            shown = build_method(shown.name, given)
    acting = acting_in_attention(shown)
    active: list[int] = []
    if acting is not None:  # the epochs in which all of its parts are active or, if there are none, any part
        every = range(max(2, epochs))
        together = [epoch for epoch in every if all(part.active(epoch) for part in acting.parts)]
        active = together or [epoch for epoch in every if acting.active(epoch)]
    stages = found.stages
    if acting is not None and active:
        first = Drops(acting, seed, 0, steps, active[0])
        stages = tuple(replace(stage, drops=first) for stage in stages)
        if run is not None:  # the last is the trained one
            last = replace(first, step=steps - 1, epoch=active[-1])
            if method is None and own is not None and not settings:
                files = [file for file in sorted(Path(name).glob("*.safetensors")) if not file.stem.startswith("model")]
                last = replace(last, learnt=(metrics, {file.stem: load_file(file) for file in files}))
            stages = (*stages[:-1], replace(stages[-1], drops=last))
    for stage in stages:
        stage.model.to(compute_device(device))  # type: ignore[arg-type]
    return replace(found, stages=stages, method=acting if active else None)


def _of_model(name: str, seed: int) -> Stages:
    """Load a model that no run has made, without drops."""
    if is_pruned(name):
        model, tokenizer = load_for(name, None)[:2]
        note = ""
    else:
        set_seed(seed)
        task_type = task_type_of_model(load_config(name), command="attend")
        loaded = load_for(name, files_task(task_type.inputs[: task_type.least_inputs], task_type))
        model, tokenizer, note = loaded.model, loaded.tokenizer, _NEW_HEAD if loaded.new else ""
    stage = Stage(Path(name).absolute().name, note, model)
    return Stages((stage,), tokenizer, task_type_of_model(model.config), None, None)


def _of_run(folder: Path, config: RunConfig, metrics: Mapping[str, Any]) -> Stages:
    """Load the model of a run, and the one that it began with, without drops.

    Only the trained one, with a warning, if the other cannot be loaded any more.
    """
    check_keeps_model(str(folder))
    model, tokenizer = load_for(str(folder.absolute()), None)[:2]
    task_type = task_type_of_model(model.config)
    task = files_task(config.text_columns, task_type) if config.task is None else get_task(config.task)
    stages = [Stage("After training", "", model)]
    set_seed(config.seed)
    try:
        begun = load_for(config.model, task, config.pooling)
    except AttendropError as error:
        logger.warning("The model before training is not shown: %s", error)
    else:
        note = f"{config.model}. {_NEW_HEAD}" if begun.new else config.model
        if begun.new and metrics.get("head_init"):
            note += " The run began with a head that was fitted to the frozen encoder, which is not repeated here."
        stages.insert(0, Stage("Before training", note, begun.model))
    long_texts = config.long_texts or HEAD
    count = len(task.text_columns)
    return Stages(tuple(stages), tokenizer, task_type, count, config.max_length, long_texts=long_texts)
