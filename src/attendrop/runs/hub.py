"""Upload of a finished run's model to the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HfUriError,
    HFValidationError,
    LocalTokenNotFoundError,
)
from huggingface_hub.errors import HTTPError as ClientError  # type: ignore[attr-defined]

from attendrop.errors import AttendropError
from attendrop.pruning.pruned_model import MODEL_CONFIG
from attendrop.runs.baseline_models import is_baseline
from attendrop.runs.finished_run import check_finished
from attendrop.runs.model_card import CARD
from attendrop.runs.run_folder import check_whole, keeps_model
from attendrop.support.files import ADAPTER_CONFIG, PRUNED_CONFIG, refuse_links
from attendrop.tasks.heads.model_classes import MODELING_FILE

# All that is uploaded, whatever else a folder holds: others may be keys, or tell of training rows or of this machine.
_UPLOADED = (
    r"model\.safetensors", r"model-\d+-of-\d+\.safetensors", r"model\.safetensors\.index\.json",
    r"adapter_model\.safetensors",
    *map(re.escape, ("config.json", "generation_config.json", ADAPTER_CONFIG, PRUNED_CONFIG, MODEL_CONFIG)),
    # Tokenizers.
    r"(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|target_vocab)\.json", r"(vocab|merges)\.txt",
    r"(tokenizer|spiece|spm|sentencepiece\.bpe)\.model", r"(source|target)\.spm", r"chat_template\.jinja",
    # The card, and the class of a model that transformers has no class for.
    *map(re.escape, (CARD, MODELING_FILE.name)),
)  # fmt: skip


def push_run(run_dir: str, name: str, *, public: bool = False) -> dict[str, Any]:
    """Upload the model of a run, its tokenizer and its card, on which its scores are, to the hub.

    Everything else in the folder stays here, whoever wrote it: it may hold keys, texts of the data, or paths of this
    machine.

    Args:
        run_dir: The folder of a finished run, or of a pruned model.
        name: Repository on the hub, such as ``"user/model"``; without a user, that of the token. It is created if it
            does not exist.
        public: Let everybody read a repository that is created. One that exists stays as it is.

    Returns:
        ``url`` of the repository, and the names of the uploaded ``files``.

    Raises:
        AttendropError: No finished run, or no whole model; a symbolic link, which may point to anything; nobody is
            logged in, or the hub refuses or is not reached.
    """
    check_finished(run_dir)
    folder = Path(run_dir)
    if is_baseline(folder):
        raise AttendropError(f"'{run_dir}' is a baseline, which transformers cannot load; copy its folder instead.")
    check_whole(folder)
    if not keeps_model(folder):
        raise AttendropError(f"'{run_dir}' has no model; it was trained without keeping it.")
    refuse_links(folder)
    allowed = re.compile("|".join(_UPLOADED))
    files = sorted(name for name in os.listdir(folder) if allowed.fullmatch(name))
    api = HfApi()
    try:
        repo = api.create_repo(name, private=not public, exist_ok=True).repo_id
        api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=files,
            commit_message="Upload a model trained with attendrop",
        )
    except LocalTokenNotFoundError:
        raise AttendropError("nobody is logged in to the hub; run `hf auth login`, or set HF_TOKEN.") from None
    except (HFValidationError, HfUriError) as error:
        raise AttendropError(f"{name!r} is not a repository name: {error}") from None
    except HfHubHTTPError as error:
        said = error.server_message or str(error).splitlines()[0]
        hint = "; log in with `hf auth login`, or set HF_TOKEN" if error.response.status_code == 401 else ""
        raise AttendropError(f"the hub refused to take the model: {said}{hint}.") from None
    except (OSError, ClientError) as error:
        raise AttendropError(f"the hub at {api.endpoint} is not reached: {error}.") from None
    return {"url": f"{api.endpoint}/{repo}", "files": files}
