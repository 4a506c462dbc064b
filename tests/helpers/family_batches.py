"""Batches for families of transformers: texts, images, videos and sounds, with the labels of each head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.tiny_configs import EOS, IMAGE, IMAGE_TOKEN, PAD

LABELS, LENGTHS = 3, (8, 5, 3)
Batch = dict[str, Tensor]

_BOXES = {"bbox": lambda: torch.zeros(len(LENGTHS), max(LENGTHS), 4, dtype=torch.long)}
_PIXELS = {"pixel_values": lambda: torch.randn(len(LENGTHS), 3, IMAGE, IMAGE)}
# What a model reads, by the name of the argument.
INPUTS = {
    "input_ids": "text",
    "pixel_values": "images",
    "pixel_values_videos": "videos",
    "bbox": "boxes",
    "input_values": "sound",
    "input_features": "sound",
}
# Inputs that a family needs beside those of its head.
_EXTRA: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bros", "layoutlmv3", "udop"), _BOXES),
    **dict.fromkeys(("blip", "blip-2", "git", "vilt", "idefics"), _PIXELS),
}
# Names and shapes that sound comes in, (time), (time, mel) or (mel, time).
_SOUNDS = {
    "audio": [("input_values", (2000,)), ("input_features", (64, 16)), ("input_values", (64, 16))],
    "ctc": [("input_values", (2000,)), ("input_features", (64, 16))],
    "speech": [("input_features", (16, 256)), ("input_features", (64, 16)), ("input_values", (2000,))],
}


def batches_for(family: str, kind: str, model: Any) -> Iterator[Batch]:
    """Make batches that a model may accept, the one with the most inputs first."""
    batch = _batch(kind) | {name: made() for name, made in _EXTRA.get(family, {}).items()}
    rows = len(LENGTHS)
    if kind in _SOUNDS:
        for name, shape in _SOUNDS[kind]:
            sound = {name: torch.randn(rows, *shape)}
            yield sound | batch
            yield sound | batch | {"attention_mask": torch.ones(rows, shape[0], dtype=torch.long)}
        return
    if kind == "video":
        yield {"pixel_values_videos": batch["pixel_values"], "labels": batch["labels"]}
    if kind == "lm" and hasattr(model, "get_image_features"):
        for count in (16, 4, 1, 17, 8, 64):  # tokens that an image takes
            width = torch.zeros(rows, count, dtype=torch.long)
            yield {
                "input_ids": torch.cat([width + IMAGE_TOKEN, batch["input_ids"]], 1),
                "attention_mask": torch.cat([width + 1, batch["attention_mask"]], 1),
                "labels": torch.cat([width - 100, batch["labels"]], 1),
                "pixel_values": torch.randn(rows, 3, IMAGE, IMAGE),
            }
    yield batch


def text_alone(batch: Batch) -> Batch:
    """Return a batch of texts and images without the images and their tokens."""
    count = int((batch["input_ids"][0] == IMAGE_TOKEN).sum())
    return {name: batch[name][:, count:] for name in ("input_ids", "attention_mask", "labels")}


def _batch(kind: str) -> Batch:
    """Make a batch of three examples; texts are padded."""
    generator = torch.Generator().manual_seed(3)
    rows, width = len(LENGTHS), max(LENGTHS)
    mask = (torch.arange(width) < torch.tensor(LENGTHS)[:, None]).long()
    tokens = torch.randint(20, 50, (rows, width), generator=generator)
    tokens[torch.arange(rows), torch.tensor(LENGTHS) - 1] = EOS
    text = {"input_ids": tokens.where(mask.bool(), torch.tensor(PAD)), "attention_mask": mask}
    classes, unlabelled = torch.arange(rows) % LABELS, torch.tensor(-100)

    def noise(*shape: int) -> Tensor:
        return torch.randn(rows, *shape, generator=generator)

    match kind:
        case "text":
            return text | {"labels": classes}
        case "tokens":
            return text | {"labels": (torch.arange(width) % LABELS).where(mask.bool(), unlabelled)}
        case "spans":
            return text | {"start_positions": torch.tensor([1, 0, 2]), "end_positions": torch.tensor([3, 2, 2])}
        case "lm":
            return text | {"labels": tokens.where(mask.bool(), unlabelled)}
        case "seq2seq":
            return text | {"labels": tokens[:, :6].where(mask[:, :6].bool(), unlabelled)}
        case "vqa":
            return text | {"pixel_values": noise(3, IMAGE, IMAGE), "labels": torch.rand(rows, LABELS)}
        case "image":
            return {"pixel_values": noise(3, IMAGE, IMAGE), "labels": classes}
        case "video":
            return {"pixel_values": noise(4, 3, IMAGE, IMAGE), "labels": classes}
        case "audio":
            return {"labels": classes}
        case "ctc" | "speech":
            return {"labels": tokens[:, :3].contiguous()}
        case _:
            raise ValueError(kind)
