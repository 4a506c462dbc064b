"""Uploads to a stand-in of the hub's HTTP API on localhost."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from helpers.command_line import Captured, assert_refused

from attendrop import cli
from attendrop.runs.data import SKIPPED
from attendrop.runs.run_folder import RUN, SAMPLED_ROWS, read_run
from attendrop.support.files import sha256, write_json


@dataclass
class Hub:
    """What a stand-in of the hub was asked for: created repositories, and committed files with their content."""

    token: str = "secret"
    repositories: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Bearer {state.token}":
                self.answer(401, {"error": "Invalid credentials"})
            elif self.path == "/api/repos/create":
                state.repositories.append(json.loads(body))
                self.answer(200, {"url": f"http://{self.headers['Host']}/somebody/mine"})
            elif self.path.endswith("/preupload/main"):
                files = json.loads(body)["files"]
                how = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                self.answer(200, {"files": [{"path": file["path"], **how} for file in files]})
            elif self.path.endswith("/commit/main"):
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        state.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                url = f"http://{self.headers['Host']}/somebody/mine/commit/{'1' * 40}"
                self.answer(200, {"success": True, "commitUrl": url, "commitOid": "1" * 40})
            else:
                self.answer(200, {})

        def do_GET(self) -> None:
            known = self.headers["Authorization"] == f"Bearer {state.token}"
            self.answer(200 if known else 401, {"id": "somebody/mine", "sha": "0" * 40, "siblings": []})

        def answer(self, status: int, content: dict[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", state.token)
    yield state
    server.shutdown()


@pytest.fixture
def run(plain: Path) -> Path:
    """A finished run, which kept all that says something of its rows."""
    record = read_run(plain) or {}
    for name in (SAMPLED_ROWS, SKIPPED):
        (plain / name).write_text("[1, 2]")
        record["files"][name] = sha256(plain / name)
    write_json(plain / RUN, record)
    return plain


def test_the_model_is_uploaded_and_what_tells_of_the_data_is_not(hub: Hub, run: Path, capsys: Captured) -> None:
    assert cli.main(["push", str(run), "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["url"].endswith("/somebody/mine")
    (repository,) = hub.repositories
    assert repository["name"] == "mine"
    assert repository.get("private") or repository["visibility"] == "private"
    assert set(found["files"]) == set(hub.files)
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(hub.files)
    kept = {"metrics.json", "run.json", "run.yaml", "dev_predictions.parquet", SAMPLED_ROWS, SKIPPED}
    assert kept <= {path.name for path in run.iterdir()} and not kept & set(hub.files)
    assert hub.files["model.safetensors"] == (run / "model.safetensors").read_bytes()


PRIVATE = (".env", "train.csv", "notes.txt", "id_rsa", "training_args.bin", "optimizer.pt", "secret.json", "key.model",
           "generator.safetensors", "setup.py", "data/train.csv", "config.json.bak", "data/config.json")  # fmt: skip


def test_what_is_not_of_the_model_stays_here_whoever_wrote_it(hub: Hub, run: Path, capsys: Captured) -> None:
    """Also if attendrop wrote it: what a method had trained beside the model."""
    (run / "data").mkdir()
    for name in PRIVATE:
        (run / name).write_text("a secret")
    record = read_run(run) or {}
    write_json(run / RUN, record | {"files": record["files"] | {"generator.safetensors": sha256(run / PRIVATE[8])}})
    (run / "modeling_mean_pooling.py").write_text("# the class of the model")
    assert cli.main(["push", str(run), "mine", "--json"]) == 0
    expected = {"README.md", "config.json", "model.safetensors", "modeling_mean_pooling.py", "tokenizer.json"}
    assert set(hub.files) == expected | {"tokenizer_config.json"} == set(json.loads(capsys.readouterr().out)["files"])


def test_what_a_link_points_to_is_not_uploaded(hub: Hub, run: Path, tmp_path: Path, capsys: Captured) -> None:
    name = "vocab.txt"
    (run / RUN).unlink()
    (tmp_path / "id_rsa").write_text("a secret")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "id_rsa")
    assert_refused(["push", str(run), "mine"], tmp_path / "none", f"{name}' is a symbolic link, to '", capsys)
    assert not hub.repositories and not hub.files


def test_a_run_is_uploaded_when_it_is_complete(hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["train", "--config", f"{run}/run.yaml", "--output-dir", str(run), "--resume", "--quiet"]
    with monkeypatch.context() as second:  # of two processes, of which the first uploads it
        second.setattr(os, "environ", os.environ | {"RANK": "1", "WORLD_SIZE": "2"})
        assert cli.main([*asked, "--push-to-hub", "mine"]) == 0 and not hub.repositories
    assert cli.main([*asked, "--push-to-hub", "mine"]) == 0
    assert hub.files["config.json"] == (run / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "token", "message"),
    [("a/b/c", "secret", "not a repository name"), ("mine", "other", "hf auth login")],
)
def test_refusals_are_one_sentence(
    hub: Hub, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, name: str, token: str,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert_refused(["push", str(run), name], tmp_path / "nothing", message, capsys)
