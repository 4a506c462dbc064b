"""Upload of a finished run's model to the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HfUriError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.errors import HTTPError as ClientError  # type: ignore[attr-defined]

from attendrop.errors import AttendropError
from attendrop.runs.model_source import check_finished, check_keeps_model
from attendrop.runs.run_folder import check_whole, is_baseline
from attendrop.support.files import refuse_links

# All that is uploaded, whatever else a folder holds: others may be keys, or tell of training rows or of this machine.
_UPLOADED = re.compile(
    r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|adapter_model\.safetensors"
    r"|(config|generation_config|adapter_config|pruned_config|model_config)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|target_vocab)\.json|(vocab|merges)\.txt"
    r"|(tokenizer|spiece|spm|sentencepiece\.bpe)\.model|(source|target)\.spm|chat_template\.jinja"
    r"|README\.md|modeling_mean_pooling\.py"
)


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
    check_keeps_model(run_dir)
    refuse_links(folder)
    files = sorted(filter(_UPLOADED.fullmatch, os.listdir(folder)))
    api = HfApi()
    try:
        repo = api.create_repo(name, private=not public, exist_ok=True).repo_id
        message = "Upload a model trained with attendrop"
        api.upload_folder(repo_id=repo, folder_path=folder, allow_patterns=files, commit_message=message)
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
