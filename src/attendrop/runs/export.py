"""A run's model for other programs: exported, with the cost of eight-bit weights, or uploaded to the hub."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HfUriError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.errors import HTTPError as ClientError  # type: ignore[attr-defined]
from torch import Tensor

from attendrop.errors import AttendropError, check_choice
from attendrop.pruning.export import QUANTIZATIONS, export_onnx, export_torch, onnx_model
from attendrop.pruning.pruned_model import is_adapter, is_pruned, read_json, stock_config
from attendrop.pruning.selection import Array, paired_difference
from attendrop.runs import run_folder
from attendrop.runs.inference import FinishedRun, load_finished_run, load_run
from attendrop.support.files import ADAPTER_CONFIG, check_output, disk_errors, refuse_links, share_permissions
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, HEAD, save_tokenizer

# The format, and the name of its file in a folder.
FORMATS = {"onnx": "model.onnx", "torch": "model.pt2"}
# All that is uploaded, whatever else a folder holds: others may be keys, or tell of training rows or of this machine.
_UPLOADED = re.compile(
    r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|adapter_model\.safetensors"
    r"|(config|generation_config|adapter_config|pruned_config|model_config)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|target_vocab|entity_vocab|emoji)\.json"
    r"|(vocab|merges|dict)\.txt|bpe\.codes|(tokenizer|spiece|spm|sentencepiece\.bpe)\.model|(source|target)\.spm"
    r"|chat_template\.jinja|(word_shape|word_pronunciation|vocab-src|vocab-tgt)\.json|prophetnet\.tokenizer"
    r"|README\.md|modeling_mean_pooling\.py"
)
logger = logging.getLogger(__name__)


def export_run(
    run_dir: str,
    output: str,
    *,
    format: str = "onnx",
    quantize: str | None = None,
    overwrite: bool = False,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Export the model of a finished run to a file, with its tokenizer and ``config.json``.

    The folder may also be of a pruned model, or any that transformers saved. ``output`` is the file; without an
    extension a folder, which gets ``model.onnx`` or ``model.pt2``. In the run's own folder only this file is written,
    since the others are there. ``format`` is "onnx" or "torch"; the file is checked against the model
    (:func:`attendrop.export_onnx`). With ``quantize``, "int8", for ONNX, the loss in score is measured on
    the reported rows of the run, otherwise on its selection split; ``data_dir`` is where its task was moved to.

    Returns ``model, format, output, bytes, difference`` (of a logit from the model's on example inputs), and with
    ``quantize`` its ``loss``. Raises AttendropError if there is no such format or finished run, or the output cannot be
    written or exists.
    """
    check_choice("format", format, tuple(FORMATS))
    if quantize is not None:
        check_choice("quantize", quantize, QUANTIZATIONS)
        if format != "onnx":
            raise AttendropError(f"quantize is for the format onnx, not for {format!r}.")
    suffix, target = Path(FORMATS[format]).suffix, Path(output)
    if target.suffix in {Path(name).suffix for name in FORMATS.values()} - {suffix}:
        raise AttendropError(f"'{output}' is the name of another format; name it {suffix}, or a folder.")
    target = target / FORMATS[format] if target.is_dir() or target.suffix != suffix else target
    above = next(place for place in target.absolute().parents if place.is_dir())
    check_output(target, run_folder.input_files(Path(run_dir)), overwrite=overwrite)
    run = load_run(run_dir)
    if run_folder.is_baseline(run_dir):
        raise AttendropError(f"The model in '{run_dir}' is a baseline without attention, not a transformer.")
    run.task_type.refuse("export")
    model: Any = run.model
    found: dict[str, Any] = {"model": run_dir, "format": format, "output": str(target)}
    with disk_errors(target), tempfile.TemporaryDirectory(dir=above, prefix=".export-") as name:
        file = Path(name) / target.name
        if target.parent.resolve() != Path(run_dir).resolve():
            if is_pruned(target.parent) or run_folder.read_run(target.parent) is not None:
                raise AttendropError(f"'{target.parent}' holds another run; name a file in a folder of its own.")
            save_tokenizer(run.tokenizer, Path(name))
            stock_config(model.config).save_pretrained(name)
        if format == "torch":
            found["difference"] = export_torch(model, file)
        else:
            length = run.options.get("max_length") or DEFAULT_MAX_LENGTH
            # A model has no positions for more tokens than this.
            length = min(length, getattr(run.tokenizer, "model_max_length", length))
            read = {"max_length": length, "long_texts": run.options.get("long_texts")}
            if run.accept is not None and quantize is None:  # with eight bits, probabilities are others
                if read["long_texts"] in (None, HEAD):
                    read["accept_from"] = str(run.accept["threshold"])  # "None" if none is accepted
                else:
                    logger.warning("Which answers to accept is known for %s, not for a file.", read["long_texts"])
            metadata = {name: str(value) for name, value in read.items() if value is not None}
            found["difference"] = export_onnx(model, file, quantize=quantize, metadata=metadata)
        if quantize is not None:
            found["loss"] = _loss(run_dir, data_dir, file)
        share_permissions(Path(name))
        for path in Path(name).iterdir() if not overwrite else ():
            there = target.parent / path.name
            if path.name != target.name and there.exists() and there.read_bytes() != path.read_bytes():
                raise AttendropError(f"'{there}' belongs to another model; name a file in a folder of its own.")
        target.parent.mkdir(parents=True, exist_ok=True)
        for path in Path(name).iterdir():
            path.replace(target.parent / path.name)
    return found | {"bytes": target.stat().st_size}


def _loss(run_dir: str, data_dir: str | None, file: Path) -> dict[str, Any] | None:
    """Measure the loss of score due to eight-bit weights."""
    try:
        run = load_finished_run(run_dir, data_dir=data_dir)
        if not run.sets:
            raise AttendropError("the run has no rows except its training rows.")
    except AttendropError as error:
        logger.warning("The loss of score due to int8 was not measured: %s", error)
        return None
    name = "dev" if "dev" in run.sets else next(iter(run.sets))
    before, after = run.predictions(name, run.outputs(name)), run.predictions(name, onnx_outputs(run, name, file))
    return {
        "set": name,
        "rows": len(before.labels),
        "metric": run.task.metric,
        "before": before.score,
        "after": after.score,
        "difference": paired_difference(before, after).as_dict(),
    }


def onnx_outputs(run: FinishedRun, name: str, file: Path) -> Array:
    """Compute the outputs of an ONNX file for one of the sets of a run, in its order."""
    program = onnx_model(file)

    def logits(batch: dict[str, Tensor]) -> Array:
        if "input_ids" in batch:  # a tokenizer may make no token types
            batch = {"token_type_ids": torch.zeros_like(batch["input_ids"]), **batch}
        return program({name: tensor.cpu() for name, tensor in batch.items()})

    return run.outputs(name, predict=logits)


def push_run(run_dir: str, name: str, *, public: bool = False) -> dict[str, Any]:
    """Upload the model of a run, its tokenizer and its card, on which its scores are, to the hub; nothing else.

    The ``name`` of the repository is such as ``"user/model"``; without a user, it is that of the token. It is created
    if it does not exist, private unless ``public``; one that exists stays as it is, but for files of another model,
    which programs would load with those of this one, or in their place. Returns its ``url``, and the ``files``.

    Raises AttendropError if there is no finished run, or no whole model; an adapter on a folder; a symbolic link, which
    may point to anything; nobody is logged in, or the hub refuses or is not reached.
    """
    run_folder.check_finished(run_dir)
    folder = Path(run_dir)
    if run_folder.is_baseline(folder):
        raise AttendropError(f"'{run_dir}' is a baseline, which transformers cannot load; copy its folder instead.")
    run_folder.check_whole(folder)
    run_folder.check_keeps_model(run_dir)
    refuse_links(folder)
    base = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path") if is_adapter(folder) else None
    if base is not None and os.path.isabs(base):
        raise AttendropError(
            f"The adapter in '{run_dir}' is on the model in '{base}', a folder of this machine, so nobody else could "
            f"load it; upload that model, and write its name into {ADAPTER_CONFIG}."
        )
    files = sorted(filter(_UPLOADED.fullmatch, os.listdir(folder)))
    api = HfApi()
    try:
        repo = api.create_repo(name, private=not public, exist_ok=True).repo_id
        others = [file for file in api.list_repo_files(repo) if _UPLOADED.fullmatch(file) and file not in files]
        how: dict[str, Any] = {"allow_patterns": files, "delete_patterns": others}
        how["commit_message"] = "Upload a model trained with attendrop"
        api.upload_folder(repo_id=repo, folder_path=folder, **how)
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
