"""Tiny random image models, each with its image processor, and folders of drawn images to train them on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

SIDE = 16
_SIZE = {"height": SIDE, "width": SIDE}
FAMILIES: dict[str, tuple[Any, Any, Any]] = {
    "vit": (hf.ViTModel, hf.ViTConfig, lambda: ViTImageProcessorPil(size=_SIZE)),
    "deit": (hf.DeiTModel, hf.DeiTConfig, lambda: DeiTImageProcessorPil(size=_SIZE, crop_size=_SIZE)),
    "dinov2": (
        hf.Dinov2Model,
        hf.Dinov2Config,
        lambda: BitImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=_SIZE),
    ),
}


def save_tiny_model(folder: Path, family: str = "vit", **options: Any) -> Path:
    """Save a random model of two layers without a head, with four patches and what its family adds."""
    model, config, processor = FAMILIES[family]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(1)
    model(config(**(sizes | {"image_size": SIDE, "patch_size": 8} | options))).save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


def draw(number: int, bright_side: str) -> Image.Image:
    """Draw noise of any size, brighter on its left or its right half."""
    noise = np.random.default_rng(number)
    height, width = noise.integers(18, 40, size=2)
    pixels = noise.integers(0, 120, size=(height, width, 3))
    half = slice(None, width // 2) if bright_side == "left" else slice(width // 2, None)
    pixels[:, half] += 130
    return Image.fromarray(pixels.astype(np.uint8))


def write_folder(folder: Path, first: int, count: int, *, labelled: bool = True) -> Path:
    """Write images of two classes, each in its folder if labelled, in several formats."""
    for number in range(first, first + count):
        side = random.Random(number).choice(("left", "right"))
        place = folder / side if labelled else folder
        place.mkdir(parents=True, exist_ok=True)
        draw(number, side).save(place / f"{number:03}.{('jpg', 'png', 'webp', 'bmp')[number % 4]}")
    return folder
