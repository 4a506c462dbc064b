"""Loading of pre-trained models: safetensors only, no remote code, no silently missing weights; and new adapters."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from attendrop.attribution.predictions import declare_output
from attendrop.errors import AttendropError
from attendrop.pruning.pruned_model import (
    adapted_class_and_config,
    is_adapter,
    is_pruned,
    load_model,
    quiet_peft,
    without_report,
)
from attendrop.runs.config import LoraOptions
from attendrop.runs.run_folder import check_whole, is_baseline
from attendrop.support.files import MINILM_HUB_ID, first_line, resolve_model
from attendrop.support.models import freeze_unsaved
from attendrop.tasks.base import Task, task_type_of_model
from attendrop.tasks.table import plain
from attendrop.tasks.tokenization import fit_tokenizer
from attendrop.tasks.types.base import TaskType
from attendrop.tasks.types.model_classes import configure_pooling, is_encoder, pooling_of, read_config
from attendrop.wording import names_of

logger = logging.getLogger(__name__)

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class Loaded(NamedTuple):
    """Loaded model, in evaluation mode, in float32."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    new: frozenset[str] = frozenset()  # names of parameters that no file has, such as a new head's; they are random


def load_for(name: str, task: Task | None, pooling: str = "auto") -> Loaded:
    """Load a model with the head of a task.

    Args:
        name: As for :func:`attendrop.support.files.resolve_model`.
        task: Task that determines the size, the label names and the loss of the head; a new head is initialized if the
            model has none that fits. None: the model is fine-tuned and keeps its head.
        pooling: What the head of the task reads: ``"mean"``, ``"cls"`` or ``"auto"``, see :func:`default_pooling`.

    Raises:
        AttendropError: The model cannot be found or loaded, lacks files, has pickled weights only, needs code of its
            own, or (with ``task=None``) has no trained head.
    """
    _check_folder(name)
    if is_pruned(name) or is_adapter(name):
        if task is not None:
            refuse_untrainable(name)
        with _load_errors(name), without_report():
            model = load_model(name)
            model = model.model if is_pruned(name) else model
            task_type = task_type_of_model(model.config)
            tokenizer = task_type.load_tokenizer(name)
        declare_output(model, task_type.output_kind)
        fit_tokenizer(name, model, tokenizer)
        return Loaded(model, tokenizer)
    place = resolve_model(name)
    if Path(place).is_dir() and not any(Path(place).glob("*.safetensors")):
        files = sorted(file.name for file in Path(place).iterdir() if file.suffix in _PICKLED)
        if pickled := next((file for file in files if "training_args" not in file), None):
            raise AttendropError(
                f"The folder '{place}' holds pickled weights only ({pickled}), and unpickling can run any code. Load "
                "the model where you trust it and save it with save_pretrained, which writes safetensors."
            )
        raise AttendropError(f"The folder '{place}' holds no weights: it has no model.safetensors.")
    with _load_errors(name), without_report():
        config = read_config(place)
        task_type = task_type_of_model(config) if task is None else task.type
        trained_for = list((getattr(config, "id2label", None) or {}).values())
        if task is not None:
            task_type.configure(config)
            if task_type.one_vector:
                configure_pooling(config, default_pooling(name, config) if pooling == "auto" else pooling)
        model, found = task_type.model_class(config).from_pretrained(
            place,
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=task is not None,
            output_loading_info=True,
            dtype="float32",
            trust_remote_code=False,
        )
        tokenizer = task_type.load_tokenizer(place)
    freeze_unsaved(model)
    declare_output(model, task_type.output_kind)
    missing, resized = sorted(found["missing_keys"]), sorted(key[0] for key in found["mismatched_keys"])
    _report_loading(name, model, missing, resized, trained_for, task_type, keeps_head=task is None)
    fit_tokenizer(name, model, tokenizer)
    task_type.prepare(model, tokenizer)
    return Loaded(model, tokenizer, frozenset([*missing, *resized]))


def _report_loading(
    name: str,
    model: PreTrainedModel,
    missing: list[str],
    resized: list[str],
    trained_for: list[str],
    task_type: TaskType,
    *,
    keeps_head: bool,
) -> None:
    """Warn of weights that are in no file, except those of a head of a task, and of one for other classes."""
    body = f"{model.base_model_prefix}."
    in_body, in_head = ([key for key in missing if key.startswith(body) is inside] for inside in (True, False))
    if any(key.startswith(body) for key in resized):
        raise AttendropError(f"The weights of {name!r} do not fit its configuration: {resized[0]} has another shape.")
    if keeps_head and missing:
        raise AttendropError(f"The model {name!r} has no trained head ({missing[0]} is missing): fine-tune it first.")
    random = "%d weights of %s are not in its files and start at random, such as %s."
    for keys in (in_body, in_head if task_type.generates else []):
        if keys:
            logger.warning(random, len(keys), name, keys[0])
    if resized:
        logger.warning("The head of %s has another number of outputs; a new one takes its place.", name)
    named = not all(label.startswith("LABEL_") for label in trained_for)  # which transformers calls them by default
    as_many = not in_head and len(trained_for) == len(task_type.output_names) > 1
    if named and as_many and list(map(plain, trained_for)) != list(map(plain, task_type.output_names)):
        logger.warning(
            "The head of %s was trained for other classes and is kept: its outputs for %s start as those for %s; "
            "to start with a new head, train the model that it came from.",
            name, names_of(trained_for), names_of(task_type.output_names),
        )  # fmt: skip


def load_tokenizer(name: str, task: Task) -> PreTrainedTokenizerBase:
    """Load only the tokenizer of a model; raises AttendropError as :func:`load_for` does."""
    with _load_errors(name):
        found: PreTrainedTokenizerBase = task.type.load_tokenizer(resolve_model(name))
        return found


def load_config(name: str) -> PreTrainedConfig:
    """Load only the configuration of a model; raises AttendropError as :func:`load_for` does."""
    _check_folder(name)
    with _load_errors(name):
        if is_adapter(name):
            return adapted_class_and_config(Path(name))[1]
        return read_config(resolve_model(name))


def refuse_untrainable(name: str) -> None:
    """Raise AttendropError for the model of a baseline, a pruned model, or an adapter instead of a model."""
    _check_folder(name)
    if is_adapter(name):
        raise AttendropError(
            f"The model {name!r} is an adapter of PEFT; save attendrop.load({name!r}), which merges it into its model, "
            "and train that."
        )
    if is_pruned(name):
        raise AttendropError(
            f"The model {name!r} is pruned and does not train; train the model that it came from, or save "
            f"attendrop.load({name!r}).to_stock(), if it has one, and train that."
        )


def _check_folder(name: str) -> None:
    check_whole(Path(name).expanduser())
    if is_baseline(name):
        raise AttendropError(
            f"The model in '{name}' is a baseline without attention, not a transformer; `attendrop predict` "
            "and `attendrop evaluate` read it."
        )


def default_pooling(name: str, config: PreTrainedConfig | None = None) -> str:
    """Return what a classifier of a model reads by default: ``"mean"`` if its files say that it was trained so.

    ``modules.json`` says so of a model of sentence-transformers, and its configuration (None: to be loaded) of one that
    was fine-tuned with the mean. Otherwise ``"cls"``: what the class of transformers reads.
    """

    def read(file: str) -> Any:
        try:
            path = cached_file(
                place, file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
            )
            return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None

    config = load_config(name) if config is None else config
    if name in ("minilm", MINILM_HUB_ID):
        return "mean"
    if not is_encoder(config):
        return pooling_of(config)
    place = resolve_model(name)
    paths = [part.get("path") for part in read("modules.json") or [] if str(part.get("type")).endswith("Pooling")]
    found = (read(f"{paths[0]}/config.json") if paths else None) or {}
    modes = [mode for mode, value in found.items() if mode.startswith("pooling_mode_") and value is True]
    is_mean = modes == ["pooling_mode_mean_tokens"] or found.get("pooling_mode") == "mean"
    return "mean" if is_mean else pooling_of(config)


def add_adapter(model: PreTrainedModel, new: Collection[str], task_type: TaskType, options: LoraOptions) -> Any:
    """Make a ``PeftModel``, of which only the adapter, the head and what no file has (``new``) are trained and saved.

    Raises AttendropError if PEFT is not installed, or the model has no such targets.
    """
    targets = options.targets
    modules = {name.rpartition(".")[0] for name in new}
    tied = (key for key in model.all_tied_weights_keys for each in modules if key.startswith(f"{each}."))
    if task_type.generates and any(tied):
        raise AttendropError(
            f"The model has no trained head for {task_type.predicts}, and a new one, which shares weights with the "
            "embeddings, is not saved with an adapter; omit lora, or use a model that has the head."
        )
    children = [] if task_type.generates or model.base_model is model else list(model.named_children())
    heads = [name for name, child in children if child is not model.base_model and list(child.parameters())]
    try:
        with quiet_peft() as peft:
            config = peft.LoraConfig(
                task_type=task_type.peft_task_type,
                r=options.r,
                lora_alpha=options.alpha,
                lora_dropout=options.dropout,
                target_modules=targets if targets in (None, "all-linear") else targets.split(","),
                modules_to_save=[*heads, *sorted(each for each in modules if each.partition(".")[0] not in heads)],
            )
            return peft.get_peft_model(model, config)
    except ValueError as error:
        raise AttendropError(
            f"{type(model).__name__} takes no adapter with targets={targets!r} ({str(error).splitlines()[0]}) Name "
            "layers of it, or 'all-linear': --lora targets=all-linear."
        ) from None


@contextmanager
def _load_errors(name: str) -> Iterator[None]:
    """Convert errors of the hub and of transformers to one sentence."""
    try:
        yield
    except AttendropError:
        raise
    except Exception as error:  # the hub, transformers, tokenizers and safetensors share no base class
        text = str(error)
        if "trust_remote_code" in text:
            raise AttendropError(
                f"The model {name!r} needs code from its own repository, which attendrop does not run."
            ) from error
        if "safetensors" in text and "torch.load" not in text and "no file named" in text:
            raise AttendropError(
                f"The model {name!r} offers no safetensors weights; pickled ones are refused."
            ) from error
        if Path(name).is_dir():
            raise AttendropError(f"The model in {name!r} cannot be loaded ({first_line(error)}).") from error
        hint = " Did you mean 'minilm'?" if "minilm" in name.lower() and "/" not in name else ""
        raise AttendropError(
            f"The model {name!r} is neither a folder nor 'minilm', and could not be loaded from the hub "
            f"({first_line(error)}).{hint}"
        ) from error
