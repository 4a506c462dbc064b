"""Finding and loading models: where they come from, what is refused, and the messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers as hf
from helpers import tiny, zoo
from safetensors.torch import load_file

import attendrop
from attendrop.errors import AttendropError
from attendrop.runs.model_loading import load_for
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train
from attendrop.support import files as models
from attendrop.support.files import resolve_model
from attendrop.tasks.base import Task
from attendrop.tasks.registry import get_task as named_task
from attendrop.tasks.tokenization import load_tokenizer, save_tokenizer
from attendrop.tasks.types.classification import Classification

TASK = Task("files", Classification(("no", "yes", "perhaps")), ("text",), "accuracy", "own files")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_tiny_bert(tmp_path_factory.mktemp("models") / "bert")


def test_head_fits_the_task(bert: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = load_for(str(bert), TASK)[:2]
    assert model.config.id2label == {0: "no", 1: "yes", 2: "perhaps"}
    assert model.config.problem_type == "single_label_classification"
    logits = model(**tokenizer("the cat", "a dog", return_tensors="pt")).logits
    assert logits.shape == (1, 3) and not caplog.records
    assert "MISSING" not in capfd.readouterr().err
    with pytest.raises(AttendropError, match=r"has no trained head \(classifier.bias is missing\)"):
        load_for(str(bert), None)  # it would predict at random
    with pytest.raises(AttendropError, match="'bert' are none of transformers' AutoModelForSeq2SeqLM, which transl"):
        load_for(str(bert), named_task("wmt16-en-ro"))


def test_a_head_of_another_size_or_for_other_classes_is_told(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for part in load_for(str(bert), TASK)[:2]:
        part.save_pretrained(tmp_path)
    load_for(str(tmp_path), None)
    load_for(str(tmp_path), replace(TASK, type=Classification(("No", "yes", "perhaps"))))
    assert not caplog.records
    load_for(str(tmp_path), named_task("rte"))
    assert "has another number of outputs; a new one takes its place" in caplog.text  # a linear probe, mostly
    load_for(str(tmp_path), replace(TASK, type=Classification(("maybe", "no", "yes"))))
    assert "its outputs for 'no', 'yes', 'perhaps' start as those for 'maybe', 'no', 'yes'." in caplog.text


def test_missing_weights_of_the_body_are_named(bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = hf.BertModel.from_pretrained(bert)
    model.config.num_hidden_layers = 3
    model.config.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path, state_dict=model.state_dict())
    hf.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    load_for(str(tmp_path), TASK)
    assert "16 weights of" in caplog.text and "start at random" in caplog.text


def test_tokenizer_without_padding_token(bert: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 30}
    model = hf.AutoModel.from_config(hf.LlamaConfig(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=None))
    model.save_pretrained(tmp_path)
    tokenizer = hf.AutoTokenizer.from_pretrained(bert).backend_tokenizer
    plain = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[SEP]")
    plain.save_pretrained(tmp_path)
    model, loaded = load_for(str(tmp_path), TASK)[:2]
    assert loaded.pad_token == "[SEP]"
    assert model.config.pad_token_id == loaded.pad_token_id


def logits_beside(folder: Path, longer: bool) -> torch.Tensor:
    """Compute the logits of a text in a batch, with padding if the other one is longer."""
    model, tokenizer = load_for(str(folder), None)[:2]
    batch = tokenizer(["the cat", "the red bird sees a dog" if longer else "a dog"], padding=True, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0]


@pytest.mark.parametrize("family", ["llama-class", "xlnet"])
def test_classifiers_that_look_for_the_end_of_a_text_read_no_padding(bert: Path, tmp_path: Path, family: str) -> None:
    name, options = zoo.REFUSED.get(family) or (zoo.ZOO[family].model, zoo.ZOO[family].options)
    zoo.from_class(name, {**options, "pad_token_id": 7}).save_pretrained(tmp_path)  # another than the tokenizer's
    hf.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    torch.testing.assert_close(logits_beside(tmp_path, longer=True), logits_beside(tmp_path, longer=False))


@pytest.mark.parametrize(
    ("model", "files", "message"),
    [
        ("none", None, "There is no model folder"),
        ("m/config.json", ("config.json",), "is a file; name the folder that holds it"),
        ("m", (), "holds no model: it has no config.json"),
        ("m", ("config.json", "pytorch_model.bin"), "holds no safetensors weights; pickled ones"),
        ("m", ("config.json", "model.safetensors"), "cannot be loaded"),
        ("minilmm", None, "Did you mean 'minilm'?"),
        ("no-such-user/no-such-model", None, "could not be loaded from the hub"),
        ("", None, "The name of the model is empty"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, model: str, files: tuple[str, ...] | None, message: str) -> None:
    (tmp_path / "m").mkdir()
    for name in files or ():
        (tmp_path / "m" / name).write_text(json.dumps({"model_type": "bert"}))
    given = str(tmp_path / model) if files is not None or model == "none" else model
    with pytest.raises(AttendropError, match=re.escape(message)):
        load_for(given, TASK)


def test_code_of_a_repository_is_not_run(bert: Path, tmp_path: Path) -> None:
    for file in bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((tmp_path / "config.json").read_text())
    code = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.M"}
    content |= {"model_type": "evil", "auto_map": code}
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "evil.py").write_text("raise SystemExit('code was run')")
    with pytest.raises(AttendropError, match="needs code from its own repository"):
        load_for(str(tmp_path), TASK)


def test_tokenizer_of_another_model_is_refused(bert: Path, tmp_path: Path) -> None:
    config = hf.BertConfig.from_pretrained(bert, vocab_size=10)
    hf.BertModel(config).save_pretrained(tmp_path)
    hf.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    with pytest.raises(AttendropError, match="has 21 tokens, its model 10; use its own"):
        load_for(str(tmp_path), TASK)


def test_a_tokenizer_without_its_vocabulary_is_not_made_up(bert: Path, tmp_path: Path) -> None:
    config = hf.XLMRobertaConfig(vocab_size=200, num_labels=3)
    config.update({"n_layer": 1, "num_layers": 1, "num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 2})
    hf.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    hf.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()  # what a copy by extension, such as *.safetensors, leaves behind
    message = f"The model in '{tmp_path}' has no tokenizer: there is no tokenizer.json or "
    for task in (TASK, None):  # to train, and to predict
        with pytest.raises(AttendropError, match=re.escape(message)):
            load_for(str(tmp_path), task)


def test_a_saved_tokenizer_reads_as_before(tmp_path: Path) -> None:
    """The class of BERTweet writes merges without their counts, and drops the last word of each when it reads them."""
    (tmp_path / "vocab.txt").write_text("cat 9\na 8\n")
    (tmp_path / "bpe.codes").write_text("c a 9\nca t</w> 9\n")
    tokenizer = hf.BertweetTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / "bpe.codes"))
    save_tokenizer(tokenizer, tmp_path / "saved")
    ids = tokenizer("a cat").input_ids
    assert load_tokenizer(str(tmp_path / "saved"))("a cat").input_ids == ids == [0, 5, 4, 2]


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    find = models.importlib.util.find_spec
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None if name.startswith("gt_") else find(name))


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize("place", ["cache", "hub"])
def test_minilm_from_cache_or_hub_is_checked_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    def download(name: str, *, local_files_only: bool, **_: Any) -> str:
        assert name == models.MINILM_HUB_ID
        if local_files_only and place == "hub":
            raise FileNotFoundError(name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    (tmp_path / "model.safetensors").write_bytes(b"something else")
    with pytest.raises(AttendropError, match="is not the expected minilm"):
        resolve_model("minilm")
    monkeypatch.setattr(models, "MINILM_SHA256", models.known_sha256(tmp_path / "model.safetensors"))
    assert resolve_model("minilm") == str(tmp_path)


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
FAMILIES = {"DistilBertMeanPoolingForSequenceClassification": zoo.ZOO["distilbert"].options}
PRUNED = ["classes-pruned", "mean-pruned"]
CHECKPOINT = "checkpoint-of-the-mean"
ALONE = """
import gc, json, sys
gc.disable()  # there is no garbage yet, and looking for it is a third of the time of an import
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
            if trust and name in asked["texts"]:
                classify = pipeline("text-classification", model=folder, trust_remote_code=True)
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
