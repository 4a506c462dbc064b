"""Tiny files in the place of the data that recipes name: all GLUE tasks, IMDB and Banking77."""

from __future__ import annotations

import json
from pathlib import Path

from attendrop.tasks.glue import GLUE, GlueSource
from helpers.tiny import sentence

TRAIN_ROWS, OTHER_ROWS = 60, 12


def write_stand_ins(folder: Path) -> Path:
    """Write the files below ``folder``, laid out like ``$ATTENDROP_DATA``."""
    for source in GLUE.values():
        for split, name in source.file_names.items():
            if not split.startswith("test"):
                path = folder / "glue" / source.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_glue_file(source, *_numbers(split)), encoding="utf-8")
    for name in ("train", "test"):
        (folder / "imdb").mkdir(exist_ok=True)
        (folder / "banking77").mkdir(exist_ok=True)
        numbers = range(*_numbers(name))
        records = [json.dumps({"text": sentence(number), "label": ("neg", "pos")[number % 2]}) for number in numbers]
        (folder / "imdb" / f"{name}.jsonl").write_text("\n".join(records) + "\n", encoding="utf-8")
        rows = [f"{sentence(number)},{('lost', 'stolen', 'late')[number % 3]}" for number in numbers]
        (folder / "banking77" / f"{name}.csv").write_text("\n".join(["text,category", *rows]), encoding="utf-8")
    return folder


def _numbers(split: str) -> tuple[int, int]:
    """Numbers of the first sentence and of that after the last."""
    return (0, TRAIN_ROWS) if split == "train" else (TRAIN_ROWS, TRAIN_ROWS + OTHER_ROWS)


def _glue_file(source: GlueSource, first: int, end: int) -> str:
    header = source.header or (*source.task.text_columns, source.label_column)
    lines = [] if source.header else ["\t".join(header)]
    for number in range(first, end):
        fields = {name: sentence(number + 3 * place) for place, name in enumerate(source.task.text_columns)}
        fields[source.label_column] = _label(source, number)
        lines.append("\t".join(fields.get(name, "-") for name in header))
    return "\n".join(lines) + "\n"


def _label(source: GlueSource, number: int) -> str:
    classes = len(source.task.label_names)
    return source.labels.write(number % classes if classes else number % 6)
