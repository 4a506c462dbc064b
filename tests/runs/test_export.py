"""`attendrop export`: a run's model as a file, with its tokenizer and configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from helpers.command_line import Captured, assert_refused
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

from attendrop import cli
from attendrop.runs.data import SKIPPED
from attendrop.runs.export import _UPLOADED, export_run, onnx_outputs, push_run
from attendrop.runs.inference import load_finished_run, load_run
from attendrop.runs.run_folder import RUN, SAMPLED_ROWS, keeps_model, read_run
from attendrop.support.files import sha256, write_json

ROOT = Path(__file__).parents[2]


def read_by_tokenizer(place: Path) -> list[int]:
    """Without files of its own, a tokenizer is made of the configuration, and knows no word."""
    found: list[int] = AutoTokenizer.from_pretrained(place)("the cat sees a dog").input_ids
    assert len(set(found)) == 7
    return found


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a word instead of a model, which takes seconds; it computes zeros."""

    def write(model: object, path: Path, **_: object) -> float:
        path.write_text(type(model).__name__)
        return 1e-7

    for name in ("export_onnx", "export_torch"):
        monkeypatch.setattr(f"attendrop.runs.export.{name}", write)
    monkeypatch.setattr(
        "attendrop.runs.export.onnx_model", lambda file: lambda batch: np.zeros((len(batch["input_ids"]), 2))
    )


@pytest.mark.usefixtures("stub")
def test_a_folder_holds_all_that_a_program_needs(pruned: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "served"
    assert cli.main(["export", f"{pruned}/light", "--output", str(out), "--quantize", "int8"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"int8: accuracy \d\.\d{4} -> \d\.\d{4} on 12 rows of dev \(95 % interval of", said)
    assert keeps_model(pruned / "light")  # so that it can be pushed
    assert read_by_tokenizer(out) == read_by_tokenizer(pruned / "run")
    assert AutoConfig.from_pretrained(out).id2label == {0: "no", 1: "yes"}
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1


@pytest.mark.parametrize(("given", "read"), [(1024, 32), (16, 16)])
def test_the_maximum_length_is_what_the_model_reads(
    pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int | None, read: int
) -> None:
    """Of a longer text, a program would give the model more tokens than it has positions."""
    found: dict[str, str] = {}

    def write(model: object, path: Path, *, metadata: dict[str, str], **_: object) -> float:
        path.touch()
        found.update(metadata)
        return 0.0

    monkeypatch.setattr("attendrop.runs.export.export_onnx", write)
    load = load_run
    monkeypatch.setattr(
        "attendrop.runs.export.load_run", lambda place: replace(load(place), options={"max_length": given})
    )
    export_run(f"{pruned}/run", str(tmp_path / "served"))
    assert found == {"max_length": str(read)}


@pytest.mark.slow
def test_a_program_without_pytorch_predicts_as_the_model_does(pruned: Path, tmp_path: Path) -> None:
    out = tmp_path / "served"
    assert cli.main(["export", f"{pruned}/light", "--output", str(out), "--quantize", "int8"]) == 0
    weights = [tensor for tensor in onnx.load(out / "model.onnx").graph.initializer if len(tensor.dims) > 1]
    assert {tensor.data_type for tensor in weights} >= {onnx.TensorProto.INT8}
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), re.DOTALL)
    forbidden = "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['attendrop'] = None\n"
    found = subprocess.run(
        [sys.executable, "-c", forbidden + program], cwd=out, capture_output=True, text=True, timeout=60, check=True
    )
    answers = tmp_path / "answers.csv"
    texts = tmp_path / "texts.csv"
    texts.write_text("sentence1,sentence2\nthe cat sees the dog,a good bird\nthe red bird,not far\n")
    assert cli.main(["predict", f"{pruned}/light", str(texts), "--output", str(answers)]) == 0
    labels = [line.split(",")[1] for line in answers.read_text().splitlines()[1:]]
    assert [line.split()[0] for line in found.stdout.splitlines()] == labels


def test_an_exported_model_is_scored_on_the_rows_in_their_order(pruned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_finished_run(str(pruned / "run"), device="cpu")
    run = replace(run, config=run.config.filled(eval_batch_size=5))

    def exported(batch: Mapping[str, Any]) -> Any:
        return run.model(**{name: torch.as_tensor(values) for name, values in batch.items()}).logits.detach().numpy()

    monkeypatch.setattr("attendrop.runs.export.onnx_model", lambda file: exported)
    np.testing.assert_allclose(onnx_outputs(run, "dev", pruned), run.outputs("dev"), atol=1e-6)


@pytest.mark.usefixtures("stub")
def test_nothing_is_replaced_unasked(pruned: Path, tmp_path: Path, capsys: Captured) -> None:
    def exported(output: str, *more: str) -> str:
        code = cli.main(["export", f"{pruned}/run", "--output", f"{tmp_path}/{output}", *more])
        said = capsys.readouterr().err
        assert (code == 0) == (said == "")
        return said

    (tmp_path / "mine.onnx").write_text("mine")
    assert "mine.onnx' exists; --overwrite replaces it" in exported("mine.onnx")
    (tmp_path / "config.json").write_text("mine")
    assert "belongs to another model; name a file in a folder of its own" in exported("other.onnx")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"mine.onnx": "mine", "config.json": "mine"}
    assert not exported("mine.onnx", "--overwrite")
    shutil.copytree(pruned / "light", tmp_path / "light")
    assert "holds another run" in exported("light/model.onnx")
    before = {path.name: path.read_bytes() for path in (tmp_path / "light").iterdir()}
    assert cli.main(["export", f"{tmp_path}/light", "--output", f"{tmp_path}/light"]) == 0
    after = {path.name: path.read_bytes() for path in (tmp_path / "light").iterdir()}
    assert after.pop("model.onnx") and after == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--format", "jpeg", "--output", "x"), "format='jpeg' is not known"),
        (("--quantize", "int8", "--format", "torch", "--output", "x"), "quantize is for the format onnx"),
        (("--output", "x.onnx", "--format", "torch"), "'x.onnx' is the name of another format"),
    ],
)
def test_export_mistakes(
    pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, more: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", f"{pruned}/run", *more]) == 2
    assert words in capsys.readouterr().err
    assert not os.listdir(tmp_path)


@dataclass
class Hub:
    """A stand-in of the client of the hub, which keeps what it is asked for: repositories, and files with content."""

    repositories: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    endpoint: str = "https://hub"

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> Any:
        self.repositories[name] = private
        return SimpleNamespace(repo_id=f"somebody/{name}")

    def list_repo_files(self, repo_id: str) -> list[str]:
        return list(self.files)

    def upload_folder(
        self, *, folder_path: Path, allow_patterns: list[str], delete_patterns: list[str], **_: Any
    ) -> None:
        for name in list(filter_repo_objects(self.files, allow_patterns=delete_patterns)):
            del self.files[name]
        paths = (path for path in folder_path.rglob("*") if path.is_file())
        found = {str(path.relative_to(folder_path)): path for path in paths}
        for name in filter_repo_objects(found, allow_patterns=allow_patterns):
            self.files[name] = found[name].read_bytes()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setattr("attendrop.runs.export.HfApi", lambda: found)
    return found


PRIVATE = (".env", "train.csv", "notes.txt", "id_rsa", "training_args.bin", "optimizer.pt", "secret.json", "key.model",
           "generator.safetensors", "setup.py", "data/train.csv", "config.json.bak", "data/config.json")  # fmt: skip


def test_the_model_is_uploaded_and_what_else_the_folder_holds_stays_whoever_wrote_it(
    hub: Hub, plain: Path, capsys: Captured
) -> None:
    record = read_run(plain) or {}
    (plain / "data").mkdir()
    for name in (*PRIVATE, SAMPLED_ROWS, SKIPPED):
        (plain / name).write_text("a secret")
    for name in ("generator.safetensors", SAMPLED_ROWS, SKIPPED):  # as those of a method that trains another model
        record["files"][name] = sha256(plain / name)
    write_json(plain / RUN, record)
    (plain / "modeling_mean_pooling.py").write_text("# the class of the model")
    assert cli.main(["push", str(plain), "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["url"] == "https://hub/somebody/mine" and hub.repositories == {"mine": True}
    expected = {"README.md", "config.json", "model.safetensors", "modeling_mean_pooling.py", "tokenizer.json"}
    assert set(hub.files) == expected | {"tokenizer_config.json"} == set(found["files"])
    assert hub.files["model.safetensors"] == (plain / "model.safetensors").read_bytes()


def test_files_of_another_model_do_not_stay_in_the_repository(hub: Hub, plain: Path, pruned: Path) -> None:
    """Transformers would load a pruned model beside another's ``config.json``, with random weights in pruned layers."""
    push_run(str(plain), "mine")
    hub.files |= {"adapter_config.json": b"{}", "notes/config.json": b"{}", "figure.png": b""}
    push_run(str(pruned / "light"), "mine")
    assert "pruned_config.json" in hub.files and {"notes/config.json", "figure.png"} < set(hub.files)
    assert not {"config.json", "adapter_config.json"} & set(hub.files)


@pytest.mark.parametrize(
    "family",
    ["bert", "bertweet", "fsmt", "luke", "phobert", "prophetnet", "roberta", "roc_bert", "xlm-roberta", "xlnet"],
)
def test_all_files_of_a_tokenizer_are_uploaded(family: str) -> None:
    cls = tokenizer_class_from_name(TOKENIZER_MAPPING_NAMES[family])
    assert all(map(_UPLOADED.fullmatch, cls.vocab_files_names.values()))


def test_an_adapter_is_uploaded_if_others_have_its_model(
    hub: Hub, plain: Path, tmp_path: Path, capsys: Captured
) -> None:
    (plain / RUN).unlink()
    (plain / "config.json").rename(plain / "model_config.json")
    write_json(plain / "adapter_config.json", {"base_model_name_or_path": str(tmp_path)})
    assert_refused(
        ["push", str(plain), "mine"], tmp_path / "none", f"is on the model in '{tmp_path}', a folder", capsys
    )
    assert not hub.repositories and not hub.files
    write_json(plain / "adapter_config.json", {"base_model_name_or_path": "somebody/model"})
    assert "adapter_config.json" in push_run(str(plain), "mine")["files"]


def test_what_a_link_points_to_is_not_uploaded(hub: Hub, plain: Path, tmp_path: Path, capsys: Captured) -> None:
    (plain / RUN).unlink()
    (tmp_path / "id_rsa").write_text("a secret")
    (plain / "vocab.txt").symlink_to(tmp_path / "id_rsa")
    assert_refused(["push", str(plain), "mine"], tmp_path / "none", "vocab.txt' is a symbolic link, to '", capsys)
    assert not hub.repositories and not hub.files


def test_a_run_is_uploaded_when_it_is_complete(hub: Hub, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["train", "--config", f"{plain}/run.yaml", "--output-dir", str(plain), "--resume", "--quiet"]
    with monkeypatch.context() as second:  # of two processes, of which the first uploads it
        second.setattr(os, "environ", os.environ | {"RANK": "1", "WORLD_SIZE": "2"})
        assert cli.main([*asked, "--push-to-hub", "mine"]) == 0 and not hub.repositories
    assert cli.main([*asked, "--push-to-hub", "mine"]) == 0
    assert hub.files["config.json"] == (plain / "config.json").read_bytes()
