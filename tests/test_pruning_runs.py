"""`attendrop prune` and `attendrop export`: a run's model pruned, reported, used like any other."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny

import attendrop
from attendrop import cli
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and finished runs: plain in ``run``, of AttendOut's pruning version in ``attendout``."""
    folder = tmp_path_factory.mktemp("pruning")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    train(tiny.config(folder, "run", method="finetune", epochs=1))
    options = {"variant": "pruning", "dropout_step": 2}
    train(tiny.config(folder, "attendout", method="attendout", options=options, epochs=1))
    return folder


def pruned(folder: Path, output: Path, run: str = "run", **options: Any) -> dict[str, Any]:
    return prune_run(str(folder / run), str(output), device="cpu", **options)


def arguments(folder: Path, output: Path | str, *more: str, run: str = "run") -> list[str]:
    return ["prune", f"{folder}/{run}", "--output-dir", str(output), "--device", "cpu", *more]


def test_prune_says_what_it_did(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(arguments(folder, tmp_path / "out", "--layers", "1,")) == 0
    out, err = capsys.readouterr()
    assert not err
    for pattern in (
        r"constant attention +1 of 2 layers: 1",
        r"ranked by +loss with this layer constant +0: \d\.\d+ +1: \d\.\d+",
        r"selection score +accuracy \d\.\d{4} -> \d\.\d{4}",
        r"dev score +accuracy \d\.\d{4} -> \d\.\d{4}",
        r"parameters +[\d,]+ -> [\d,]+",
        r"weights on disk +.* -> ",
        r"speed +\d+\.\d\d times as fast on cpu",
    ):
        assert re.search(pattern, out), (pattern, out)


def test_auto_finds_the_most_that_cost_nothing(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(arguments(folder, tmp_path / "out", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == tiny.read_metrics(tmp_path / "out")
    what = found["pruned"]
    scores = [what["scores"][str(count)] for count in range(3)]
    assert len(what["layers"]) == max(count for count, score in enumerate(scores) if score >= scores[0])
    assert (what["ranked_by"], what["chosen_on"], what["of"]) == ("importance", "selection", 2)
    least = sorted(what["harm"], key=what["harm"].__getitem__)[: len(what["layers"])]
    assert sorted(f"encoder.{layer}" for layer in what["layers"]) == sorted(least)
    assert what["selection"]["before"]["accuracy"] == scores[0]
    assert what["all_scores"]["dev"]["before"] == tiny.read_metrics(folder / "run")["all_scores"]["dev"]


def test_a_pruned_folder_is_used_like_a_run(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    found = pruned(folder, out, layers="0,1")
    assert (found["pruned"]["layers"], found["pruned"]["speed"] > 0) == ([0, 1], True)
    counts = found["pruned"]["parameters"]
    assert counts["before"] - counts["after"] == 2 * 3 * (16 * 16 + 16)
    assert found["pruned"]["bytes"]["after"] < found["pruned"]["bytes"]["before"]
    assert attendrop.load(out).layers == (0, 1)
    assert cli.main(["evaluate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == found["all_scores"]["dev"]
    answers = str(tmp_path / "answers.csv")
    assert cli.main(["predict", str(out), "--predict-file", f"{folder}/dev.csv", "--output", answers]) == 0
    assert len(Path(answers).read_text().splitlines()) == 13
    card = (out / "README.md").read_text()
    assert "without attention in 2 of 2 layers" in card
    assert "attendrop.load" in card


def test_recovery_trains_with_the_layers_in_place(folder: Path, tmp_path: Path) -> None:
    plain = pruned(folder, tmp_path / "plain", layers=[1])
    found = pruned(folder, tmp_path / "out", layers=[1], recover_epochs=1)
    assert (found["pruned"]["layers"], found["pruned"]["recover_epochs"]) == ([1], 1)
    assert plain["pruned"]["recover_epochs"] == 0
    before, after = (attendrop.load(tmp_path / name).state_dict() for name in ("plain", "out"))
    assert before.keys() == after.keys()
    assert not before["model.classifier.weight"].equal(after["model.classifier.weight"])


def test_what_was_recovered_is_scored_anew(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    found = pruned(folder, tmp_path / "out", tolerance=1.0, recover_epochs=3)
    assert found["pruned"]["layers"] == [0, 1]
    assert cli.main(["evaluate", f"{tmp_path}/out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == found["pruned"]["all_scores"]["dev"]["after"]


def test_the_generator_ranks_its_own_run(folder: Path, tmp_path: Path) -> None:
    pi = tiny.read_metrics(folder / "attendout")["pruning"]["pi"]
    least = min(pi.values())
    found = pruned(folder, tmp_path / "out", "attendout", layers=f">={least:.9f}")["pruned"]
    assert (found["ranked_by"], found["harm"]) == ("generator", pi)
    assert pruned(folder, tmp_path / "one", "attendout", layers=1)["pruned"]["layers"] in ([0], [1])


def test_a_generator_that_saw_some_layers_only(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "attendout", run)
    metrics = tiny.read_metrics(run)
    metrics["pruning"]["pi"] = {"encoder.1": 0.25}
    (run / "metrics.json").write_text(json.dumps(metrics))
    found = prune_run(str(run), str(tmp_path / "out"), layers=">=0.2", device="cpu")["pruned"]
    assert (found["layers"], found["harm"]) == ([1], {"encoder.0": 0.0, "encoder.1": 0.25})


def test_without_a_selection_split_it_says_what_it_chose_on(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    train(tiny.config(folder, str(tmp_path / "run"), method="finetune", epochs=1, selection_fraction=0.0))
    assert cli.main(arguments(tmp_path, tmp_path / "out", "--layers", "1")) == 0
    out, err = capsys.readouterr()
    assert "layers were chosen on dev, so the dev score flatters" in out
    assert "no selection split: layers are chosen on dev" in err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--layers", "some"), "is not understood"),
        (("--layers", "7,"), "no layer 7; layers are 0 to 1"),
        (("--layers", "3"), "only 2 layers"),
        (("--layers", ">=0.5"), "this model has none"),
        (("--tolerance", "-1"), "tolerance=-1.0 must be at least 0"),
        (("--recover-epochs", "-1"), "recover-epochs must be at least 0"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_mistakes(folder: Path, tmp_path: Path, capsys: Captured, more: tuple[str, ...], words: str) -> None:
    assert cli.main(arguments(folder, tmp_path / "out", *more)) == 2
    assert re.fullmatch(rf"Error: .*{re.escape(words)}.*\n", capsys.readouterr().err.splitlines(keepends=True)[-1])
    assert not (tmp_path / "out").exists()


def test_folders_that_will_not_do(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    def refused(words: str, run: str = "run", output: Path | str = tmp_path / "out") -> None:
        assert cli.main(arguments(folder, output, run=run)) == 2
        assert words in capsys.readouterr().err

    refused("is not empty", output=folder / "model")
    refused("is not empty", output=folder / "train.csv")
    refused("holds no finished run", run="model")
    refused("holds no finished run", run="nowhere")
    shutil.copytree(folder / "run", folder / "unfinished")
    (folder / "unfinished" / "metrics.json").unlink()
    refused("holds no finished run", run="unfinished")
    pruned(folder, folder / "light", layers="1,")
    refused("is pruned already", run="light")


def test_changed_data(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    train(tiny.config(tmp_path, method="finetune", epochs=1))
    tiny.write_csv(tmp_path / "train.csv", ["yes", "no"] * 20)
    assert cli.main(arguments(tmp_path, tmp_path / "out")) == 2
    assert "The data changed since the run" in capsys.readouterr().err


def test_a_pruned_model_is_not_trained(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    pruned(folder, tmp_path / "out", layers="1,")
    columns = ("--text-columns", "sentence1,sentence2", "--label-column", "label")
    given = ["train", "--train-file", f"{folder}/train.csv", *columns, "--model", f"{tmp_path}/out"]
    assert cli.main([*given, "--output-dir", f"{tmp_path}/run"]) == 2
    assert "is pruned and does not train" in capsys.readouterr().err


@pytest.mark.parametrize("format_", ["onnx", "torch"])
def test_export(folder: Path, tmp_path: Path, capsys: Captured, format_: str) -> None:
    pruned(folder, tmp_path / "out", layers="1,")
    for run in (tmp_path / "out", folder / "run"):
        target = tmp_path / f"{run.name}.model"
        assert cli.main(["export", str(run), "--format", format_, "--output", str(target)]) == 0
        assert f"Wrote {target}" in capsys.readouterr().out
        assert target.stat().st_size


@pytest.mark.parametrize(
    ("run", "more", "words"),
    [
        ("run", ("--format", "jpeg", "--output", "x"), "'jpeg' is not known. Choose from: onnx, torch"),
        ("nowhere", ("--output", "x"), "There is no run folder"),
        ("run", ("--output", "no/such/folder/x"), "cannot be written"),
    ],
    ids=["format", "run", "output"],
)
def test_export_mistakes(folder: Path, capsys: Captured, run: str, more: tuple[str, ...], words: str) -> None:
    assert cli.main(["export", f"{folder}/{run}", *more]) == 2
    assert words in capsys.readouterr().err
