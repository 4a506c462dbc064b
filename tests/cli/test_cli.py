"""The command line: what every command does, and one sentence and exit code 2 for every mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import tiny
from helpers.command_line import Captured, assert_refused, train_arguments

from attendrop import AttendropError, cli
from attendrop.runs.config import RunConfig, Source, checked
from attendrop.studies.comparison import Comparison
from attendrop.tasks.registry import task_names

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CONTROL = "\x1b"


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    """A model, data, a GLUE folder with RTE alone, and in ``run`` a finished run."""
    rte = folder / "glue" / "RTE"
    rte.mkdir(parents=True)
    for split, count in {"train": 20, "dev": 8, "test": 6}.items():
        label = "" if split == "test" else "\tlabel"
        rows = [
            f"{n}\t{tiny.sentence(n)}\t{tiny.sentence(n + 3)}"
            + ("" if split == "test" else "\t" + ("entailment", "not_entailment")[n % 2])
            for n in range(count)
        ]
        (rte / f"{split}.tsv").write_text("\n".join([f"index\tsentence1\tsentence2{label}", *rows]) + "\n")
    with tiny.kept_checkpoints():
        assert cli.main(train_arguments(folder, "run", "--quiet")) == 0
    return folder


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


def test_methods_and_tasks(capsys: Captured) -> None:
    def shown(*arguments: str, code: int = 0) -> str:
        assert cli.main([*arguments]) == code
        return "".join(capsys.readouterr())

    plain, ad_drop, *_ = json.loads(shown("methods", "--json"))
    assert (plain["name"], plain["options"]) == ("finetune", {})
    assert ad_drop["options"]["q"] == {"type": "float", "default": 0.3, "range": "above 0 and at most 1"}
    assert max(map(len, shown("methods").splitlines())) <= 160
    both = shown("methods", "ad-drop+r-drop")
    assert "ad-drop: " in both and "r-drop: " in both
    assert "cannot be combined" in shown("methods", "scal+hiddencut", code=2)
    assert "Did you mean 'ad-drop'" in shown("methods", "addrop", code=2)
    listed = shown("tasks")
    assert all(name in listed for name in task_names()) and CONTROL not in listed


def test_doctor_says_what_is_not_supported(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "longformer"}))
    assert cli.main(["doctor", str(tmp_path)]) == 2
    assert re.search(r"supported +no: \w+ is not supported: it does not route", capsys.readouterr().out)


def test_doctor_of_models_that_read_texts_and_images(tmp_path: Path, capsys: Captured) -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = small | {"image_size": 8, "patch_size": 4}
    config = {"model_type": "clip", "architectures": ["CLIPModel"], "text_config": small, "vision_config": vision}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cli.main(["doctor", str(tmp_path)]) == 0
    assert "2 layers: vision_model.encoder.layers.0.self_attn ... text_model" in capsys.readouterr().out
    text = small | {"model_type": "opt", "word_embed_proj_dim": 16, "ffn_dim": 16, "vocab_size": 50}
    parts = {"vision_config": vision, "qformer_config": small | {"encoder_hidden_size": 16}, "image_token_index": 49}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "blip-2", "text_config": text} | parts))
    assert cli.main(["doctor", str(tmp_path)]) == 2
    assert "its forward pass does not hand keyword arguments on" in capsys.readouterr().out


@pytest.mark.parametrize(("module", "arguments"), [("attendrop.cli.app", []), ("attendrop.runs.train", ["train"])])
def test_without_the_extra(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, module: str, arguments: list[str]
) -> None:
    """Whether a package is missing at the beginning or for a command."""

    class Missing(types.ModuleType):
        def __getattr__(self, name: str) -> None:
            raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setitem(sys.modules, module, Missing(module))
    assert cli.main([*arguments, *train_arguments(folder, "refused")[1:]] if arguments else ["methods"]) == 2
    assert "the command line needs rich; run `pip install 'attendrop[cli]'`" in capsys.readouterr().err


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
    folder: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch,
    content: str, arguments: list[str], expected: dict[str, object] | str,
) -> None:  # fmt: skip
    configs: list[RunConfig] = []

    def stop(config: RunConfig, **_: object) -> None:
        configs.append(config)
        raise AttendropError("stop here")

    monkeypatch.setattr("attendrop.runs.train.train", stop)
    (tmp_path / "options.json").write_text(content, encoding="utf-8")
    more = ["--quiet", "--method", "attention-layerdrop", "--options", f"{tmp_path}/options.json", *arguments]
    assert cli.main(train_arguments(folder, "unused", *more)) == 2
    if isinstance(expected, str):
        assert expected in capsys.readouterr().err
    else:
        assert configs[0].options == expected


def test_places_in_the_home_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell replaces the ``~`` of ``--output-dir=~/run``, that of a second file, or that in a file of options."""
    configs: list[RunConfig] = []

    def stop(config: RunConfig, **_: object) -> None:
        configs.append(config)
        raise AttendropError("stop here")

    monkeypatch.setattr("attendrop.runs.train.train", stop)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").symlink_to(folder)
    (tmp_path / "own.yaml").write_text("{eval_file: ~/data/dev.csv, model: ~/data/model, label_column: label}")
    data = ["--train-file=~/data/train.csv", "--text-columns", "sentence1"]
    assert cli.main(["train", "--config=~/own.yaml", *data, "--output-dir=~/run"]) == 2
    found = configs[0]
    assert (found.train_file, found.eval_file) == (f"{tmp_path}/data/train.csv", f"{tmp_path}/data/dev.csv")
    assert (found.model, found.output_dir) == (f"{tmp_path}/data/model", f"{tmp_path}/run")
    assert checked(RunConfig, "train_file", "a.tr, ~/b~.en") == f"a.tr, {tmp_path}/b~.en"
    assert (
        checked(Source, "file", Path("~/a.csv")) == checked(Comparison, "output_dir", "~/a.csv") == f"{tmp_path}/a.csv"
    )
    assert checked(RunConfig, "output_dir", "a/~/run") == "a/~/run"
    assert cli.main(["inspect", "~/data/train.csv"]) == cli.main(["doctor", "~/data/model"]) == 0


# What users get wrong -------------------------------------------------------------------------------------------------

OPTIONS = [
    (["--batch-size", "99999999999999999999"], "batch-size must be below 2**31, not 99999999999999999999."),
    (["--max-length", "3"], "leaves no room for text"),
    (["--set", "layers=7"], "the model has no layer 7; layers are 0 to 1"),
    (["--set", "p=0.1", "--set", "p=0.2"], "--set gives p twice; give it once."),
    (["--resume", "--overwrite"], "resume and overwrite exclude each other"),
    (["--data-dir", "x"], "data-dir is for tasks; omit it"),
]


@pytest.mark.parametrize(("more", "message"), OPTIONS, ids=[" ".join(more) for more, _ in OPTIONS])
def test_wrong_options(folder: Path, capsys: Captured, more: list[str], message: str) -> None:
    assert_refused(train_arguments(folder, "refused", *more), folder / "refused", message, capsys)


def task_run(folder: Path, task: str, *more: str) -> list[str]:
    return ["train", "--task", task, "--model", f"{folder}/model", "--output-dir", f"{folder}/refused", *more]


def other_labels(tmp_path: Path) -> str:
    (tmp_path / "other.csv").write_text("sentence1,sentence2,label\na,b,x\nb,c,y\n")
    return f"{tmp_path}/other.csv"


def dangling(tmp_path: Path) -> str:
    (tmp_path / "link").symlink_to("gone")
    return f"{tmp_path}/link"


SITUATIONS: list[tuple[Callable[[Path, Path], list[str]], str]] = [
    (lambda f, t: task_run(f, "rte", "--text-columns", "a"), "text-columns is for custom files; omit it for a task"),
    (lambda f, t: train_arguments(f, "refused", "--train-file", other_labels(t)), "the label 'no' is not among those"),
    (lambda f, t: train_arguments(f, "run"), "holds a run already; --resume continues it, --overwrite replaces it."),
    (lambda f, t: train_arguments(f, "run", "--resume", "--seed", "1"), "began with seed=0, not 1"),
    (lambda f, t: train_arguments(f, "run", "--resume", "--learning-rate", "1"), "the default learning_rate (0.0001),"),
    (lambda f, t: ["evaluate", f"{f}/model", "--task", "rte"], "has no trained head"),
    (lambda f, t: ["evaluate", f"{f}/run", "--task", "rte", "--data-dir", str(f), "--split", "test"], "has no labels"),
    (lambda f, t: ["evaluate", f"{f}/run", "--task", "mnli"], "The model predicts 2 classes, the task mnli asks for 3"),
    (lambda f, t: train_arguments(f, "run", "--output-dir", dangling(t)), "/link' is a symbolic link, to 'gone', and"),
    (
        lambda f, t: ["predict", f"{f}/run", "--predict-file", f"{f}/dev.csv", "--output", f"{dangling(t)}/out.csv"],
        "/link' is a link to 'gone', which does not exist; delete it, or name another.",
    ),
    (lambda f, t: ["predict", f"{f}/run", "--output", "x.csv"], "No data are given; give --predict-file, or --task."),
    (lambda f, t: ["predict", str(f), "--output", "x.csv"], "holds no model; did you mean"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), SITUATIONS, ids=[message for _, message in SITUATIONS])
def test_wrong_situations(
    folder: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    arguments: Callable[[Path, Path], list[str]],
    message: str,
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert_refused(arguments(folder, tmp_path), folder / "refused", message, capsys)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not list((tmp_path / "here").iterdir())
