"""Upload of a finished run's model to the Hugging Face hub."""

from __future__ import annotations

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
from attendrop.runs.baseline_models import is_baseline
from attendrop.runs.data_report import SKIPPED
from attendrop.runs.finished_run import check_finished
from attendrop.runs.run_file import RUN_FILE
from attendrop.runs.run_folder import METRICS, RUN, SAMPLED_ROWS, check_whole, keeps_model, own_files
from attendrop.tasks.row_scores import PREDICTIONS

# Files of a run that reveal something about its training rows, or about this machine.
_STAYS = {RUN, METRICS, PREDICTIONS, RUN_FILE, SAMPLED_ROWS, SKIPPED, "training_args.bin"}


def push_run(run_dir: str, name: str, *, public: bool = False) -> dict[str, Any]:
    """Upload the model of a run, its tokenizer and its card to the hub.

    Scores, predictions and options stay here: they may hold texts of the data and paths of this machine.

    Args:
        run_dir: The folder of a finished run, or of a pruned model.
        name: Repository on the hub, such as ``"user/model"``; without a user, that of the token. It is created if it
            does not exist.
        public: Let everybody read a repository that is created. One that exists stays as it is.

    Returns:
        ``url`` of the repository, and the names of the uploaded ``files``.

    Raises:
        AttendropError: No finished run, or no whole model; nobody is logged in, or the hub refuses or is not reached.
    """
    check_finished(run_dir)
    folder = Path(run_dir)
    if is_baseline(folder):
        raise AttendropError(f"'{run_dir}' is a baseline, which transformers cannot load; export it instead.")
    check_whole(folder)
    if not keeps_model(folder):
        raise AttendropError(f"'{run_dir}' has no model; it was trained without keeping it.")
    files = sorted(path.name for path in own_files(folder) if path.name not in _STAYS)
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
