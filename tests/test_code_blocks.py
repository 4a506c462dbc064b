"""Code blocks of the documents run as they are printed, one after the other.

Tutorials bring their data. Other pages find stand-ins for the files, models and runs that they name, and commands that
train for a few steps only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from helpers import documented

import attendrop

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
PAGES = sorted(
    page for pattern in ("docs/*.md", "docs/[cg]*/*.md", "recipes/*.md", "*.md") for page in ROOT.glob(pattern)
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\S+\.\w+)\n")
# Commands in a block that shows what they print.
TYPED = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
# Packages without which a page is skipped.
NEEDED = {
    "compare_for_a_paper": "altair",
    "csv_to_served_model": "onnxruntime",
    "export": "onnxruntime",
    "lora": "peft",
    "prune": "onnxruntime",
    "prune_and_serve": "onnxruntime",
}

_FILES = "--train-file train.csv --eval-file dev.csv --label-column label --text-columns"
_TRAIN = "attendrop train --model bert-base-uncased --method finetune"
# By page that is no tutorial, the commands that make what its blocks find.
BEFORE = {
    "attention_viewer": f"{_TRAIN} --task cola --output-dir runs/cola-ad-drop-seed0",
    "data": 'cp train.csv banking77.csv; (cut -d";" -f2 tickets.csv; echo the owl paints it) > more.csv',
    "export": f"{_TRAIN} {_FILES} sentence1,sentence2 --output-dir runs/light",
    "killed_runs": "cp recipes/quick.yaml study.yaml",
    "python": f"{_TRAIN} {_FILES} text --output-dir runs/mine",
    "read_the_log": f"{_TRAIN} {_FILES} text --output-dir runs/tickets",
    "README": "mkdir runs; cp -r compared/answer runs/quick",
    "reports": "mkdir runs; cp -r compared/answer runs/answer",
    "tasks": f"{_TRAIN} --task mnli --output-dir runs/mnli; {_TRAIN} --task mrpc --output-dir runs/mrpc",
    "train": f"{_TRAIN} {_FILES} text --output-dir attendrop-demo/answer/best",
    "when_nothing_helps": f"{_TRAIN} {_FILES} text --output-dir runs/mine",
}
# What Python on such a page has at hand.
AT_HAND = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, TrainingArguments

name = "{model}"
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
tokenizer = AutoTokenizer.from_pretrained(name)
train = [{{**tokenizer("the cat sees the dog"), "label": number % 2}} for number in range(8)]
dev, tokenised_texts = train, [{{"input_ids": row["input_ids"]}} for row in train]
training_args = args = TrainingArguments("trained", max_steps=2, use_cpu=True, report_to=[])
loader = batches = DataLoader(train, batch_size=4, collate_fn=DataCollatorWithPadding(tokenizer))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
"""
# Models that a page means, if not BERT, and the folder in which its Python runs.
MODELS = dict.fromkeys(("lora", "scale"), "meta-llama/Llama-3.2-1B")
WITHIN = {"export": "served"}


def blocks(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the text of each block that is saved or run, with the arguments of bash or Python that run it.

    A block that begins with a file name, as in ``# serve.py``, is saved. Such a program runs unless a bash block names
    it. What is printed stands in blocks of other languages (console, text).
    """
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    shell = "\n".join(text for language, text in found if language == "bash")
    for language, text in found:
        name = NAMED.match(text)
        if language == "bash":
            yield text, ["bash", "-euo", "pipefail", "-c", text]
        elif language == "python" and name is None:
            yield text, [sys.executable, "-c", text]
        elif name is not None and language in ("python", "toml", "yaml"):
            yield text, [sys.executable, name[1]] if language == "python" and name[1] not in shell else []


def run(arguments: list[str], folder: Path, variables: Mapping[str, str]) -> None:
    """Run a block in a folder, where pip installs from what is there."""
    installed = folder / "installed"
    pip = {"TARGET": str(installed), "NO_INDEX": "1", "NO_DEPS": "1", "NO_BUILD_ISOLATION": "0", "QUIET": "1"}
    given = os.environ | {f"PIP_{name}": value for name, value in pip.items()}
    given["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given["PYTHONPATH"] = os.pathsep.join([str(Path(attendrop.__file__).parents[1]), str(installed)])
    given |= {"HF_DATASETS_CACHE": str(folder / "cache"), **variables}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 900}
    result = subprocess.run(arguments, cwd=folder, env=given, check=False, **how)
    assert result.returncode == 0, f"{arguments[-1]}\n{result.stdout[-3000:]}"


def save(page: Path, folder: Path) -> None:
    """Save the blocks that begin with the name of their file; skip the page if it needs what is not installed."""
    if importlib.util.find_spec(package := NEEDED.get(page.stem, "attendrop")) is None:
        pytest.skip(f"{package} is not installed")
    for text, _ in blocks(page):
        if name := NAMED.match(text):
            file = folder / name[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    save(page, tmp_path)
    for _, arguments in blocks(page):
        if arguments:
            run(arguments, tmp_path, {})


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    documented.write_hub(folder)
    return folder


def typed(page: Path) -> list[str]:
    """The commands of each block that shows what they print."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for name, block in found if name == "console" and (text := "\n".join(TYPED.findall(block)))]


RUNNABLE = [page for page in PAGES if typed(page) or any(arguments for _, arguments in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, hub: Path) -> None:
    documented.write_documented(tmp_path)
    for name in ("examples", "recipes", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = documented.write_commands(tmp_path / "commands", ROOT)
    variables = {"HF_HUB_CACHE": str(hub), "ATTENDROP_DATA": str(tmp_path / "data"), **documented.ONE_PROCESS}
    variables["PATH"] = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    at_hand = AT_HAND.format(model=MODELS.get(page.stem, "bert-base-uncased"))
    if before := BEFORE.get(page.stem):
        run(["bash", "-euc", before], tmp_path, variables)
    save(page, tmp_path)
    for text, arguments in [*blocks(page), *((text, ["bash", "-euc", text]) for text in typed(page))]:
        if arguments[:1] == [sys.executable] and not NAMED.match(text):
            run([sys.executable, "-c", at_hand + text], tmp_path / WITHIN.get(page.stem, ""), variables)
        elif arguments:
            run(arguments, tmp_path, variables)
