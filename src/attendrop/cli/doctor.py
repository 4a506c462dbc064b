"""Is a model supported, and which attention layers does it have?"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import AutoModel, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from attendrop.attention import find_sites
from attendrop.errors import AttendropError
from attendrop.runs.models import load_config
from attendrop.sites import Site


def examine(name: str) -> dict[str, Any]:
    """Build a model from its configuration alone, without weights, and look for its attention layers.

    Args:
        name: A folder, a hub id or ``"minilm"``.

    Returns:
        ``model, architecture, supported, reason`` (None if supported), ``trainable`` (whether it has a head for
        sequence classification) and ``sites``: ``name, kind, index`` of each attention layer.

    Raises:
        AttendropError: There is no such model.
    """
    config = load_config(name)
    sites, reason = _sites(config)
    return {
        "model": name,
        "architecture": config.model_type,
        "supported": reason is None,
        "reason": reason,
        "trainable": type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        "sites": [dataclasses.asdict(site) for site in sites],
    }


def _sites(config: PreTrainedConfig) -> tuple[list[Site], str | None]:
    # Tensors on the meta device have no memory, but a few models (BART) look at values, and need real ones.
    for device in ("meta", "cpu"):
        try:
            with torch.device(device):
                model = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
            return find_sites(model), None
        except AttendropError as error:
            return [], str(error)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            failure = str(error).splitlines()[0]
    return [], f"it could not be built and run from its configuration ({failure})."
