"""Full disks, crashes and interruptions: one sentence, an exit code, and a run that can be resumed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from helpers import tiny
from helpers.command_line import Captured
from safetensors import SafetensorError

from attendrop import cli
from attendrop.runs import export, prune  # noqa: F401 (so that none is first imported while a writer is patched)
from attendrop.training.checkpoints import is_complete


def arguments(folder: Path, output: Path, *more: str) -> list[str]:
    return [
        *("train", "--train-file", f"{folder}/train.csv", "--text-columns", "sentence1,sentence2", "--epochs", "2"),
        *("--label-column", "label", "--model", f"{folder}/model", "--batch-size", "16", "--device", "cpu", "--quiet"),
        *("--max-length", "24"),
        *("--method", "finetune", "--output-dir", str(output), *more),
    ]


def error_of(capsys: Captured) -> str:
    """What was printed beside warnings: one sentence."""
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if not line.startswith("Warning: ")]
    assert (out, len(said)) == ("", 1)
    return said[0]


# A full disk ----------------------------------------------------------------------------------------------------------


def as_python() -> Exception:
    return OSError(errno.ENOSPC, "No space left on device")


def as_safetensors() -> Exception:
    return SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def as_torch() -> Exception:
    return RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")


# What writes, how often it succeeds, and how it fails then.
WRITERS: list[tuple[Any, str, int, Callable[[], Exception]]] = [
    (safetensors.torch, "save_file", 2, as_safetensors),
    (torch, "save", 1, as_torch),
    (Path, "write_text", 0, as_python),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("owner", "name", "writes", "error"), WRITERS, ids=[row[3].__name__ for row in WRITERS])
def test_a_full_disk_is_one_sentence_and_can_be_resumed(
    shared: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch,
    owner: Any, name: str, writes: int, error: Callable[[], Exception],
) -> None:  # fmt: skip
    write, left = getattr(owner, name), writes

    def full(*given: Any, **keywords: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error()
        return write(*given, **keywords)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        if name == "save_file":
            patch.setattr("transformers.modeling_utils.safe_save_file", full)
        assert cli.main(arguments(shared, run)) == 1
    said = error_of(capsys)
    assert said.startswith("Error: No space left on device")
    assert said.endswith("Free some space, then resume training with --resume.")
    assert all(is_complete(checkpoint) for checkpoint in tmp_path.glob(".run.partial/checkpoint-*"))
    assert cli.main(arguments(shared, run, "--resume")) == 0
    assert tiny.read_metrics(run)["steps"] == 6


@contextmanager
def small_disk(place: Path, kib: int) -> Iterator[Path]:
    """A disk of so many KiB; the test is skipped where none can be mounted."""
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", place], check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)


needs_mount = pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root may mount a small disk")


PRUNE = ["prune", "--layers", "1,", "--device", "cpu", "--quiet", "--output-dir"]
TORCH = ["export", "--format", "torch", "--quiet", "--output"]
AFTER_TRAINING = [(PRUNE, "light", 24), (TORCH, "served", 40)]


@needs_mount
@pytest.mark.parametrize(("command", "name", "kib"), AFTER_TRAINING)
def test_a_full_disk_leaves_nothing_of_a_pruned_or_exported_model(
    shared: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch,
    command: list[str], name: str, kib: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("attendrop.runs.prune.SECONDS", 0.01)
    monkeypatch.setattr("attendrop.pruning.selection.RESAMPLES", 20)
    with small_disk(tmp_path / "disk", kib) as disk:
        asked = [command[0], f"{shared}/plain", *command[1:], str(disk / name)]
        capsys.readouterr()
        assert cli.main(asked) == 1
        said = error_of(capsys)
        assert said.startswith("Error: No space left on device")
        assert said.endswith("Free some space, then run the command again.")
        assert list(disk.iterdir()) == []
        enlarge(disk)
        assert cli.main(asked) == 0
