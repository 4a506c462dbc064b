"""Uploads: what of a folder goes to the hub, and what stays."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.command_line import Captured, assert_refused
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import filter_repo_objects

from attendrop import cli
from attendrop.runs.data import SKIPPED
from attendrop.runs.run_folder import RUN, SAMPLED_ROWS, read_run
from attendrop.support.files import sha256, write_json


@dataclass
class Hub:
    """A stand-in of the client of the hub, which keeps what it is asked for: repositories, and files with content."""

    error: Exception | None = None
    repositories: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    endpoint: str = "https://hub"

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> Any:
        if self.error is not None:
            raise self.error
        self.repositories[name] = private
        return SimpleNamespace(repo_id=f"somebody/{name}")

    def upload_folder(self, *, folder_path: Path, allow_patterns: list[str], **_: Any) -> None:
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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (HFValidationError("no"), "not a repository name"),
        (HfHubHTTPError("no", response=SimpleNamespace(status_code=401, headers={}, request=None)), "hf auth login"),
        (ConnectionError("no network"), "is not reached: no network"),
    ],
)
def test_refusals_are_one_sentence(
    hub: Hub, plain: Path, tmp_path: Path, capsys: Captured, error: Exception, message: str
) -> None:
    hub.error = error
    assert_refused(["push", str(plain), "mine"], tmp_path / "nothing", message, capsys)
