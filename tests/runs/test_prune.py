"""`attendrop prune`: a run's model pruned, reported, used like any other."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny
from helpers.command_line import Captured

import attendrop
from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.inference import load_finished_run
from attendrop.runs.prune import change_of_score, prune_run
from attendrop.runs.run_trainer import balanced_loss
from attendrop.runs.train import train


@pytest.fixture(scope="module")
def folder(own: Path, shared: Path) -> Path:
    """A model, data, and finished runs: plain in ``run``, of AttendOut's pruning version in ``attendout``."""
    (own / "run").symlink_to(shared / "plain")
    options = {"variant": "pruning", "dropout_step": 2}
    train(tiny.config(own, "attendout", method="attendout", options=options, epochs=1))
    return own


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for moments only: what it is that is measured has tests of its own."""
    monkeypatch.setattr("attendrop.runs.prune.SECONDS", 0.01)
    monkeypatch.setattr("attendrop.pruning.selection.RESAMPLES", 20)


def pruned(folder: Path, output: Path, run: str = "run", **options: Any) -> dict[str, Any]:
    return prune_run(str(folder / run), str(output), device="cpu", **options)


def arguments(folder: Path, output: Path | str, *more: str, run: str = "run") -> list[str]:
    return ["prune", f"{folder}/{run}", "--output-dir", str(output), "--device", "cpu", *more]


def test_rows_that_belong_together_are_one_of_the_units_of_intervals(files: Path) -> None:
    header, *rows = (files / "dev.csv").read_text().splitlines()
    (files / "twice.csv").write_text("\n".join([header, *rows, *rows]) + "\n")
    train(tiny.config(files, method="finetune", max_steps=1, epochs=None, eval_file=str(files / "twice.csv")))
    run = load_finished_run(str(files / "run"), device="cpu")
    groups = run.predictions("dev", run.outputs("dev")).groups
    assert groups is not None and groups.tolist() == [*range(len(rows))] * 2


def test_auto_finds_the_most_that_surely_cost_no_more(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(arguments(folder, tmp_path / "out", "--json", "--tolerance", "2")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == tiny.read_metrics(tmp_path / "out")
    what = found["pruned"]
    scores = [what["scores"][str(count)] for count in range(3)]
    assert sorted(what["layers"]) == [0, 1]
    for count, found_at in what["differences"].items():
        assert found_at["value"] == pytest.approx(what["scores"][count] - scores[0])
        assert found_at["low"] < -0.2 < 0.2 < found_at["high"]
    assert (what["ranked_by"], what["chosen_on"], what["of"]) == ("importance", "selection", 2)
    assert what["selection"]["before"]["accuracy"] == scores[0]
    assert what["all_scores"]["dev"]["before"] == tiny.read_metrics(folder / "run")["all_scores"]["dev"]


def test_a_difference_is_above_zero_where_pruning_helps(folder: Path) -> None:
    run = load_finished_run(str(folder / "run"), device="cpu")
    for name in run.sets:
        right = np.eye(2)[run.sets[name]["labels"]]
        for before, after, value in ((right, 1 - right, -1), (1 - right, right, 1)):
            found = change_of_score(run, name, before, after)
            assert (found["difference"]["value"], found["after"]["accuracy"]) == (value, max(value, 0))


def test_few_rows_take_no_layer_and_then_there_is_no_difference(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(arguments(folder, tmp_path / "out")) == 0
    out = capsys.readouterr().out
    assert "constant attention  0 of 2 layers" in out and "speed" not in out
    assert re.search(r"not known +4 rows cannot tell whether \d layers? would cost more than the tolerance of 0: ", out)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "What is not known: 4 rows" in card and "No layer was pruned." in card and "times that of" not in card
    found = tiny.read_metrics(tmp_path / "out")["pruned"]
    assert found["layers"] == []
    assert found["speed"] is found["selection"]["difference"] is found["all_scores"]["dev"]["difference"] is None


def test_a_pruned_folder_is_used_like_a_run(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(folder / "run", run)
    of_others = {"predicted": {"dev": {"no": 99}}, "row_scores": None, "report": None}
    (run / "metrics.json").write_text(json.dumps(tiny.read_metrics(run) | of_others))
    found = prune_run(str(run), str(out), layers="0,1", device="cpu")
    assert sum(found["predicted"]["dev"].values()) == found["row_scores"]["rows"] == 12
    assert sum(each["rows"] for each in found["report"]["classes"]) == 12
    assert found["pruned"]["layers"] == [0, 1]
    counts = found["pruned"]["parameters"]
    assert counts["before"] - counts["after"] == 2 * 3 * (16 * 16 + 16)
    assert attendrop.load(out).layers == (0, 1)
    assert cli.main(["evaluate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == found["all_scores"]["dev"]
    assert "without attention in 2 of 2 layers" in (out / "README.md").read_text()


def test_recovery_trains_on_all_rows_as_the_run_did_and_is_scored_anew(
    files: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the rows that were held out for the epoch, and the weights of the classes; not calibrated any more."""
    options = {"class_weights": "balanced", "refit": True, "method": "finetune", "max_steps": 1, "calibrate": True}
    assert train(tiny.config(files, **options))["temperature"]
    seen = []

    def balanced(labels: list[int], num_classes: int) -> Any:
        seen.append((len(labels), num_classes))
        return balanced_loss(labels, num_classes)

    monkeypatch.setattr("attendrop.runs.prune.balanced_loss", balanced)
    found = pruned(files, files / "out", layers=[0, 1], recover_epochs=1)
    assert seen == [(40, 2)] and found["pruned"]["recover_epochs"] == 1
    assert "it was fine-tuned for 1 more epoch, without a method" in (files / "out" / "README.md").read_text()
    assert found["temperature"] is None and "probabilities were calibrated" in caplog.text
    assert pruned(files, files / "kept", layers=[0])["temperature"]
    before, after = attendrop.load(files / "run"), attendrop.load(files / "out")
    assert not before.state_dict()["classifier.weight"].equal(after.state_dict()["model.classifier.weight"])
    assert cli.main(["evaluate", f"{files}/out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == found["pruned"]["all_scores"]["dev"]["after"]


def test_the_generator_ranks_its_own_run(folder: Path, tmp_path: Path) -> None:
    pi = tiny.read_metrics(folder / "attendout")["pruning"]["pi"]
    least = min(pi.values())
    found = pruned(folder, tmp_path / "out", "attendout", layers=f">={least:.9f}")["pruned"]
    assert (found["ranked_by"], found["harm"]) == ("generator", pi)
    one = pruned(folder, tmp_path / "one", "attendout", layers=1, select_by="method")["pruned"]
    most = max(pi, key=lambda key: (pi[key], key))  # of equal ones the last
    assert (one["ranked_by"], one["layers"]) == ("generator", [int(most.split(".")[1])])


def test_without_a_selection_split_it_says_what_it_chose_on(files: Path, capsys: Captured) -> None:
    train(tiny.config(files, method="finetune", max_steps=1, selection_fraction=0.0))
    assert cli.main(arguments(files, files / "out", "--layers", "1")) == 0
    assert "layers were chosen on dev, so the dev score is optimistic" in capsys.readouterr().out
    assert cli.main(arguments(files, files / "named", "--layers", "1,")) == 0  # nothing is chosen
    out, err = capsys.readouterr()
    assert "chosen on dev" not in out + err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--layers", "7,"), "no layer 7; layers are 0 to 1"),
        (("--select-by", "method"), "learnt no ranking of layers"),
        (("--layers", "1", "--tolerance", "0.5"), "tolerance=0.5 is for layers='auto'"),
    ],
)
def test_mistakes(folder: Path, tmp_path: Path, capsys: Captured, more: tuple[str, ...], words: str) -> None:
    assert cli.main(arguments(folder, tmp_path / "out", *more)) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_folders_that_will_not_do(folder: Path, plain: Path, tmp_path: Path, capsys: Captured) -> None:
    def refused(words: str, run: Path = folder / "run", output: Path = tmp_path / "out") -> None:
        assert cli.main(["prune", str(run), "--output-dir", str(output), "--device", "cpu"]) == 2
        assert words in capsys.readouterr().err

    refused("is not empty", output=plain)
    refused("is a file", output=plain / "run.json")
    refused("holds no finished run", run=folder / "model")
    pruned(folder, tmp_path / "light", layers="1,")
    refused("is pruned already", run=tmp_path / "light")
    record = json.loads((plain / "run.json").read_text())
    (plain / "run.json").write_text(json.dumps(record | {"data_sha256": "of other rows"}))
    refused("The data changed since the run", run=plain)
    tiny.unfinished(plain)
    refused("is not finished; `attendrop train` with --resume finishes it", run=plain)
    with pytest.raises(AttendropError, match="is pruned and does not train"):
        train(tiny.config(folder, str(tmp_path / "run"), model=str(tmp_path / "light")))
