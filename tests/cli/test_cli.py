"""The command line: what every command does, and one sentence and exit code 2 for every mistake."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured, assert_refused, train_arguments

from attendrop import AttendropError, cli
from attendrop.cli import main
from attendrop.cli.demo import write_messages
from attendrop.runs.config import RunConfig, Source, checked
from attendrop.runs.run_trainer import RunTrainer
from attendrop.studies.comparison import Comparison

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    """A model, data, a GLUE folder with RTE alone, and in ``run`` a finished run."""
    rte = folder / "glue" / "RTE"
    rte.mkdir(parents=True)
    for split, count in {"train": 20, "dev": 8, "test": 6}.items():
        lines = ["index\tsentence1\tsentence2\tlabel"]
        for n in range(count):
            label = ("entailment", "not_entailment")[n % 2]
            lines.append(f"{n}\t{tiny.sentence(n)}\t{tiny.sentence(n + 3)}\t{label}")
        if split == "test":
            lines = [line.rpartition("\t")[0] for line in lines]
        (rte / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    with tiny.kept_checkpoints():
        assert cli.main(train_arguments(folder, "run", "--quiet")) == 0
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The options of runs that were asked for, and not trained."""
    configs: list[RunConfig] = []

    def stop(config: RunConfig, **_: object) -> None:
        configs.append(config)
        raise AttendropError("stop here")

    monkeypatch.setattr("attendrop.runs.train.train", stop)
    return configs


def test_quiet_prints_warnings_only_and_json_is_alone_on_stdout(folder: Path, capfd: Captured) -> None:
    arguments = train_arguments(folder, "warned", "--quiet", "--json", "--epochs", "1", "--max-steps", "1")
    assert cli.main([*arguments, "--set", "cross_tuning=true"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == tiny.read_metrics(folder / "warned")
    assert all(line.startswith("Warning: ") for line in err.splitlines())
    assert "Warning: Method ad-drop would regularise none of 1 epoch." in err


def test_named_task_from_train_to_submission(folder: Path, capsys: Captured) -> None:
    run, data = f"{folder}/rte", ("--data-dir", str(folder))
    few = ("--max-steps", "1", "--batch-size", "8", "--method", "finetune", "--shots", "8", "--device", "cpu")
    assert cli.main(["train", "--task", "rte", "--model", f"{folder}/model", "--output-dir", run, *data, *few]) == 0
    assert "16 train, 8 dev" in capsys.readouterr().out
    score = tiny.read_metrics(Path(run))["score"]
    assert cli.main(["evaluate", run, "--task", "rte", *data]) == 0
    assert f"accuracy  {score:.4f}" in capsys.readouterr().out
    assert cli.main(["predict", run, "--task", "rte", "--split", "test", "--output", f"{folder}/rte.tsv", *data]) == 0
    assert "Wrote 6 predictions" in capsys.readouterr().out
    header, *rows = (folder / "rte.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    assert [row.split("\t")[0] for row in rows] == list("012345")
    assert {row.split("\t")[1] for row in rows} <= {"entailment", "not_entailment"}


def test_doctor_says_what_is_not_supported(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "longformer"}))
    assert cli.main(["doctor", str(tmp_path)]) == 2
    assert re.search(r"supported +no: \w+ is not supported: it does not route", capsys.readouterr().out)


def test_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attendrop", "train", "--epochs", "0"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: epochs=0 must be a whole number, and at least 1.\n"


@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        ('{"method": "attention-layerdrop", "options": {"p": 0.4}}', [], {"p": 0.4, "layers": "all"}),
        ('\ufeff{"p": 0.4, "layers": [1]}', ["--set", "p=0.5"], {"p": 0.5, "layers": [1]}),  # as Windows writes UTF-8
        ("{p: 0.4", [], "cannot be read, line 1"),
        ("[1]", [], "must hold an object such as"),
        ('{"method": "scheduler", "options": {}}', [], "is for method 'scheduler'; add --method scheduler"),
    ],
)
def test_options_come_from_a_file_and_set_goes_over_it(
    folder: Path,
    tmp_path: Path,
    capsys: Captured,
    asked: list[RunConfig],
    content: str,
    arguments: list[str],
    expected: dict[str, object] | str,
) -> None:
    (tmp_path / "options.json").write_text(content, encoding="utf-8")
    more = ["--quiet", "--method", "attention-layerdrop", "--options", f"{tmp_path}/options.json", *arguments]
    assert cli.main(train_arguments(folder, "unused", *more)) == 2
    if isinstance(expected, str):
        assert expected in capsys.readouterr().err
    else:
        assert asked[0].options == expected


def test_places_in_the_home_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[RunConfig]
) -> None:
    """No shell replaces the ``~`` of ``--output-dir=~/run``, that of a second file, or that in a file of options."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").symlink_to(folder)
    (tmp_path / "own.yaml").write_text("{eval_file: ~/data/dev.csv, model: ~/data/model, label_column: label}")
    data = ["--train-file=~/data/train.csv", "--text-columns", "sentence1"]
    assert cli.main(["train", "--config=~/own.yaml", *data, "--output-dir=~/run"]) == 2
    found = asked[0]
    assert (found.train_file, found.eval_file) == (f"{tmp_path}/data/train.csv", f"{tmp_path}/data/dev.csv")
    assert (found.model, found.output_dir) == (f"{tmp_path}/data/model", f"{tmp_path}/run")
    assert checked(RunConfig, "train_file", "a.tr, ~/b~.en") == f"a.tr, {tmp_path}/b~.en"
    for kind, name in ((Source, "file"), (Comparison, "output_dir")):
        assert checked(kind, name, "~/a.csv") == f"{tmp_path}/a.csv"
    assert checked(RunConfig, "output_dir", "a/~/run") == "a/~/run"
    assert cli.main(["inspect", "~/data/train.csv"]) == cli.main(["doctor", "~/data/model"]) == 0


# What users get wrong -------------------------------------------------------------------------------------------------

RUN = "train --model F/model --output-dir F/refused"
AGAIN = "train --train-file F/train.csv --text-columns sentence1,sentence2 --label-column label --model F/model"
WRONG = [
    (f"{AGAIN} --output-dir F/refused --batch-size 99999999999999999999", "batch-size must be below 2**31, not 9999"),
    (f"{AGAIN} --output-dir F/refused --max-length 3", "leaves no room for text"),
    (f"{AGAIN} --output-dir F/refused --set layers=7", "the model has no layer 7; layers are 0 to 1"),
    (f"{AGAIN} --output-dir F/refused --set p=0.1 --set p=0.2", "--set gives p twice; give it once."),
    (f"{AGAIN} --output-dir F/refused --resume --overwrite", "resume and overwrite exclude each other"),
    (f"{AGAIN} --output-dir F/refused --data-dir x", "data-dir is for tasks; omit it"),
    (f"{RUN} --task rte --text-columns a", "text-columns is for custom files; omit it for a task"),
    (f"{AGAIN} --output-dir F/refused --eval-file T/other.csv", "the label 'x' is not among those"),
    (f"{AGAIN} --output-dir T/link", "/link' is a symbolic link, to 'gone', and"),
    ("evaluate F/model --task rte", "has no trained head"),
    ("evaluate F/run --task rte --data-dir F --split test", "has no labels"),
    ("evaluate F/run --task mnli", "The model predicts 2 classes, mnli asks for 3"),
    ("predict F/run --predict-file F/dev.csv --output T/link/out.csv", "/link' is a link to 'gone', which does not"),
    ("predict F/run --output x.csv", "No data are given; give --predict-file, or --task."),
    ("predict F --output x.csv", "holds no model; did you mean"),
]


@pytest.mark.parametrize(("command", "message"), WRONG, ids=[message for _, message in WRONG])
def test_mistakes_are_one_sentence_and_change_nothing(
    folder: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    (tmp_path / "other.csv").write_text("sentence1,sentence2,label\na,b,x\nb,c,y\n")
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    places = {"F": folder, "T": tmp_path}
    arguments = [re.sub(r"^[FT](?=/|$)", lambda found: str(places[found[0]]), word) for word in command.split()]
    assert_refused(arguments, folder / "refused", message, capsys)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not list((tmp_path / "here").iterdir())


def command(folder: Path, *options: str) -> list[str]:
    return [
        *("compare", "--train-file", str(folder / "train.csv"), "--text-columns", "sentence1,sentence2"),
        *("--label-column", "label", "--model", str(folder / "model"), "--device", "cpu", "--max-steps", "2"),
        *("--workers", "0", "--output-dir", str(folder / "answer"), *options),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "p=0.3"], "--set 'p=0.3' is not of the form METHOD.NAME=VALUE"),
        (["--set", "r-drop.alpha=2", "--methods", "mixout"], "method 'r-drop' is not compared; add it to --methods"),
        (["--methods", "mixout", "--set", "mixout.p=0.9", "--set", "mixout.p=0.90"], "mixout p=0.90 is to be compared"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    folder: Path, options: list[str], message: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(command(folder, *options)) == 2
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told


def test_options_reach_the_comparison(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def stop(comparison: Any, **how: Any) -> None:
        asked.update(vars(comparison) | how)
        raise AttendropError("stop here")

    monkeypatch.setattr("attendrop.studies.compare.run_comparison", stop)
    options = {"seeds": 7, "trials": 5, "folds": 2, "baselines": "tfidf", "ray": "host:1"}
    given = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    given += ["--methods", "vanilla", "--set", "vanilla.p=0.3", "--set", "vanilla.p=0.4"]
    assert main(command(folder, *given)) == 2
    assert [each.label for each in asked["methods"]] == ["finetune", "vanilla p=0.3", "vanilla p=0.4"]
    expected = {"seeds": 7, "trials": 5, "folds": 2, "baselines": ("tfidf",), "workers": 0}
    assert asked.items() >= (expected | {"backend": "ray:host:1"}).items()


def test_a_run_is_resumed_as_the_sentence_says(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    command, steps = train_arguments(folder, "interrupted", "--quiet"), []
    step = RunTrainer.training_step

    def interrupted(*given: Any, **named: Any) -> Any:
        steps.append(0)
        if len(steps) == 8:  # of the second of two epochs
            os.kill(os.getpid(), signal.SIGINT)
        return step(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(RunTrainer, "training_step", interrupted)
        assert cli.main(command) == 130
    said = [line for line in capsys.readouterr().err.splitlines() if line and not line.startswith("Warning: ")]
    assert said == ["Interrupted. To go on, resume training with --resume."]
    assert cli.main([*command, "--resume"]) == 0
    assert tiny.read_metrics(folder / "interrupted")["steps"] == 10


@pytest.mark.parametrize("place", ["app.command", "app.show"])
def test_while_it_starts_too(place: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a command is known, where typer does not see it, and in a command, where it does."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"attendrop.cli.{place}", interrupted)
    assert cli.main(["methods"]) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err.strip()) == ("", "Interrupted. To go on, run the command again.")


SHA256 = {
    "train.csv": "6111653599e82470840ff78c0e31b721c5bf242868ba76a7165baaaf306eca34",
    "test.csv": "0ec4f0f1f59c57694d343ed86240de499c3f5c962741f14427a1a6e7ad7f1662",
}


def test_the_files_are_the_same_everywhere(tmp_path: Path) -> None:
    """A change of the messages changes every published figure: it must be meant."""
    written = write_messages(tmp_path)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in written} == SHA256
    assert write_messages(tmp_path) == written  # where they are already
    (tmp_path / "test.csv").write_text("mine")
    with pytest.raises(AttendropError, match=r"test\.csv' is not the demonstration's; name another folder"):
        write_messages(tmp_path)
    assert (tmp_path / "test.csv").read_text() == "mine"


def test_the_demonstration_is_a_comparison(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Comparison] = []

    def stop(comparison: Comparison, **how: Any) -> None:
        asked.append(comparison)
        raise AttendropError("stop here")

    monkeypatch.setattr("attendrop.studies.compare.run_comparison", stop)
    model = tiny.save_tiny_bert(tmp_path / "model")
    demo = ["demo", "--model", str(model), "--seeds", "2", "--workers", "0", "--output-dir", str(tmp_path / "demo")]
    assert cli.main(demo) == 2
    command = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("attendrop compare "))
    assert cli.main(shlex.split(command)[1:]) == 2  # what it says that it runs is what it runs
    compared, again = asked
    assert compared == again
    failed = SimpleNamespace(failed=1, as_dict=dict, lines=list)
    monkeypatch.setattr("attendrop.studies.compare.run_comparison", lambda *_, **__: failed)
    assert cli.main(demo) == 1
    assert [each.method for each in compared.methods] == ["finetune", "ad-drop"]
    assert (compared.seeds, compared.config.epochs, compared.config.model) == (2, 10, str(model))
    assert compared.output_dir == f"{tmp_path}/demo/answer"
    assert (compared.config.train_file, compared.config.eval_file) == tuple(
        f"{tmp_path}/demo/{name}" for name in SHA256
    )
