"""Messages, whatever values they hold: one bounded line without control characters; and failures of the machine."""

from __future__ import annotations

import errno
import json
import logging
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from helpers.command_line import Captured
from rich.table import Table

from attendrop import cli
from attendrop.cli.app import messages, show
from attendrop.errors import AttendropError, machine_failure
from attendrop.runs.config import RunConfig
from attendrop.studies.executor import RunSpec, perform

# What a file may hold as a name, a label or a text.
HOSTILE = "b[/x] [red]a[/red] :smile: \x1b[2J\x1b]0;title\x07\x9b31m\u202egpj.exe"
SHOWN = r"b[/x] [red]a[/red] :smile: \x1b[2J\x1b]0;title\x07\x9b31m\u202egpj.exe"


@pytest.mark.parametrize("value", ["x" * 10**6, ["lol"] * 10**6, "line\n" * 10**5, "\x1b" * 10**5])
def test_a_message_is_one_bounded_line_that_keeps_what_to_do(value: object) -> None:
    error = AttendropError(f"The option 'p' has {value!s}, which is no number; give one.")
    told = str(error)
    assert told.startswith("The option 'p' has ") and told.endswith("which is no number; give one.")
    assert len(told) < 2000 and told.isprintable()
    assert str(pickle.loads(pickle.dumps(error))) == told


def test_texts_of_users_are_neither_markup_nor_control_sequences(capsys: Captured) -> None:
    (table := Table("name")).add_row(HOSTILE)
    with messages(quiet=False):
        warnings.warn(HOSTILE, stacklevel=1)
        logging.getLogger("attendrop").info(HOSTILE)
        show(None, HOSTILE)
        show(None, table)
    out, err = capsys.readouterr()
    assert (out + err).count(SHOWN) == 4
    assert "\x1b" not in out + err and "\x9b" not in out + err


CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: ...")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "the memory of this machine is full"),
        (CPU, "the memory of this machine is full"),
        (ImportError("x.so: failed to map segment from shared object"), "the memory of this machine is full"),
        (torch.OutOfMemoryError("CUDA out of memory."), "the GPU's memory is full"),
        (OSError(errno.EFBIG, "File too large", "a.pt"), "File too large: a.pt, above the limit on the size of files"),
        (OSError(errno.ENOSPC, "No space left on device", "a"), "No space left on device: a. Free some space"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_what_the_machine_lacks_is_one_sentence(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("attendrop.runs.data.load_files", lambda **_: fails())
    monkeypatch.setattr("attendrop.cli.train.announce_files", lambda *_, **__: None)
    options = ["--text-columns", "text", "--label-column", "label", "--output-dir", "never", "--device", "cpu"]
    assert cli.main(["train", "--train-file", __file__, *options, "--model", "m"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"Error: {told}") and err.count("\n") == 1
    monkeypatch.setattr("attendrop.runs.train.train", lambda *_, **__: fails())
    spec = RunSpec(RunConfig(model="m", task="cola", output_dir="", method="finetune"))
    assert perform(spec, Path("never"))["error"].startswith(told)
    assert machine_failure(RuntimeError("shapes differ")) is None


@pytest.mark.parametrize("written", ["options", "run"])
def test_deep_json_is_refused_in_a_sentence(tmp_path: Path, capsys: Captured, written: str) -> None:
    deep = '{"p": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(RecursionError):
        json.loads(deep)
    (tmp_path / f"{written}.json").write_text(deep)
    command = ["train", "--task", "cola", "--options", str(tmp_path / "options.json")]
    assert cli.main(command if written == "options" else ["evaluate", str(tmp_path)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and f"{written}.json' " in told[0]
