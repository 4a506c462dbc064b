"""The folder of a run: locked by one process, replaced only by a complete run, and never another program's."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured, assert_refused
from transformers import TrainerCallback

import attendrop
from attendrop import ADDrop, AttendropError, cli
from attendrop.cli.train import _read_run
from attendrop.methods.core.base import MethodState
from attendrop.runs.config import RunConfig
from attendrop.runs.finished_run import check_keeps_model, load_finished_run
from attendrop.runs.folder_lock import locked, new_folder
from attendrop.runs.inference import evaluate
from attendrop.runs.model_source import Source
from attendrop.runs.run_folder import (
    adding,
    check_folder,
    delete_checkpoints,
    holds_run,
    input_files,
    is_main_process,
    read_run,
    replace_run,
    results,
    writable,
)
from attendrop.runs.seeds import train_seeds
from attendrop.runs.train import train
from attendrop.studies.executor import open_runner
from attendrop.support.files import write_text
from attendrop.training.checkpoints import last_checkpoint

PLAIN = {"method": "finetune", "epochs": 1}


@pytest.fixture(scope="module")
def folder(own: Path, shared: Path) -> Path:
    """A model, data, and in ``run`` a finished run with its checkpoints."""
    shutil.copytree(shared / "plain", own / "run")
    return own


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    """A finished run that a test may spoil."""
    return Path(shutil.copytree(folder / "run", tmp_path / "run"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What loads the model of a finished run.
LOADING = {
    "predict": ["predict", "RUN", "--predict-file", "FILES/dev.csv", "--output", "OUT.csv"],
    "evaluate": ["evaluate", "RUN", "--eval-file", "FILES/dev.csv"],
    "train": ["train", "--config", "FILES/run/run.yaml", "--model", "RUN", "--output-dir", "OUT"],
    "attend": ["attend", "RUN", "the cat", "--text-pair", "a dog"],
    "prune": ["prune", "RUN", "--output-dir", "OUT"],
    "export": ["export", "RUN", "--output", "OUT", "--format", "torch"],
    "push": ["push", "RUN", "user/model"],
}


def loading(command: str, files: Path, run: Path, out: Path) -> list[str]:
    places = {"RUN": run, "FILES": files, "OUT": out}
    return [re.sub("RUN|FILES|OUT", lambda found: str(places[found[0]]), part) for part in LOADING[command]]


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        *(("train", "tokenizer.json"), ("predict", "tokenizer.json"), ("predict", "config.json")),
        *(("attend", "config.json"), ("prune", "config.json")),
    ],
)
def test_a_model_that_lacks_a_file_of_its_run_is_not_used(
    folder: Path, run: Path, tmp_path: Path, capsys: Captured, command: str, lost: str
) -> None:
    (run / lost).unlink()
    before = content(tmp_path)
    arguments = loading(command, folder, run, tmp_path / "out")
    assert_refused(arguments, tmp_path / "out", f"lacks {lost}, which its run wrote", capsys)
    assert content(tmp_path) == before


def flip_a_bit(file: Path) -> None:
    found = bytearray(file.read_bytes())
    found[len(found) // 2] ^= 1
    file.write_bytes(found)


@pytest.mark.parametrize(
    ("command", "damaged"),
    [
        *((command, "model.safetensors") for command in LOADING),
        ("predict", "tokenizer.json"),
        ("evaluate", "config.json"),
    ],
)
def test_a_damaged_model_is_not_used(
    folder: Path, run: Path, tmp_path: Path, capsys: Captured, command: str, damaged: str
) -> None:
    flip_a_bit(run / damaged)
    before = content(tmp_path)
    arguments = loading(command, folder, run, tmp_path / "out")
    assert_refused(arguments, tmp_path / "out", f"the SHA-256 of {damaged} is not that in its run.json", capsys)
    assert content(tmp_path) == before
    with pytest.raises(AttendropError, match=f"damaged, or was changed: the SHA-256 of {damaged}"):
        attendrop.load(run)


def test_a_model_does_without_what_is_for_readers(folder: Path, run: Path) -> None:
    (run / "README.md").unlink()
    (run / "run.yaml").unlink()
    assert evaluate(str(run), Source(device="cpu"))["score"] == tiny.read_metrics(folder / "run")["score"]


def test_a_run_is_known_by_its_options_and_rows(shared: Path, run: Path) -> None:
    rows = (read_run(run) or {})["data_sha256"]
    assert holds_run(run, tiny.config(shared, **PLAIN), rows)
    assert not holds_run(run, tiny.config(shared, **PLAIN, seed=1), rows)
    assert not holds_run(run, tiny.config(shared, **PLAIN), "other rows")
    assert not holds_run(shared, tiny.config(shared, **PLAIN), rows)
    assert holds_run(run, dataclasses.replace(tiny.config(shared, **PLAIN), train_file="elsewhere/train.csv"), rows)
    assert not holds_run(run, dataclasses.replace(tiny.config(shared, **PLAIN), train_file=f"{shared}/other.csv"), rows)
    content = json.loads((run / "run.json").read_text())
    del content["config"]["label_map"]  # an option that an older version did not have
    (run / "run.json").write_text(json.dumps(content))
    assert holds_run(run, tiny.config(shared, **PLAIN), rows)


def test_new_options_are_none_by_default_so_that_older_runs_are_known() -> None:
    """Hashes of runs (``Unit.key``) leave out what is None. Those that had other defaults before are listed."""
    before = {"bf16", "device", "eval_batch_size", "fp16", "gradient_accumulation", "head_start", "label_type"}
    before |= {"max_length", "method", "model", "options", "output_dir", "pooling", "protocol", "report_to", "schedule"}
    before |= {"seed", "skip_bad_rows", "task_options", "test_fraction", "text_columns", "warmup", "weight_decay"}
    assert {each.name for each in dataclasses.fields(RunConfig) if each.default is not None} - before == {
        "label_names"  # whose default changes results; None where it cannot
    }


# The lock -------------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from attendrop.runs.folder_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process_holds(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_in_use_is_refused_and_its_holder_named(folder: Path, run: Path) -> None:
    with another_process_holds(run) as process:
        before = content(run)
        said = rf"'{run}' is in use by process {process.pid} on {os.uname().nodename} since 20..-..-.. ..:..:.."
        with pytest.raises(AttendropError, match=said):
            train(tiny.config(folder, str(run), **PLAIN), overwrite=True)
        assert content(run) == before


def test_a_run_holds_its_folder_from_start_to_end(folder: Path, tmp_path: Path) -> None:
    seen = []

    class Second(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            with pytest.raises(AttendropError, match="is in use by process") as refused:
                train(tiny.config(folder, str(tmp_path / "new" / "run"), **PLAIN), resume=True)
            seen.append(refused)

    train(tiny.config(folder, str(tmp_path / "new" / "run"), **PLAIN), callbacks=[Second()])
    assert len(seen) == 5
    assert not (tmp_path / "new" / "run" / ".lock").exists()


def test_the_lock_is_gone_with_a_killed_process(tmp_path: Path) -> None:
    with another_process_holds(tmp_path / "run") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with locked(tmp_path / "run"):
            pass
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_lock_that_was_deleted_by_hand_is_named_as_the_cause(folder: Path, tmp_path: Path) -> None:
    """Whatever the library stumbles over then, and also if nothing fails: the results may be of two runs."""
    run = tmp_path / "run"

    class Second(TrainerCallback):
        def on_train_end(self, *_: Any, **__: Any) -> None:
            (run / ".lock").unlink()
            with locked(run):  # of another process
                pass

    with pytest.raises(AttendropError, match=r"\.lock' was deleted while this .* the same command with --resume"):
        train(tiny.config(folder, str(run), **PLAIN), callbacks=[Second()])
    assert not (run / "metrics.json").exists()
    assert train(tiny.config(folder, str(run), **PLAIN), resume=True)["steps"] == 5
    with pytest.raises(AttendropError, match=r"\.lock' was deleted while"), locked(run):
        (run / ".lock").unlink()
        raise KeyError("selected")
    with another_process_holds(run), pytest.raises(AttendropError, match=r"is in use"), locked(run):
        pass


def test_the_lock_of_another_process_stays(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").write_text("another's")
    assert (tmp_path / ".lock").read_text() == "another's"


# Links ----------------------------------------------------------------------------------------------------------------


LINKS = (".lock", ".new-run", ".results.partial", "selection", "checkpoint-9", "notes.txt", "tensorboard/events")


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("how", ["resume", "overwrite", "read", "add"])
def test_a_link_in_a_run_folder_is_refused_and_what_it_points_to_stays(
    folder: Path, run: Path, tmp_path: Path, name: str, how: str
) -> None:
    precious = Path(shutil.copytree(run, tmp_path / "precious"))
    (precious / "diary.txt").write_text("the only copy")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(precious)
    before = content(tmp_path)
    with pytest.raises(AttendropError, match=rf"{name}' is a symbolic link, to '{precious}', and attendrop makes and"):
        if how == "read":
            evaluate(str(run), Source())
        elif how == "add":
            with adding(run, run / "patterns.png"):
                pytest.fail("the work is done")
        else:
            train(tiny.config(folder, str(run), **PLAIN), **{how: True})
    assert content(tmp_path) == before


def test_a_link_in_the_folder_of_several_runs_or_beside_a_new_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious/place").mkdir(parents=True)
    (tmp_path / "comparison").mkdir()
    for link in ("comparison/runs", ".place.unfinished"):
        (tmp_path / link).symlink_to(tmp_path / "precious")
    with pytest.raises(AttendropError, match="runs' is a symbolic link"), open_runner(tmp_path / "comparison"):
        pytest.fail("the work is done")
    with pytest.raises(AttendropError, match="is a symbolic link; delete it"), new_folder(tmp_path / "place"):
        pytest.fail("the work is done")
    assert (tmp_path / "precious/place").is_dir()


# New folders that appear when complete --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["current directory", "link", "mount", "missing"])
def test_a_new_folder_may_be_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    place = tmp_path / "place"
    if kind != "missing":
        place.mkdir()
        (place / ".unfinished" / "place").mkdir(parents=True)  # of a process that was killed
    monkeypatch.chdir(place if kind == "current directory" else tmp_path)
    if kind == "mount":

        def busy(*_: Any) -> None:
            raise OSError(errno.EBUSY, "busy")

        monkeypatch.setattr("pathlib.Path.rmdir", busy)
    (tmp_path / "link").symlink_to(place)
    target = Path({"current directory": ".", "link": "link"}.get(kind, "place"))
    with new_folder(target) as folder:
        (folder / "a.txt").write_text("all")
    assert content(place) == {"a.txt": b"all"} and target.exists()
    assert kind == "mount" or os.listdir(place) == ["a.txt"]


def test_a_link_to_nothing_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(AttendropError, match="which does not exist"), new_folder(tmp_path / "link"):
        pytest.fail("the work is done")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(AttendropError, match="which does not exist"):
        writable("minilm", tmp_path / "loop", overwrite=False)
    with adding("minilm", writable("minilm", tmp_path / "loop", overwrite=True)):
        write_text(tmp_path / "loop", "a page")


# Nothing is left of what was refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("owner", "name", "overwrite"), [(ADDrop, "start", False), (MethodState, "loss", True)])
def test_a_refused_command_leaves_nothing(
    folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, overwrite: bool
) -> None:
    def refused(*_: Any) -> None:
        raise AttendropError("not like this")

    monkeypatch.setattr(owner, name, refused)
    place = run if overwrite else run.parent / "new" / "folders"
    before = content(run.parent)
    with pytest.raises(AttendropError, match="not like this"):
        train(tiny.config(folder, str(place), options={"cross_tuning": False}), overwrite=overwrite)
    assert content(run.parent) == before
    assert sorted(path.name for path in run.parent.iterdir()) == ["run"]
    assert not (run / ".new-run").exists()


# Nothing of others is destroyed ---------------------------------------------------------------------------------------


def put(name: str, named: str = "") -> Callable[[Path], str]:
    """A file of the user's in a run's folder; gives how a refusal names it."""

    def write(run: Path) -> str:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("the only copy")
        return named or name

    return write


def change(run: Path, name: str) -> str:
    (run / name).write_text((run / name).read_text() + " ")
    return name


def checkpoint(run: Path) -> str:
    return next(run.glob("checkpoint-*")).name


THEIRS = {
    "name of an output": put("patterns.png"),
    "name of a state": put("scheduler.json"),
    "name of a partial file": put(".mine.partial"),
    "folder": put("data/notes.txt", "data"),
    "events of others": put("tensorboard/events.out.tfevents.1", "tensorboard"),
    "name of a checkpoint": put("checkpoint-999/notes.txt"),
    "in a checkpoint": lambda run: put(f"{checkpoint(run)}/notes.txt")(run),
    "changed checkpoint": lambda run: change(run, f"{checkpoint(run)}/config.json"),
    "changed card": lambda run: f"{change(run, 'README.md')} (changed since)",
}


@pytest.mark.parametrize("theirs", THEIRS.values(), ids=THEIRS)
def test_what_others_wrote_or_changed_is_named_and_left(folder: Path, run: Path, theirs: Callable[[Path], str]) -> None:
    name = theirs(run)
    before = content(run)
    with pytest.raises(AttendropError) as refused:
        train(tiny.config(folder, str(run), **PLAIN), overwrite=True)
    assert f"files that the run did not write: {name}. Move them away" in str(refused.value)
    assert content(run) == before


def test_tensorboard_files_are_the_runs_that_asked_for_them(folder: Path, run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record["config"]["report_to"] = "tensorboard"
    (run / "run.json").write_text(json.dumps(record))
    (run / "selection").mkdir()
    for part in ("tensorboard", "selection/tensorboard"):
        put(f"{part}/events.out.tfevents.1.host.2.0")(run)
    check_folder(run, tiny.config(folder, str(run), **PLAIN), resume=False, overwrite=True)
    put("tensorboard/notes.txt")(run)
    with pytest.raises(AttendropError, match=r"did not write: tensorboard/notes.txt\."):
        train(tiny.config(folder, str(run), **PLAIN), overwrite=True)


def test_a_folder_in_which_a_run_died_before_its_first_step_is_as_an_empty_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "selection").mkdir()
    partial = (".run.json.0a1b2c3d.partial", ".run.yaml.0a1b2c3d.partial")
    events = [f"{part}/events.out.tfevents.1.host.2.0" for part in ("tensorboard", "selection/tensorboard")]
    for name in (*partial, *events):
        put(name)(tmp_path)
    config = tiny.config(folder, str(tmp_path), **PLAIN)
    for resume, overwrite in ((False, False), (True, False), (False, True)):
        check_folder(tmp_path, config, resume=resume, overwrite=overwrite)
    with results(tmp_path):
        assert (tmp_path / partial[0]).exists()
    assert not [name for name in partial if (tmp_path / name).exists()]
    (tmp_path / "run.json").unlink()
    put("selection/tensorboard/notes.txt")(tmp_path)
    with pytest.raises(AttendropError, match="holds other files"):
        check_folder(tmp_path, config, resume=False, overwrite=True)


def test_a_checkpoint_whose_writing_was_cut_off_is_the_runs(folder: Path, run: Path) -> None:
    torn = run / "checkpoint-9"
    shutil.copytree(run / checkpoint(run), torn)
    (torn / "attendrop_manifest.json").write_text('{"unfinished": true}')
    check_folder(run, tiny.config(folder, str(run), **PLAIN), resume=False, overwrite=True)


def test_a_summary_of_another_tool_is_left(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"mine": 1}')
    with pytest.raises(AttendropError, match="not written by attendrop"):
        train_seeds(tiny.config(folder, str(tmp_path), **PLAIN), [0, 1], overwrite=True)
    assert content(tmp_path) == {"summary.json": b'{"mine": 1}'}


def test_runs_of_several_seeds_are_not_mixed_with_a_single_one(folder: Path, run: Path) -> None:
    before = content(run)
    with pytest.raises(AttendropError, match="holds a run of one seed; name another folder"):
        train_seeds(tiny.config(folder, str(run), **PLAIN), [0, 1], overwrite=True)
    assert content(run) == before


def test_a_folder_of_several_seeds_is_held_throughout(folder: Path, tmp_path: Path) -> None:
    with locked(tmp_path / "seeds"), pytest.raises(AttendropError, match="is in use by process"):
        train_seeds(tiny.config(folder, str(tmp_path / "seeds"), **PLAIN), [0, 1])


@pytest.mark.parametrize(
    ("name", "text"),
    [("run.json", '{"name": "mine"}'), ("run.json", '{"config": 3, "data_sha256": ""}'), ("metrics.json", "[]")],
)
def test_a_file_of_another_tool_is_no_run(folder: Path, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    before = content(tmp_path)
    with pytest.raises(AttendropError, match=r"not written by attendrop|holds other files"):
        train(tiny.config(folder, str(tmp_path), **PLAIN), overwrite=True)
    with pytest.raises(AttendropError, match=r"not written by attendrop|has no config.json"):
        evaluate(str(tmp_path), Source())
    assert content(tmp_path) == before


def test_what_commands_add_to_a_run_is_its_own_until_it_is_changed(folder: Path, run: Path) -> None:
    """Its own files are never replaced, not even on request."""
    output = run / "patterns.png"
    for drawn in ("a picture", "another"):  # a command may replace its earlier output
        with adding(run, writable(run, output, overwrite=False)):
            output.write_text(drawn)
    check_folder(run, tiny.config(folder, str(run), **PLAIN), resume=False, overwrite=True)
    output.write_text("the only copy")
    with pytest.raises(AttendropError, match=r"patterns.png' exists; --overwrite replaces it"):
        writable(run, output, overwrite=False)
    with pytest.raises(AttendropError, match=r"did not write: patterns.png \(changed since\)"):
        check_folder(run, tiny.config(folder, str(run), **PLAIN), resume=False, overwrite=True)
    assert writable(run, output, overwrite=True) == output
    with pytest.raises(AttendropError, match="which is read"):
        writable(run, run / "model.safetensors", overwrite=True)
    assert {"train.csv", "dev.csv", "model.safetensors"} <= {Path(file).name for file in input_files(run)}


def test_the_first_of_several_processes_deletes_checkpoints_that_a_kill_left(
    shared: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, left in (("1", True), ("0", False)):
        monkeypatch.setenv("RANK", rank)
        train(tiny.config(shared, str(run), **PLAIN), resume=True)
        assert any(run.glob("checkpoint-*")) is left


@pytest.mark.parametrize(("rank", "world", "writes"), [("1", None, True), ("1", "1", True), ("1", "2", False)])
def test_one_process_writes_and_prints_whatever_its_rank(
    rank: str, world: str | None, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"RANK": rank} | ({} if world is None else {"WORLD_SIZE": world}))
    assert is_main_process() is writes


def test_notes_in_a_checkpoint_stay_when_the_run_ends(run: Path) -> None:
    place = run / checkpoint(run)
    shutil.copytree(place, run / "checkpoint-9")
    (place / "notes.txt").write_text("the only copy")
    delete_checkpoints(run)
    assert (place / "notes.txt").read_text() == "the only copy" and not (run / "checkpoint-9").exists()


def test_what_came_while_a_replacement_trained_is_left(folder: Path, run: Path) -> None:
    class Writes(TrainerCallback):
        def on_train_end(self, *_: Any, **__: Any) -> None:
            (run / "patterns.png").write_text("the only copy")
            with (run / "README.md").open("a") as card:
                card.write("my notes")

    with pytest.raises(AttendropError, match=r"README\.md"):
        train(tiny.config(folder, str(run), **PLAIN), overwrite=True, callbacks=[Writes()])
    assert (run / "patterns.png").read_text() == "the only copy"
    assert (run / "README.md").read_text().endswith("my notes")


def test_a_result_does_not_replace_a_file_that_came_meanwhile(folder: Path, tmp_path: Path) -> None:
    class Writes(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            (tmp_path / "run" / "README.md").write_text("my own")

    with pytest.raises(AttendropError, match=r"README.md' was not written by attendrop"):
        train(tiny.config(folder, str(tmp_path / "run"), **PLAIN), callbacks=[Writes()])
    assert (tmp_path / "run" / "README.md").read_text() == "my own"
    assert last_checkpoint(tmp_path / "run") is not None
    (tmp_path / "run" / "README.md").unlink()
    assert train(tiny.config(folder, str(tmp_path / "run"), **PLAIN), resume=True)["steps"] == 5


# Replacing a run ------------------------------------------------------------------------------------------------------


def test_a_run_is_replaced_when_the_new_one_is_complete(
    folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current directory stays the folder of the run."""
    before = content(run)

    class OldIsThere(TrainerCallback):
        def on_train_end(self, *_: Any, **__: Any) -> None:
            assert {name: (run / name).read_bytes() for name in before} == before

    monkeypatch.chdir(run)
    metrics = train(tiny.config(folder, output_dir=".", seed=3, **PLAIN), overwrite=True, callbacks=[OldIsThere()])
    assert os.path.samefile(run, ".")
    assert metrics["seed"] == tiny.read_metrics(run)["seed"] == 3
    assert content(run).keys() == {name for name in before if not name.startswith("checkpoint-")}
    assert content(run)["model.safetensors"] != before["model.safetensors"]


def test_the_old_run_serves_until_an_interrupted_one_is_resumed(
    folder: Path, run: Path, stop_at: Callable[[int], Any]
) -> None:
    config = tiny.config(folder, str(run), seed=3, save_steps=2, **PLAIN)
    with pytest.raises(KeyboardInterrupt):
        train(config, overwrite=True, callbacks=[stop_at(5)])
    assert evaluate(str(run), Source())["all_scores"] == tiny.read_metrics(run)["all_scores"]["dev"]
    assert tiny.read_metrics(run)["seed"] == 0
    with pytest.raises(AttendropError, match="began with seed=3, not 0"):
        train(tiny.config(folder, str(run), save_steps=2, **PLAIN), resume=True)
    assert train(config, resume=True)["seed"] == tiny.read_metrics(run)["seed"] == 3
    assert not (run / ".new-run").exists()


class Killed(BaseException):
    pass


def test_a_replacement_that_was_killed_at_any_point_is_completed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(folder, str(tmp_path / "new"), seed=3, **PLAIN)
    train(config)
    expected = content(tmp_path / "new")
    asked = tiny.config(folder, "given", seed=3, **PLAIN)
    functions = {(os, "replace"): os.replace, (shutil, "rmtree"): shutil.rmtree, (Path, "unlink"): Path.unlink}

    def replaced_until(calls: int) -> bool:
        """Whether a replacement is complete before so many changes of the disk."""
        place = tmp_path / f"after-{calls}"
        shutil.copytree(folder / "run", place)
        shutil.copytree(tmp_path / "new", place / ".new-run")
        left = calls

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return function(*arguments, **keywords)

            return call

        with monkeypatch.context() as patch:
            for (owner, name), function in functions.items():
                patch.setattr(owner, name, counted(function))
            try:
                replace_run(place)
                return True
            except Killed:
                pass
        check_folder(place, asked, resume=True, overwrite=False)
        replace_run(place)
        assert content(place) == expected
        return False

    calls = 0
    while not replaced_until(calls):
        calls += 1
    assert calls > 10
    assert json.loads((tmp_path / "after-3" / "metrics.json").read_text())["seed"] == 3


def test_the_command_line_says_how_to_go_on_with_a_replacement(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the new run is begun, --resume would mean the old one; of several seeds, until all are begun."""
    shutil.copytree(run, run / "seed0")
    shutil.copytree(run, run / "seed1")
    begins: list[Path] = []

    def interrupted(*_: Any, **__: Any) -> None:
        for place in begins:
            (place / ".new-run").mkdir(exist_ok=True)
            shutil.copyfile(place / "run.json", place / ".new-run" / "run.json")
        raise KeyboardInterrupt

    monkeypatch.setattr("attendrop.runs.train.train", interrupted)
    monkeypatch.setattr("attendrop.runs.seeds.train_seeds", interrupted)
    arguments = ["train", "--task", "rte", "--output-dir", str(run)]
    for seeds, places in (("0", [run]), ("0,1", [run / "seed0", run / "seed1"])):
        begins[:] = places[:-1]
        assert cli.main([*arguments, "--overwrite", "--seed", seeds]) == 130
        assert "Run the same command again to replace what is in" in capsys.readouterr().err
        begins[:] = places
        assert cli.main([*arguments, "--overwrite", "--seed", seeds]) == 130
        assert "with --resume instead of --overwrite to continue" in capsys.readouterr().err
    begins.clear()
    assert cli.main(arguments) == 130
    assert "with --resume to continue" in capsys.readouterr().err


# Repeating a run ------------------------------------------------------------------------------------------------------


def test_interrupted_runs_of_several_seeds_can_be_repeated(
    folder: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    config = tiny.config(folder, str(tmp_path / "runs"), **PLAIN)
    with pytest.raises(KeyboardInterrupt):
        train_seeds(config, [2, 0], callbacks=[stop_at(2)])
    given, expected = {"output_dir": config.output_dir}, tiny.config(folder, config.output_dir, seed=2, **PLAIN)
    assert _read_run(given, [], None, f"{tmp_path}/runs/run.yaml", None) == (expected, [2, 0])
    summary = train_seeds(config, [2, 0], resume=True)
    assert json.loads((tmp_path / "runs" / "summary.json").read_text()) == summary
    (tmp_path / "runs" / "run.yaml").write_text("mine: 1")
    for more in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(AttendropError, match=r"run.yaml \(changed since\)' was not written by attendrop"):
            train_seeds(config, [2, 0], **more)
    assert (tmp_path / "runs" / "run.yaml").read_text() == "mine: 1"


def test_the_options_of_a_run_resume_that_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a new one in the default folder, below the current one."""
    monkeypatch.chdir(tmp_path)
    (run / "metrics.json").unlink()
    asked = ["train", "--config", "run/run.yaml", "--resume", "--quiet"]
    assert cli.main(asked) == 0 and os.listdir(tmp_path) == ["run"]
    assert tiny.read_metrics(run)["steps"] == 5
    called: list[tuple[str, bool]] = []
    for name in ("train.train", "seeds.train_seeds"):
        monkeypatch.setattr(
            f"attendrop.runs.{name}",
            lambda config, *_, resume, **__: called.append((config.output_dir, resume)) or tiny.read_metrics(run),
        )
    monkeypatch.setattr("attendrop.cli.training_summary.seeds_summary", lambda found: "")
    (run / "run.json").rename(run / "seeds.json")
    for more in ([], ["--seed", "0,1"], ["--output-dir", "other"]):
        assert cli.main([*asked, *more]) == 0
    (run / "seeds.json").unlink()
    assert cli.main(asked) == 0
    *own, named, default = called
    assert own == [("run", True)] * 2 and named == ("other", True) and default[0].startswith("runs/train-")


def test_the_files_of_a_run_are_found_from_every_folder(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it was given relative to the folder in which it began."""
    for name in ("train.csv", "dev.csv", "model"):
        (tmp_path / name).symlink_to(shared / name)
    (tmp_path / "map.csv").write_text("label,meaning\nno,negative\nyes,positive\n")
    relative = {"train_file": "train.csv", "eval_file": "dev.csv", "model": "model", "label_map": "map.csv"}
    config = dataclasses.replace(tiny.config(tmp_path, **PLAIN, label_map="map.csv"), output_dir="run", **relative)
    monkeypatch.chdir(tmp_path)
    metrics = train(config)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluate("../run", Source(device="cpu"))["all_scores"] == metrics["all_scores"]["dev"]
    assert evaluate("../run", Source(file="../dev.csv", device="cpu"))["all_scores"] == metrics["all_scores"]["dev"]
    assert load_finished_run("../run").metrics == metrics
    assert {Path(file).name for file in input_files(Path("../run")) if Path(file).exists()} >= {"train.csv", "map.csv"}
    given = {name: f"../{path}" for name, path in relative.items()}
    assert train(dataclasses.replace(config, output_dir="../run", **given), resume=True) == metrics


def test_a_command_of_a_folder_with_spaces_can_be_pasted() -> None:
    with pytest.raises(AttendropError, match=r"`attendrop train --config 'a run/run\.yaml'`\."):
        check_keeps_model("a run")
