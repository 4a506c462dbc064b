"""Loading of pre-trained models: safetensors only, no remote code, no silently missing weights; and new adapters.

:func:`examine` says whether a model is supported, from its configuration alone.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto import modeling_auto
from transformers.utils.hub import cached_file

from attendrop.attention.adapter import find_attention_layers
from attendrop.attention.interface import find_attention_modules
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.tracing import example_inputs, example_pixels
from attendrop.attribution.predictions import declare_output
from attendrop.errors import AttendropError
from attendrop.pruning import pruned_model
from attendrop.runs.config import LoraOptions
from attendrop.runs.run_folder import check_whole, is_baseline
from attendrop.support.files import MINILM_HUB_ID, first_line, resolve_model
from attendrop.support.models import freeze_unsaved
from attendrop.tasks.base import TASK_TYPES, Task, task_type_of_model
from attendrop.tasks.table import plain
from attendrop.tasks.tokenization import fit_tokenizer
from attendrop.tasks.types import model_classes
from attendrop.tasks.types.base import TaskType
from attendrop.wording import names_of

logger = logging.getLogger(__name__)

# Heads to build a model with if its configuration names no class, in order of preference.
_HEADS = (
    *("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "SEQ_TO_SEQ_CAUSAL_LM"),
    *("SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "CTC", "IMAGE_TEXT_TO_TEXT"),
)
# Exceptions when a model is built from its configuration alone and run.
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ImportError, ArithmeticError)


class Loaded(NamedTuple):
    """Loaded model, in evaluation mode, in float32."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    new: frozenset[str] = frozenset()  # names of parameters that no file has, such as a new head's; they are random


def load_for(name: str, task: Task | None, pooling: str = "auto") -> Loaded:
    """Load a model with the head of a task; ``name`` is as for :func:`attendrop.support.files.resolve_model`.

    The ``task`` determines the size, the label names and the loss of the head; a new head is initialized if the model
    has none that fits. None: the model is fine-tuned and keeps its head. ``pooling`` is what the head of the task
    reads: ``"mean"``, ``"cls"`` or ``"auto"``, see :func:`default_pooling`.

    Raises AttendropError if the model cannot be found or loaded, lacks files, has pickled weights only, needs code of
    its own, or (with ``task=None``) has no trained head.
    """
    _check_folder(name)
    if pruned_model.is_pruned(name) or pruned_model.is_adapter(name):
        if task is not None:
            refuse_untrainable(name)
        with load_errors(name), pruned_model.without_report():
            model = pruned_model.load_model(name)
            model = model.model if pruned_model.is_pruned(name) else model
            task_type = task_type_of_model(model.config)
            tokenizer = task_type.load_tokenizer(name)
        declare_output(model, task_type.output_kind)
        fit_tokenizer(name, model, tokenizer)
        return Loaded(model, tokenizer)
    place = resolve_model(name)
    if Path(place).is_dir() and not any(Path(place).glob("*.safetensors")):
        raise AttendropError(
            f"'{place}' holds no safetensors weights; pickled ones, which can run any code, save by save_pretrained."
        )
    with load_errors(name), pruned_model.without_report():
        config = model_classes.read_config(place)
        task_type = task_type_of_model(config) if task is None else task.type
        trained_for = list((getattr(config, "id2label", None) or {}).values())
        if task is not None:
            task_type.configure(config)
            if task_type.one_vector:
                model_classes.configure_pooling(config, default_pooling(name, config) if pooling == "auto" else pooling)
                if trained_pooling(name) == "cls":
                    setattr(config, model_classes.FIRST_TOKEN, True)
        how: Any = {"use_safetensors": True, "dtype": "float32", "trust_remote_code": False, "config": config}
        how |= {"ignore_mismatched_sizes": task is not None, "output_loading_info": True}
        model, found = task_type.model_class(config).from_pretrained(place, **how)
        tokenizer = task_type.load_tokenizer(place)
    freeze_unsaved(model)
    declare_output(model, task_type.output_kind)
    missing, resized = sorted(found["missing_keys"]), sorted(key[0] for key in found["mismatched_keys"])
    # Weights that are in no file, except those of a head of a task, and a head for other classes.
    body = f"{model.base_model_prefix}."
    in_body, in_head = ([key for key in missing if key.startswith(body) is inside] for inside in (True, False))
    if any(key.startswith(body) for key in resized):
        raise AttendropError(f"The weights of {name!r} do not fit its configuration: {resized[0]} has another shape.")
    if task is None and missing:
        raise AttendropError(f"The model {name!r} has no trained head ({missing[0]} is missing): fine-tune it first.")
    for keys in filter(None, (in_body, in_head if task_type.generates else [])):
        told = "%d weights of %s are not in its files and start at random, such as %s."
        logger.warning(told, len(keys), name, keys[0])
    if resized:
        logger.warning("The head of %s has another number of outputs; a new one takes its place.", name)
    named = not all(label.startswith("LABEL_") for label in trained_for)  # which transformers calls them by default
    as_many = not in_head and len(trained_for) == len(task_type.output_names) > 1
    if named and as_many and list(map(plain, trained_for)) != list(map(plain, task_type.output_names)):
        told = "The head of %s is kept, which is for other classes: its outputs for %s start as those for %s."
        logger.warning(told, name, names_of(trained_for), names_of(task_type.output_names))
    fit_tokenizer(name, model, tokenizer)
    task_type.prepare(model, tokenizer)
    return Loaded(model, tokenizer, frozenset([*missing, *resized]))


def load_tokenizer(name: str, task: Task) -> PreTrainedTokenizerBase:
    """Load only the tokenizer of a model; raises AttendropError as :func:`load_for` does."""
    with load_errors(name):
        found: PreTrainedTokenizerBase = task.type.load_tokenizer(resolve_model(name))
        return found


def load_config(name: str) -> PreTrainedConfig:
    """Load only the configuration of a model; raises AttendropError as :func:`load_for` does."""
    _check_folder(name)
    with load_errors(name):
        if pruned_model.is_adapter(name):
            return pruned_model.adapted_class_and_config(Path(name))[1]
        return model_classes.read_config(resolve_model(name))


def refuse_untrainable(name: str) -> None:
    """Raise AttendropError for the model of a baseline, a pruned model, or an adapter instead of a model."""
    _check_folder(name)
    if pruned_model.is_adapter(name):
        raise AttendropError(f"{name!r} is an adapter of PEFT; save attendrop.load({name!r}), and train that.")
    if pruned_model.is_pruned(name):
        raise AttendropError(f"{name!r} is pruned and does not train; train the model that it came from.")


def _check_folder(name: str) -> None:
    check_whole(Path(name).expanduser())
    if is_baseline(name):
        raise AttendropError(f"'{name}' is a baseline without attention, which only predict and evaluate read.")


def default_pooling(name: str, config: PreTrainedConfig | None = None) -> str:
    """Return what a classifier of a model reads by default, ``"mean"`` or ``"cls"``.

    By :func:`trained_pooling` if the files of an encoder say it, otherwise by its configuration (None: to be loaded):
    what one was fine-tuned with, or what the class of transformers reads.
    """
    config = load_config(name) if config is None else config
    says = name in ("minilm", MINILM_HUB_ID) or model_classes.is_encoder(config)
    return (trained_pooling(name) if says else None) or model_classes.pooling_of(config)


def trained_pooling(name: str) -> str | None:
    """Return what a model of sentence-transformers makes a vector of, by ``modules.json``: ``"mean"``, ``"cls"``.

    None of other models, and of other vectors.
    """

    def read(file: str) -> Any:
        try:
            path = cached_file(
                place, file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
            )
            return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None

    if name in ("minilm", MINILM_HUB_ID):
        return "mean"
    place = resolve_model(name)
    paths = [part.get("path") for part in read("modules.json") or [] if str(part.get("type")).endswith("Pooling")]
    found = (read(f"{paths[0]}/config.json") if paths else None) or {}
    modes = [mode for mode, value in found.items() if mode.startswith("pooling_mode_") and value is True]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "mean": "mean", "cls": "cls"}
    return known.get(modes[0] if len(modes) == 1 else str(found.get("pooling_mode")))


def add_adapter(model: PreTrainedModel, new: Collection[str], task_type: TaskType, options: LoraOptions) -> Any:
    """Make a ``PeftModel``, of which only the adapter, the head and what no file has (``new``) are trained and saved.

    Raises AttendropError if PEFT is not installed, or the model has no such targets.
    """
    targets = options.targets
    modules = {name.rpartition(".")[0] for name in new}
    tied = (key for key in model.all_tied_weights_keys for each in modules if key.startswith(f"{each}."))
    if task_type.generates and any(tied):
        raise AttendropError(
            f"The model has no head for {task_type.predicts}, and a new one is not saved with an adapter; omit lora."
        )
    children = [] if task_type.generates or model.base_model is model else list(model.named_children())
    heads = [name for name, child in children if child is not model.base_model and list(child.parameters())]
    try:
        with pruned_model.quiet_peft() as peft:
            config = peft.LoraConfig(
                task_type=task_type.peft_task_type,
                r=options.r,
                lora_alpha=options.r if options.alpha is None else options.alpha,
                lora_dropout=options.dropout,
                target_modules=targets if targets in (None, "all-linear") else targets.split(","),
                modules_to_save=[*heads, *sorted(each for each in modules if each.partition(".")[0] not in heads)],
            )
            return peft.get_peft_model(model, config)
    except ValueError as error:
        raise AttendropError(
            f"{type(model).__name__} takes no adapter with targets={targets!r} ({first_line(error)}); name its layers."
        ) from None


@contextmanager
def load_errors(name: str) -> Iterator[None]:
    """Convert errors of the hub and of transformers to one sentence."""
    try:
        yield
    except AttendropError:
        raise
    except Exception as error:  # the hub, transformers, tokenizers and safetensors share no base class
        text = str(error)
        if "trust_remote_code" in text:
            raise AttendropError(f"{name!r} needs code from its own repository, which is not run.") from error
        if "safetensors" in text and "torch.load" not in text and "no file named" in text:
            raise AttendropError(f"{name!r} has no safetensors weights; pickled ones are refused.") from error
        if Path(name).is_dir():
            raise AttendropError(f"The model in {name!r} cannot be loaded ({first_line(error)}).") from error
        hint = " Did you mean 'minilm'?" if "minilm" in name.lower() and "/" not in name else ""
        raise AttendropError(
            f"{name!r} is no folder, and could not be loaded from the hub ({first_line(error)}).{hint}"
        ) from error


# Whether a model is supported -----------------------------------------------------------------------------------------


def examine(name: str) -> dict[str, Any]:
    """Build a model from its configuration alone, without weights, and look for its attention layers.

    Returns ``model, architecture, supported, reason`` (None if supported), ``trainable`` (whether it has a head for
    a kind of task), ``sites``: ``name, kind, index`` of each attention layer, and ``not_run``: the
    names of layers that the example input (text alone, one image, a sound) does not reach.
    """
    config, attention_layers = load_config(name), list[AttentionLayer]()
    not_run, reason = [], None
    try:
        model, attention_layers = _traced(config)
        ran = {layer.name.partition("#")[0] for layer in attention_layers}
        not_run = [layer for layer in find_attention_modules(model).values() if layer not in ran]
    except AttendropError as error:
        reason = str(error)
    return {
        "model": name,
        "architecture": config.model_type,
        "supported": reason is None,
        "reason": reason,
        "trainable": any(each.class_name(config) is not None for each in TASK_TYPES),
        "sites": [asdict(layer) for layer in attention_layers],
        "not_run": not_run,
    }


def _traced(config: PreTrainedConfig) -> tuple[PreTrainedModel, list[AttentionLayer]]:
    """Build the model and trace its attention layers; not on the meta device if it reads the values of tensors."""
    mappings = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING") for head in _HEADS]
    with_heads = (each[type(config)] for each in (*mappings, modeling_auto.MODEL_MAPPING) if type(config) in each)
    # The class that the configuration names, or one with a head, or the model without one.
    named = model_classes.saved_model_class((config.architectures or [""])[0], config.model_type)
    found: Any = named or next(with_heads, None)
    if found is None:
        raise AttendropError(f"transformers has no model for {type(config).__name__}.")
    failures: list[Exception] = []
    for device in ("meta", "cpu"):
        try:
            with torch.device(device):
                model = (found[0] if isinstance(found, tuple) else found)(config)
                batches = list(_batches(model))
        except _FAILURES as error:
            failures.append(error)
            continue
        for batch in batches:
            try:
                return model, find_attention_layers(model, batch)
            except AttendropError:
                raise
            except _FAILURES as error:
                failures.append(error)
        if device == "meta" and (needed := sum(weight.nbytes for weight in model.parameters())) > 2**30:
            told = "%s reads values of tensors, so it is built in memory, with random weights: %.1f GiB."
            logger.warning(told, type(model).__name__, needed / 2**30)
    raise AttendropError(f"It could not be built and run from its configuration ({first_line(failures[-1])}).")


def _batches(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Yield example inputs, of which the model takes one."""
    name, config = model.main_input_name, model.config
    if name not in ("input_values", "input_features"):
        yield (batch := example_inputs(model))
        if hasattr(config, "vision_config"):  # CLIP compares a text and an image, BLIP-2 continues both
            tokens = torch.arange(8, device=model.device)[None]
            batch = batch | (example_pixels(model) if name == "input_ids" else {"input_ids": tokens})
            if getattr(config.get_text_config(), "is_encoder_decoder", False):
                batch["decoder_input_ids"] = tokens
            if "qformer_input_ids" in inspect.signature(model.forward).parameters:  # of InstructBLIP
                batch["qformer_input_ids"] = tokens
            yield batch
        return
    own = getattr(config, "encoder_config", config)
    sizes = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
    width = next((value for key in sizes if isinstance(value := getattr(own, key, None), int)), 80)
    length = getattr(config, "max_source_positions", 0) or getattr(config, "max_length", 0) or 128
    for shape in ((1, 16000), (1, length, width), (1, width, 2 * length), (1, width, length)):
        batch = {name: torch.zeros(shape, dtype=model.dtype)}
        if config.is_encoder_decoder:
            batch["decoder_input_ids"] = torch.ones(1, 4, dtype=torch.long)
        yield batch
