"""The folder of a run: made beside its place by one process, put there when it is complete; nothing else is lost."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured, assert_refused
from transformers import TrainerCallback

import attendrop
from attendrop import AttendropError, cli
from attendrop.cli.train import _read_run
from attendrop.methods.core import registry
from attendrop.runs.config import Source, partial_of
from attendrop.runs.inference import evaluate, load_finished_run
from attendrop.runs.run_folder import (
    begin_run,
    check_folder,
    check_unchanged,
    holds_run,
    input_files,
    locked,
    new_folder,
    put_in_place,
    read_run,
    set_aside,
)
from attendrop.runs.train import train, train_seeds

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
    "train": ["train", "--config", "FILES/run/run.yaml", "--model", "RUN", "--output-dir", "OUT"],
    "prune": ["prune", "RUN", "--output-dir", "OUT"],
    "push": ["push", "RUN", "user/model"],
}


@pytest.mark.parametrize(
    ("command", "file", "lost"),
    [
        *((command, "model.safetensors", False) for command in ("predict", "push")),
        *(("train", "tokenizer.json", True), ("prune", "config.json", True)),
    ],
)
def test_a_model_that_is_damaged_or_lacks_a_file_is_not_used(
    folder: Path, run: Path, tmp_path: Path, capsys: Captured, command: str, file: str, lost: bool
) -> None:
    damaged = bytearray((run / file).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    if lost:
        (run / file).unlink()
    else:
        (run / file).write_bytes(damaged)
    before = content(tmp_path)
    places = {"RUN": run, "FILES": folder, "OUT": tmp_path / "out"}
    arguments = [re.sub("RUN|FILES|OUT", lambda found: str(places[found[0]]), part) for part in LOADING[command]]
    told = f"{file} is missing, or not as its run.json says; copy the folder again"
    assert_refused(arguments, tmp_path / "out", told, capsys)
    assert content(tmp_path) == before


def test_a_run_of_another_version_predicts_and_is_told_where_its_rows_are_needed(
    run: Path, tmp_path: Path, capsys: Captured
) -> None:
    record = read_run(run) or {}
    record["config"]["head_start"] = "frozen"
    (run / "run.json").write_text(json.dumps(record))
    assert attendrop.load(run).predict([("the cat", "a dog")])
    for command in (["prune", "--output-dir"], ["attend", "the cat", "--output"]):
        asked = [command[0], str(run), *command[1:], str(tmp_path / "out")]
        assert_refused(asked, tmp_path / "out", "another version of attendrop, with an option 'head_start'", capsys)


def test_a_run_is_known_by_its_options_and_rows(shared: Path, run: Path) -> None:
    rows = (read_run(run) or {})["data_sha256"]
    assert holds_run(run, tiny.config(shared, **PLAIN), rows)
    assert not holds_run(run, tiny.config(shared, **PLAIN, seed=1), rows)
    assert not holds_run(run, tiny.config(shared, **PLAIN), "other rows")
    assert not holds_run(shared, tiny.config(shared, **PLAIN), rows)
    assert holds_run(run, dataclasses.replace(tiny.config(shared, **PLAIN), train_file="elsewhere/train.csv"), rows)
    assert not holds_run(run, dataclasses.replace(tiny.config(shared, **PLAIN), train_file=f"{shared}/other.csv"), rows)


def test_a_run_is_known_by_the_code_of_its_method(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(shared, **PLAIN)
    with monkeypatch.context() as patch:
        patch.setattr(registry, "own_code_sha256", lambda method: "of former code")
        begin_run(tmp_path, config, "rows")
        assert holds_run(tmp_path, config, "rows")
        check_unchanged(tmp_path, config, "rows")
    assert not holds_run(tmp_path, config, "rows")
    with pytest.raises(AttendropError, match="The code of finetune changed since the run began; restore what it was"):
        check_unchanged(tmp_path, config, "rows")


# The lock -------------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from attendrop.runs.run_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process_holds(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_in_use_is_refused_and_its_holder_named_until_it_is_killed(shared: Path, run: Path) -> None:
    config = tiny.config(shared, str(run), **PLAIN)
    with another_process_holds(partial_of(run)) as process:
        before = content(run.parent)
        said = rf"'{partial_of(run)}' is in use by process {process.pid} on {os.uname().nodename} since 20..-..-.. ..:"
        for how in ("resume", "overwrite"):
            with pytest.raises(AttendropError, match=said):
                train(config, **{how: True})
        assert content(run.parent) == before
        process.send_signal(signal.SIGKILL)
        process.wait()
        train(config, resume=True)
    assert not partial_of(run).exists()


def test_the_lock_of_another_process_stays(tmp_path: Path) -> None:
    """Which has begun in a folder of the same name, after the first one was moved to its place."""
    with locked(tmp_path):
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").write_text("another's")
    assert (tmp_path / ".lock").read_text() == "another's"


# Places that will not do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "how"), [("tensorboard/events", "resume"), ("selection", "overwrite"), ("notes.txt", "read")]
)
def test_a_link_in_a_run_folder_is_refused_and_what_it_points_to_stays(
    folder: Path, run: Path, tmp_path: Path, name: str, how: str
) -> None:
    precious = Path(shutil.copytree(run, tmp_path / "precious"))
    place = tiny.unfinished(run) if how == "resume" else run
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).symlink_to(precious)
    before = content(tmp_path)
    with pytest.raises(AttendropError, match=rf"{name}' is a symbolic link, to '{precious}', and attendrop makes and"):
        if how == "read":
            evaluate(str(run), Source())
        else:
            train(tiny.config(folder, str(run), **PLAIN), **{how: True})
    assert content(tmp_path) == before


def test_places_that_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precious").mkdir()
    for place, name in (("run", "run"), ("other", ".other.partial")):
        (tmp_path / name).symlink_to(tmp_path / "precious")
        with pytest.raises(AttendropError, match=rf"{name}' is a symbolic link, to .*, and attendrop follows none"):
            train(tiny.config(folder, str(tmp_path / place), **PLAIN))
        with pytest.raises(AttendropError, match="is a symbolic link"), new_folder(tmp_path / place):
            pytest.fail("the work is done")
    monkeypatch.chdir(tmp_path / "precious")
    with pytest.raises(AttendropError, match="is the current directory or a mount"):
        train(tiny.config(folder, **PLAIN | {"output_dir": "."}))
    assert not os.listdir(tmp_path / "precious")


def test_a_new_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / ".empty.partial" / "empty" / "half").mkdir(parents=True)  # of a process that was killed
    for name in ("empty", "new"):
        with new_folder(tmp_path / name) as folder:
            assert not list((tmp_path / name).glob("*")) and not list(folder.iterdir())
            (folder / "a.txt").write_text("all")
    with pytest.raises(KeyError), new_folder(tmp_path / "other") as folder:
        (folder / "a.txt").write_text("half")
        raise KeyError
    with pytest.raises(AttendropError, match="is not empty; name a new one"), new_folder(tmp_path / "new"):
        pytest.fail("the work is done")
    assert content(tmp_path) == {"empty/a.txt": b"all", "new/a.txt": b"all"}
    assert sorted(os.listdir(tmp_path)) == ["empty", "new"]


def test_an_output_replaces_nothing_that_a_run_needs(folder: Path, run: Path, capsys: Captured) -> None:
    assert {"train.csv", "dev.csv", "model.safetensors"} <= {Path(file).name for file in input_files(run)}
    asked = ["attend", str(run), "the cat", "--text-pair", "a dog", "--quiet", "--output"]
    (run / "page.html").write_text("mine")
    assert cli.main([*asked, f"{run}/page.html"]) == 2
    assert "page.html' exists" in capsys.readouterr().err
    assert cli.main([*asked, f"{run}/model.safetensors", "--overwrite"]) == 2
    assert "which is read; name another" in capsys.readouterr().err
    assert attendrop.load(run)


# Replacing a run ------------------------------------------------------------------------------------------------------


def test_a_run_is_moved_aside_as_a_whole_when_the_new_one_is_complete(folder: Path, run: Path) -> None:
    (run / "notes").mkdir()
    (run / "notes" / "mine.txt").write_text("the only copy")
    before = content(run)

    class OldIsThere(TrainerCallback):
        def on_train_end(self, *_: Any, **__: Any) -> None:
            assert content(run) == before
            (run / "late.txt").write_text("the only copy, too")

    for number in (1, 2):
        config, callbacks = tiny.config(folder, str(run), seed=number, **PLAIN), [OldIsThere()] if number == 1 else []
        assert train(config, overwrite=True, callbacks=callbacks)["seed"] == tiny.read_metrics(run)["seed"] == number
    aside = run.with_name(".run.replaced-1")
    assert content(aside) == before | {"late.txt": b"the only copy, too"}
    assert tiny.read_metrics(run.with_name(".run.replaced-2"))["seed"] == 1
    assert sorted(os.listdir(run.parent)) == [".run.replaced-1", ".run.replaced-2", "run"]
    assert content(run).keys() == {name for name in before if not name.startswith(("checkpoint-", "notes"))}


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
    with pytest.raises(KeyboardInterrupt):
        train(dataclasses.replace(config, seed=4), overwrite=True, callbacks=[stop_at(2)])
    assert list(run.with_name(".run.replaced-1").glob("checkpoint-4"))  # of the one that was interrupted
    config = dataclasses.replace(config, seed=4)
    assert train(config, resume=True)["seed"] == tiny.read_metrics(run)["seed"] == 4
    assert tiny.read_metrics(run.with_name(".run.replaced-2"))["seed"] == 0
    assert not partial_of(run).exists()


class Killed(BaseException):
    pass


def test_a_run_that_was_killed_at_any_point_of_its_end_is_put_in_its_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny.config(folder, str(tmp_path / "new"), seed=3, **PLAIN))
    expected, before = content(tmp_path / "new"), content(folder / "run")
    asked = tiny.config(folder, "given", seed=3, **PLAIN)
    functions = {(os, "replace"): os.replace, (shutil, "rmtree"): shutil.rmtree, (Path, "unlink"): Path.unlink}

    def put_until(calls: int) -> bool:
        """Whether a run is in its place before so many changes of the disk."""
        place = tmp_path / f"after-{calls}" / "run"
        shutil.copytree(folder / "run", place)
        shutil.copytree(tmp_path / "new", partial_of(place))
        shutil.copytree(folder / "run" / "checkpoint-5", partial_of(place) / "checkpoint-5")
        left = iter(range(calls))

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                if next(left, None) is None:
                    raise Killed
                return function(*arguments, **keywords)

            return call

        done = False
        with monkeypatch.context() as patch, suppress(Killed):
            for (owner, name), function in functions.items():
                patch.setattr(owner, name, counted(function))
            put_in_place(partial_of(place), place)
            done = True
        check_folder(place, asked, resume=True, overwrite=False)
        assert train(dataclasses.replace(asked, output_dir=str(place)), resume=True)["seed"] == 3
        assert content(place) == expected and content(place.with_name(".run.replaced-1")) == before
        assert sorted(os.listdir(place.parent)) == [".run.replaced-1", "run"]
        return done

    calls = 0
    while not put_until(calls):
        calls += 1
    assert calls > 3


def test_a_folder_that_cannot_be_renamed_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of the image of a container, on overlayfs."""
    run, replace = tmp_path / "run", os.replace
    for place in (run, partial_of(run)):
        (place / "inner").mkdir(parents=True)
        (place / "inner" / "a.txt").write_text(place.name)

    def on_overlayfs(source: Path, place: Path) -> None:
        if source in (run, partial_of(run)):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(source, place)

    monkeypatch.setattr(os, "replace", on_overlayfs)
    put_in_place(partial_of(run), run)
    assert content(tmp_path) == {"run/inner/a.txt": b".run.partial", ".run.replaced-1/inner/a.txt": b"run"}


def test_the_record_of_an_unfinished_run_is_moved_aside_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a kill would leave its checkpoints to the run that replaces it."""
    (tmp_path / "run.json").write_text('{"config": {}, "data_sha256": ""}')
    (tmp_path / "checkpoint-4").mkdir()
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / "run.json", path / "checkpoint-4"]))
    moved = list[str]()
    monkeypatch.setattr(os, "replace", lambda source, place: moved.append(source.name))
    set_aside(tmp_path)
    assert moved == ["checkpoint-4", "run.json"]


# Repeating a run ------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_finished_and_a_changed_one_is_not_resumed(
    shared: Path, run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "attendrop")
    config = tiny.config(shared, str(run), **PLAIN)
    with pytest.raises(AttendropError, match="holds a run already; --resume continues it, --overwrite replaces it"):
        train(config)
    before = content(run)
    assert train(config, resume=True) == tiny.read_metrics(run)
    assert "is finished already; nothing is left to do" in caplog.text and content(run) == before
    with pytest.raises(AttendropError, match=r"began with learning_rate=0\.001, not 0\.01"):
        train(dataclasses.replace(config, learning_rate=0.01), resume=True)
    other = run.parent / "other" / Path(str(config.eval_file)).name  # of the same name, but not the one that was moved
    other.parent.mkdir()
    other.write_text("\n".join(Path(str(config.eval_file)).read_text().splitlines()[:-1]))
    with pytest.raises(AttendropError, match="began with eval_file="):
        train(dataclasses.replace(config, eval_file=str(other)), resume=True)
    shutil.rmtree(other.parent)
    renamed = Path(str(config.eval_file)).rename(other.parent.parent / "renamed.csv")  # perhaps other rows
    with pytest.raises(AttendropError, match="began with eval_file="):
        train(dataclasses.replace(config, eval_file=str(renamed)), resume=True)
    renamed.rename(str(config.eval_file))
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"config": record["config"] | {"model": "a-hub/id"}}))
    with pytest.raises(AttendropError, match="began with model='a-hub/id', not "):
        train(config, resume=True)
    moved = str(run.parent / "elsewhere" / "model")
    (run / "run.json").write_text(json.dumps(record | {"config": record["config"] | {"model": moved}}))
    assert train(config, resume=True) == tiny.read_metrics(run)
    with pytest.raises(AttendropError, match=f"began with model='{moved}', not 'minilm'"):
        train(dataclasses.replace(config, model="minilm"), resume=True)
    (run / "run.json").write_text(json.dumps(record, indent=2) + "\n")
    monkeypatch.chdir(run.parent)
    partial = tiny.unfinished(run)
    assert not run.exists()
    partial.rename(run)  # as by hand
    with pytest.raises(AttendropError, match=f"is not finished; rename it to '{partial}' to resume it"):
        train(config, resume=True)
    with pytest.raises(
        AttendropError, match=f"is not finished; rename it to '{partial}'; `attendrop train` with --res"
    ):
        evaluate(str(run), Source())
    run.rename(partial)
    assert cli.main(["evaluate", "run", "--device", "cpu"]) == 2  # as its sentence says:
    assert cli.main(["train", "--config", ".run.partial/run.yaml", "--resume", "--quiet"]) == 0
    assert tiny.read_metrics(run)["steps"] == 5 and os.listdir(run.parent) == ["run"]
    assert content(run).keys() == {name for name in before if not name.startswith("checkpoint-")}


def test_runs_of_several_seeds(folder: Path, run: Path, tmp_path: Path, stop_at: Callable[[int], Any]) -> None:
    config, place = tiny.config(folder, str(tmp_path / "runs"), **PLAIN), tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        train_seeds(config, [2, 0], callbacks=[stop_at(2)])
    (place / "run.yaml").write_text("mine: 1")
    summary = train_seeds(config, [2, 0], resume=True)
    assert json.loads((place / "summary.json").read_text()) == summary
    assert (place / ".run.yaml.replaced-1").read_text() == "mine: 1"
    assert _read_run({"output_dir": "x"}, [], None, str(place / "run.yaml"), None)[1] == [2, 0]
    with pytest.raises(AttendropError, match="holds a summary of runs already"):
        train_seeds(config, [2, 0])
    with locked(place), pytest.raises(AttendropError, match="is in use by process"):
        train_seeds(config, [2, 0], resume=True)
    with pytest.raises(AttendropError, match="holds a run of one seed; name another folder"):
        train_seeds(tiny.config(folder, str(run), **PLAIN), [0, 1], overwrite=True)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "summary.json").write_text("{}")
    with pytest.raises(AttendropError, match="not written by attendrop"):
        train_seeds(tiny.config(folder, str(tmp_path / "others"), **PLAIN), [0, 1], overwrite=True)


def test_a_file_is_trained_on_whose_name_is_not_utf_8(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = shutil.copy(shared / "train.csv", tmp_path / os.fsdecode(b"gr\xfcn.csv"))
    columns = ["--text-columns=sentence1", "--label-column=label", "--method=finetune", "--max-steps=1", "--device=cpu"]
    assert cli.main(["train", str(file), *columns, f"--model={shared / 'model'}", "--quiet"]) == 0
    (place,) = (tmp_path / "runs").iterdir()
    assert (place / "README.md").exists()
    assert _read_run({}, [], None, str(place / "run.yaml"), None)[0].train_file == str(file)


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
    assert load_finished_run("../run").metrics == metrics
    assert {Path(file).name for file in input_files(Path("../run")) if Path(file).exists()} >= {"train.csv", "map.csv"}
    given = {name: f"../{path}" for name, path in relative.items()}
    assert train(dataclasses.replace(config, output_dir="../run", **given), resume=True) == metrics
