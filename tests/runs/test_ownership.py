"""Files that belong to a run: those that it wrote, unchanged, whatever their names; and each run can be repeated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from transformers import TrainerCallback

from attendrop import AttendropError, cli
from attendrop.cli.train import _read_run
from attendrop.runs.run_folder import check_folder
from attendrop.runs.seeds import train_seeds
from attendrop.runs.train import train

PLAIN = {"method": "finetune", "epochs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and in ``run`` a finished run of AttendOut."""
    folder = tmp_path_factory.mktemp("ownership")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    with tiny.kept_checkpoints():
        train(tiny.config(folder, method="attendout", options={"dropout_step": 2}, epochs=1))
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    """A finished run that a test may spoil."""
    return Path(shutil.copytree(folder / "run", tmp_path / "run"))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def put(name: str) -> Callable[[Path], str]:
    """A file of the user's in a run's folder; gives how a refusal names it."""

    def write(run: Path) -> str:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("the only copy")
        return name if name.startswith("checkpoint") or "/" not in name else name.partition("/")[0]

    return write


def change_a_checkpoint(run: Path) -> str:
    file = next(run.glob("checkpoint-*")) / "config.json"
    file.write_text(file.read_text() + " ")
    return f"{file.parent.name}/config.json"


THEIRS = [put(name) for name in ("patterns.png", "scheduler.json", ".mine.partial", "checkpoint-999/notes.txt")]
THEIRS += [put("tensorboard/events.out.tfevents.1"), change_a_checkpoint]


@pytest.mark.parametrize("theirs", THEIRS)
def test_a_file_is_not_the_runs_for_its_name(folder: Path, run: Path, theirs: Callable[[Path], str]) -> None:
    name = theirs(run)
    before = files(run)
    with pytest.raises(AttendropError) as refused:
        train(tiny.config(folder, str(run), **PLAIN), overwrite=True)
    assert f"files that the run did not write: {name}. Move them away" in str(refused.value)
    assert files(run) == before


def test_tensorboard_files_are_the_runs_that_asked_for_them(folder: Path, run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record["config"]["report_to"] = "tensorboard"
    (run / "run.json").write_text(json.dumps(record))
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events.out.tfevents.1.host.2.0").write_text("figures")
    check_folder(run, tiny.config(folder, str(run), **PLAIN), resume=False, overwrite=True)
    (run / "tensorboard" / "notes.txt").write_text("the only copy")
    with pytest.raises(AttendropError, match=r"did not write: tensorboard/notes.txt\."):
        train(tiny.config(folder, str(run), **PLAIN), overwrite=True)


def test_a_checkpoint_whose_writing_was_cut_off_is_the_runs(folder: Path, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    class Writes(TrainerCallback):
        def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            shutil.copytree(tmp_path / "run" / f"checkpoint-{state.global_step}", tmp_path / "torn")
            raise Killed

    config = tiny.config(folder, str(tmp_path / "run"), **PLAIN)
    with pytest.raises(Killed):
        train(config, callbacks=[Writes()])
    manifest = tmp_path / "torn" / "attendrop_manifest.json"
    manifest.write_text('{"unfinished": true}')
    shutil.copytree(tmp_path / "torn", tmp_path / "run" / "checkpoint-9")
    check_folder(tmp_path / "run", config, resume=False, overwrite=True)


def test_files_of_patterns_are_the_runs_unless_they_were_there(
    folder: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    (run / "patterns.png").write_text("the only copy")
    assert cli.main(["patterns", str(run)]) == 2
    assert "patterns.png' exists; --overwrite replaces it" in capsys.readouterr().err
    assert (run / "patterns.png").read_text() == "the only copy"
    (run / "patterns.png").unlink()
    for _ in range(2):
        assert cli.main(["patterns", str(run), "--fit", "1"]) == 0
    assert cli.main(["patterns", str(run), "--output", f"{run}/model.safetensors", "--overwrite"]) == 2
    train(tiny.config(folder, str(run), **PLAIN), overwrite=True)
    assert not files(run) & {"patterns.png", "scheduler.json"}


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


# Repeating a run ------------------------------------------------------------------------------------------------------


class Interrupt(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step == 2:
            raise KeyboardInterrupt


def test_an_interrupted_run_can_be_repeated(folder: Path, tmp_path: Path) -> None:
    config = tiny.config(folder, str(tmp_path / "run"), seed=3, options={"p": 0.4}, learning_rate=2e-5)
    with pytest.raises(KeyboardInterrupt):
        train(config, callbacks=[Interrupt()])
    given = {"config": f"{tmp_path}/run/run.yaml", "output_dir": config.output_dir}
    assert _read_run(given) == (config, [3])
    check_folder(Path(config.output_dir), config, resume=False, overwrite=True)


def test_interrupted_runs_of_several_seeds_can_be_repeated(folder: Path, tmp_path: Path) -> None:
    config = tiny.config(folder, str(tmp_path / "runs"), **PLAIN)
    with pytest.raises(KeyboardInterrupt):
        train_seeds(config, [2, 0], callbacks=[Interrupt()])
    given = {"config": f"{tmp_path}/runs/run.yaml", "output_dir": config.output_dir}
    assert _read_run(given) == (tiny.config(folder, config.output_dir, seed=2, **PLAIN), [2, 0])
    summary = train_seeds(config, [2, 0], resume=True)
    assert json.loads((tmp_path / "runs" / "summary.json").read_text()) == summary
    (tmp_path / "runs" / "run.yaml").write_text("mine: 1")
    for more in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(AttendropError, match=r"run.yaml \(changed since\)' was not written by attendrop"):
            train_seeds(config, [2, 0], **more)
    assert (tmp_path / "runs" / "run.yaml").read_text() == "mine: 1"
