"""What transformers alone, in a process without this library, makes of the folders of models: our numbers, or nothing.

Where a class of transformers computes the same, it loads the folder as its own; where none does, it refuses, and loads
the modelling file beside the weights with ``trust_remote_code=True``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny, zoo
from safetensors.torch import load_file

import attendrop
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train

TEXT = "the cat sees a red bird"
IDS, MASK = [[2, 5, 6, 7, 3, 0], [2, 8, 9, 10, 11, 3]], [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
MEAN = {"pooling": "mean"}
START = {"max_steps": 0, "head_init": "linear-probe"} | MEAN  # trains nothing else
CLASSES, NUMBERS = ["no", "yes"] * 10, [0.5 + number % 5 for number in range(20)]
LABELS = [["cat|dog", "bird", "dog"][number % 3] for number in range(20)]
# Labels and options of a run, by name; those of the mean are no models of a class of transformers.
RUNS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "classes": (CLASSES, {}),
    "classes-of-the-mean": (CLASSES, MEAN),
    "number-of-the-mean": (NUMBERS, START),
    "labels-of-the-mean": (LABELS, {"label_type": "labels"} | START),
    "adapter-on-the-mean": (CLASSES, {"lora": {"r": 2}} | MEAN),
}
# Models without a run, by the name of their class.
FAMILIES = {
    "DistilBertMeanPoolingForSequenceClassification": zoo.ZOO["distilbert"].options,
}
PRUNED = ["classes-pruned", "mean-pruned"]
CHECKPOINT = "checkpoint-of-the-mean"
ALONE = """
import json, sys
import torch
from transformers import AutoModelForSequenceClassification, pipeline

asked = json.load(sys.stdin)
ids, mask = torch.tensor(asked["ids"]), torch.tensor(asked["mask"])
found = {}
for trust in (False, True):
    for name, folder in asked["folders"].items():
        try:
            model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=trust).eval()
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=mask).logits.tolist()
            piped = None
            if name in asked["texts"]:
                classify = pipeline("text-classification", model=folder, trust_remote_code=trust)
                piped = {each["label"]: each["score"] for each in classify(asked["text"], top_k=None)}
        except ValueError as error:
            logits, piped = None, str(error)
        found[f"{name} {trust}"] = (logits, piped)
assert "attendrop" not in sys.modules
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folders(own: Path) -> dict[str, Path]:
    found = {}
    for name, (labels, options) in RUNS.items():
        file = tiny.write_csv(own / f"{name}.csv", labels)
        data = {"train_file": str(file), "eval_file": None, "text_columns": ("sentence1",)}
        with tiny.kept_checkpoints():
            train(tiny.config(own, name, **{"method": "finetune", "epochs": None, "max_steps": 2} | data | options))
        found[name] = own / name
    for name, options in FAMILIES.items():
        zoo.from_class(name, options).save_pretrained(own / name)
        found[name] = own / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attendrop.runs.prune.SECONDS", 0.01)
        for name, run in zip(PRUNED, ("classes", "classes-of-the-mean"), strict=True):
            prune_run(str(own / run), str(own / name), layers="1,", device="cpu")
            found[name] = own / name
    return found | {CHECKPOINT: next((own / "classes-of-the-mean").glob("checkpoint-*"))}


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Logits and scores of a pipeline by transformers alone, without and with ``trust_remote_code``."""
    asked = {"folders": {name: str(folder) for name, folder in folders.items()}, "texts": list(RUNS), "text": TEXT}
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path_factory.mktemp("modules"))}
    given = json.dumps(asked | {"ids": IDS, "mask": MASK})
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [*RUNS, *FAMILIES, CHECKPOINT])
def test_it_gives_our_numbers_or_none(name: str, folders: dict[str, Path], alone: dict[str, tuple[Any, Any]]) -> None:
    logits, _ = alone[f"{name} True"]
    with torch.no_grad():
        ours = attendrop.load(folders[name])(input_ids=torch.tensor(IDS), attention_mask=torch.tensor(MASK)).logits
    torch.testing.assert_close(torch.tensor(logits), ours)
    untrusted, refusal = alone[f"{name} False"]
    if "mean" in name.lower():
        assert untrusted is None and "contains custom code" in refusal
    else:
        assert untrusted == logits


@pytest.mark.parametrize("name", RUNS)
def test_a_pipeline_gives_our_probabilities(
    name: str, folders: dict[str, Path], alone: dict[str, tuple[Any, Any]]
) -> None:
    (row,) = attendrop.load(folders[name]).predict([TEXT], probabilities=not name.startswith("number"))
    if name.startswith("number"):
        row = {"probability_score": row}
    expected = {key.removeprefix("probability_"): row[key] for key in row if key.startswith("probability_")}
    assert alone[f"{name} True"][1] == pytest.approx(expected, abs=1e-5)


def test_pruned_models_are_refused(alone: dict[str, tuple[Any, Any]]) -> None:
    assert [alone[f"{name} True"][0] for name in PRUNED] == [None, None]


def test_the_folder_of_the_mean_says_nothing_of_this_machine(folders: dict[str, Path]) -> None:
    folder = folders["classes-of-the-mean"]
    assert str(folder.parent) not in (folder / "config.json").read_text()
    assert {path.name for path in folder.glob("*.py")} == {"modeling_mean_pooling.py"}
    assert "mean_classifier.weight" in load_file(folder / "model.safetensors")
