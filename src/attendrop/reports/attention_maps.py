"""Attention maps of texts in a run's model before and after training, or in any single model.

A map has the weights, the attribution of the prediction to them, and the positions that a method drops.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.hooks import evaluating
from attendrop.attention.layers import select_self_attention
from attendrop.attention.plan import Plan
from attendrop.attribution.gradient import attention_attribution, gradient_attribution, integrated_gradient_attribution
from attendrop.errors import AttendropError, check_choice
from attendrop.methods.core.base import Method
from attendrop.methods.core.registry import build_method, given_options, spelled_options
from attendrop.pruning.pruned_model import is_pruned
from attendrop.reports.attention_drops import (
    DropMoment,
    Learnt,
    WatchedPlan,
    acting_in_attention,
    active_epochs,
    record_drops,
)
from attendrop.runs.config import RunConfig
from attendrop.runs.model_loading import load_config, load_for, load_model_and_tokenizer
from attendrop.runs.model_source import check_finished, check_keeps_model
from attendrop.runs.run_folder import read_metrics, read_run
from attendrop.support.models import compute_device, to_device
from attendrop.tasks.base import Task
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.registry import get_task
from attendrop.tasks.tokenization import HEAD
from attendrop.tasks.types.base import TaskType
from attendrop.tasks.types.registry import task_type_of_model

# Integrated gradients are joint over the layers, with 8 Gauss-Legendre nodes.
ATTRIBUTIONS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "gradient": gradient_attribution,
    "integrated_gradient": integrated_gradient_attribution,
}
# The training that is assumed for a model that no run has made.
_STEPS = 1000
_NEW_HEAD = (
    "The model has no trained head for this task: its head is random, and so are its predictions, the attributions and "
    "what is dropped by them. Attention is the model's own."
)
Numbers = NDArray[Any]
Mask = NDArray[np.bool_]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DropSettings:
    """Drops of a method from :func:`acting_in_attention` at a moment, with what a run learnt (None: nothing yet)."""

    method: Method
    moment: DropMoment
    learnt: Learnt | None = None


@dataclass(frozen=True)
class LayerMaps:
    """Maps of one attention layer for one text, each ``(heads, tokens, tokens)``: queries by keys.

    Attributes:
        attention: Weights.
        attribution: Attribution of the prediction to the weights.
        possible: Positions that the model's mask leaves visible, ``(tokens, tokens)``.
        dropped: Positions that the method drops; None without a method.
    """

    attention: Numbers
    attribution: Numbers
    possible: Mask
    dropped: Mask | None = None


@dataclass(frozen=True)
class TextMaps:
    """Maps of one text in one model.

    Attributes:
        prediction: The model's prediction, by column, as in a file of predictions.
        layers: By key of the layer, in the order of execution.
    """

    tokens: tuple[str, ...]
    prediction: Mapping[str, Any]
    layers: Mapping[str, LayerMaps]

    @property
    def predicted(self) -> str:
        """The prediction in words, such as "label yes, probability 0.93"."""
        values = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in self.prediction.items()}
        return ", ".join(f"{key} {value}" for key, value in values.items())


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return tokens as text that people read: without the marks of words' beginnings."""
    found = []
    for number in ids:
        token = str(tokenizer.convert_ids_to_tokens(number))
        # Pieces of WordPiece keep their mark; a part of a character, in vocabularies of bytes, has no text of its own.
        text = token if token.startswith("##") else str(tokenizer.decode([number])).strip()
        found.append(token if not text or "\N{REPLACEMENT CHARACTER}" in text else text)
    return found


def text_maps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    row: Mapping[str, Any],
    drops: DropSettings | None = None,
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
    batch = _batch(model, tokenizer, task_type, row)
    with evaluating(model):
        with torch.no_grad():
            raw = task_type.predict(model, {name: value for name, value in batch.items() if name != "labels"})
        columns = {name: [value] for name, value in row.items()}
        outputs = task_type.row_outputs(raw, columns, tokenizer)
        if "labels" not in batch:
            assumed = [label + 1 if isinstance(label, float) else label for label in task_type.decode(outputs)]
            (target,) = task_type.targets(assumed, BatchEncoding(columns), tokenizer)
            batch = _batch(model, tokenizer, task_type, {**row, "labels": target})
        with ModelAdapter(model) as adapter:
            selected = select_self_attention(adapter.trace(batch), layers)
            positions = WatchedPlan(Plan())  # of all layers
            with torch.no_grad():
                adapter.forward(batch, positions)
            both = [attention_attribution(adapter, batch, selected)]
            both.append(ATTRIBUTIONS[attribution](adapter, batch, selected, "pseudo_label"))
    maps = {}
    for key in both[0]:
        weights, attributions = (found[key][0].detach().float().cpu().numpy() for found in both)
        maps[key] = LayerMaps(weights, attributions, positions.seen[key].possible[0, 0].cpu().numpy())
    if drops is not None:
        drop = record_drops(model, drops.method, batch, drops.moment, learnt=drops.learnt, tokenizer=tokenizer)
        for key, found in maps.items():
            dropped = drop[key].dropped[0].cpu().numpy() if key in drop else np.zeros(found.attention.shape, bool)
            maps[key] = replace(found, dropped=dropped)
    (prediction,) = task_type.prediction_rows(outputs, probabilities=False)
    return TextMaps(tuple(token_texts(tokenizer, row["input_ids"])), prediction, maps)


def _batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task_type: TaskType, row: Mapping[str, Any]
) -> dict[str, Any]:
    """Make a batch of one encoded row, of the columns that the model reads, on its device."""
    accepted = {*inspect.signature(model.forward).parameters} & {*tokenizer.model_input_names, "labels"}
    collated = task_type.collator(tokenizer)([{name: value for name, value in row.items() if name in accepted}])
    return to_device(collated, model.device)


# Models before and after training ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A model whose attention is shown.

    Attributes:
        name: Heading, such as "After training".
        note: Further information about it; may be empty.
        drops: What its method drops; None: no method drops anything in attention.
    """

    name: str
    note: str
    model: PreTrainedModel
    drops: DropSettings | None


@dataclass(frozen=True)
class Stages:
    """Models that are shown beside one another.

    Attributes:
        num_texts: Number of texts of an input; None: unknown.
        max_length: Maximum length in tokens that the run had; None: unknown.
        of_run: Whether the run was trained with the method whose drops are shown.
        long_texts: What the run did with texts that are too long, see :mod:`attendrop.tasks.tokenization`.
    """

    stages: tuple[Stage, ...]
    tokenizer: PreTrainedTokenizerBase
    task_type: TaskType
    num_texts: int | None
    max_length: int | None
    of_run: bool = False
    long_texts: str = HEAD

    @property
    def method(self) -> Method | None:
        """The method whose drops are shown; None: no method drops anything in attention."""
        drops = self.stages[-1].drops
        return None if drops is None else drops.method


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
        found = _of_model(name, method or _with_options(default, settings), seed)
    else:
        check_finished(name)
        found = _of_run(Path(name), run, method, default, settings, seed)
    found.task_type.refuse("attend")
    for stage in found.stages:
        stage.model.to(compute_device(device))  # type: ignore[arg-type]
    return found


def _of_model(name: str, method: Method, seed: int) -> Stages:
    if is_pruned(name):
        model, tokenizer = load_model_and_tokenizer(name, None)
        note = ""
    else:
        set_seed(seed)
        task_type = task_type_of_model(load_config(name), command="attend")
        loaded = load_for(name, files_task(task_type.inputs[: task_type.least_inputs], task_type))
        model, tokenizer = loaded.model, loaded.tokenizer
        note = _NEW_HEAD if loaded.new else ""
    drops = _drops(method, DropMoment(seed, 0, _STEPS), 2, first=True)
    stage = Stage(Path(name).absolute().name, note, model, drops)
    return Stages((stage,), tokenizer, task_type_of_model(model.config), None, None)


def _with_options(method: Method, settings: Mapping[str, Any]) -> Method:
    """Return the method with other values of some options."""
    if not settings:
        return method
    given = given_options(method.name, method.options()) | spelled_options(method.name, settings)
    return build_method(method.name, given)


def _of_run(
    folder: Path,
    run: Mapping[str, Any],
    method: Method | None,
    default: Method,
    settings: Mapping[str, Any],
    seed: int,
) -> Stages:
    metrics = read_metrics(folder) or {}
    config = RunConfig(**run["config"], output_dir=str(folder)).filled(**(run.get("decided") or {}))
    check_keeps_model(str(folder))
    model, tokenizer = load_model_and_tokenizer(str(folder.absolute()), None)
    task_type = task_type_of_model(model.config)
    task = files_task(config.text_columns, task_type) if config.task is None else get_task(config.task)
    own = acting_in_attention(config.regularizer)
    of_run = method is None and own is not None and not settings
    learnt = Learnt.of_run(folder) if of_run else None
    shown = method or _with_options(own or default, settings)
    epochs, steps = len(metrics.get("history", ())), int(metrics.get("planned_steps") or _STEPS)
    moment = DropMoment(seed, 0, max(steps, 1))
    first = _drops(shown, moment, epochs, first=True)
    last = _drops(shown, replace(moment, step=max(steps - 1, 0)), epochs, first=False)
    after = Stage("After training", "", model, None if last is None else replace(last, learnt=learnt))
    before = _before(config, task, first, fitted_head=bool(metrics.get("head_init")))
    stages = (after,) if before is None else (before, after)
    count, cut = len(task.text_columns), config.long_texts or HEAD
    return Stages(stages, tokenizer, task_type, count, config.max_length, of_run=of_run, long_texts=cut)


def _before(config: RunConfig, task: Task, drops: DropSettings | None, *, fitted_head: bool) -> Stage | None:
    """Load the model that a run began with; None, with a warning, if it cannot be loaded any more."""
    set_seed(config.seed)
    try:
        loaded = load_for(config.model, task, config.pooling)
    except AttendropError as error:
        logger.warning("The model before training is not shown: %s", error)
        return None
    note = f"{config.model}. {_NEW_HEAD}" if loaded.new else config.model
    if loaded.new and fitted_head:
        note += " The run began with a head that was fitted to the frozen encoder, which is not repeated here."
    return Stage("Before training", note, loaded.model, drops)


def _drops(method: Method, moment: DropMoment, num_epochs: int, *, first: bool) -> DropSettings | None:
    """Make the settings of a method in the first or last epoch in which it is active; None if it drops nothing."""
    acting = acting_in_attention(method)
    epochs = [] if acting is None else active_epochs(acting, max(2, num_epochs))
    if acting is None or not epochs:
        return None
    return DropSettings(acting, replace(moment, epoch=epochs[0 if first else -1]))
