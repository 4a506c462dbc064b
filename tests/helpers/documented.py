"""What the commands of the documents find: files with all the columns that they name, and models of the hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from helpers import tiny, tiny_translators
from helpers.finished_runs import write_comparison
from helpers.stand_in_data import write_stand_ins
from helpers.task_examples import FAMILIES
from helpers.tiny import sentence

# A tiny random model in the place of each model of the hub.
MODELS: dict[str, Callable[[Path], object]] = {
    "bert-base-uncased": tiny.save_tiny_bert,
    "bert-base-cased": tiny.save_tiny_bert,
    "roberta-base": FAMILIES["roberta"],
    "t5-small": tiny_translators.save_tiny_t5,
    "Helsinki-NLP/opus-mt-tr-en": partial(tiny_translators.save_tiny_marian, positions=512),
    "meta-llama/Llama-3.2-1B": tiny.save_tiny_llama,
}
# Ends within seconds what a document would train for minutes. The later of two options counts.
COMMAND = """#!/bin/bash
set -eu
case $1 in
    train) exec {attendrop} "$@" --max-steps 4 ;;
    compare) exec {attendrop} "${@/#30m/60s}" --max-steps 4 --seeds 1 ;;
    demo) exec {attendrop} demo --help ;;
    study) exec {attendrop} "$@" --dry-run ;;
    *) exec {attendrop} "$@" ;;
esac
"""
# Of make, scripts and pip, that there is such a target, such a file, or anything; torchrun ends early, too.
OTHER_COMMANDS = {
    "make": 'exec /usr/bin/env -i PATH=/usr/bin:/bin make --dry-run -C {root} "$@" > /dev/null',
    "python": "test -f {root}/$1",
    "pip": 'test "$1" = install',
    "torchrun": 'exec {python} -m torch.distributed.run "$@" --max-steps 4',
}
# The variables that torchrun sets, for Python that is not started by it.
ONE_PROCESS = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29876"}


def write_documented(folder: Path) -> None:
    """Write the files that documents name, below the current folder of their commands."""
    write_stand_ins(folder / "data")
    for name, first, count in (("train", 0, 48), ("dev", 48, 16), ("new", 64, 6), ("test", 70, 16)):
        numbers = range(first, first + count)
        rows = [_row(number) for number in numbers]
        _write(folder / f"{name}.csv", [",".join(rows[0]), *(",".join(row.values()) for row in rows)])
        topics = [{"topics": ["cat", "dog", "bird"][: number % 4]} for number in numbers]
        _write(folder / f"{name}.jsonl", [json.dumps(row | more) for row, more in zip(rows, topics, strict=True)])
        _write(folder / f"{name}.conll", [_tagged(number) for number in numbers])
        _write(folder / f"{name}.txt", [sentence(number) for number in numbers])
    for name, first in {"train": 0, "dev": 48, "test": 64}.items():
        tiny_translators.write_pairs(folder, name, range(first, first + 16))
    for file in folder.glob("*.ro"):
        file.rename(file.with_suffix(".tr"))
    tickets = [f"{number};{sentence(number)};{('Refund', 'Account', 'refund')[number % 3]}" for number in range(60)]
    _write(folder / "tickets.csv", ["id;message;category", *tickets])
    scores = {"finetune": (0.7, 0.72), "ad-drop": (0.75, 0.74)}
    write_comparison(folder / "compared", scores, text_columns=("sentence1",))


def write_hub(folder: Path) -> None:
    """Write the models as if they had been downloaded, into what ``HF_HUB_CACHE`` names."""
    commit = "0" * 40
    for name, save in MODELS.items():
        place = folder / f"models--{name.replace('/', '--')}"
        save(place / "snapshots" / commit)
        _write(place / "refs" / "main", [commit], end="")


def _row(number: int) -> dict[str, Any]:
    """Make a row of a table with the columns of all documents."""
    texts = ("text", "sentence1", "sentence2", "question", "a", "b", "c", "d", "message")
    row: dict[str, Any] = {name: sentence(number + place) for place, name in enumerate(texts)}
    return row | {"label": ("no", "yes")[number % 2], "answer": "ABCD"[number % 4]}


def _tagged(number: int) -> str:
    return "".join(f"{word}\t{('O', 'B-PER')[len(word) % 2]}\n" for word in sentence(number).split())


def _write(path: Path, lines: list[str], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + end, encoding="utf-8")


def write_commands(folder: Path, root: Path) -> Path:
    """Write the commands that documents call, in place of those of the same name; return their folder."""
    folder.mkdir()
    attendrop = Path(sys.executable).with_name("attendrop")
    for name, text in {"attendrop": COMMAND, **OTHER_COMMANDS}.items():
        for word, meant in {"{attendrop}": attendrop, "{root}": root, "{python}": sys.executable}.items():
            text = text.replace(word, str(meant))
        (folder / name).write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder
