"""How a saved model makes one vector of a text, where its files say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils.hub import cached_file

from attendrop.tasks.heads.model_classes import is_encoder, pooling_of


def saved_pooling(place: str, config: PreTrainedConfig) -> str:
    """Return the pooling that a model was trained with: ``"mean"``, or ``"cls"`` if nothing says that.

    The configuration says it of a classifier, and ``modules.json`` of a model of sentence-transformers.

    Args:
        place: Folder or hub id.
        config: Configuration of the model.
    """
    return "mean" if is_encoder(config) and _sentence_is_mean(place) else pooling_of(config)


def _sentence_is_mean(place: str) -> bool:
    modules = _read_json(place, "modules.json")
    paths = [part.get("path") for part in modules or [] if str(part.get("type")).endswith("Pooling")]
    pooling = _read_json(place, f"{paths[0]}/config.json") if paths else None
    if pooling is None:
        return False
    modes = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    return modes == ["pooling_mode_mean_tokens"] or pooling.get("pooling_mode") == "mean"


def _read_json(place: str, name: str) -> Any:
    """Read a file beside a model; None if there is none, or it cannot be read."""
    try:
        file = cached_file(
            place, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
        )
        return None if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
