"""`attendrop patterns`: what the methods of runs drop, and the probe. What AttendOut learnt is in tests/reports."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop import cli
from attendrop.reports import run_drops
from attendrop.reports.drops import DropMoment
from attendrop.runs.train import train

Captured = pytest.CaptureFixture[str]
RUNS: dict[str, dict[str, Any]] = {
    "ad-drop": {"options": {"p": 0.4, "q": 0.9}},
    "finetune": {"epochs": 1},
    "alpha-dropout": {"epochs": 1},
    "attendout": {"options": {"learner": "policy_gradient", "dropout_step": 2}},
    "concrete-dropout": {"options": {"p": 0.4}, "epochs": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several methods."""
    folder = tmp_path_factory.mktemp("patterns")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    train(tiny.config(folder, "first", options={"p": 0.4, "q": 0.9, "layers": "0"}))
    for method, options in RUNS.items():
        train(tiny.config(folder, method, method=method, **options))
    return folder


def patterns(captured: Captured, *arguments: str) -> dict[str, Any]:
    captured.readouterr()
    assert cli.main(["patterns", *arguments, "--device", "cpu", "--json"]) == 0
    found: dict[str, Any] = json.loads(captured.readouterr().out)
    return found


def test_what_a_run_drops_is_shown_by_layer_distance_and_type(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[tuple[int, int]] = []
    record = run_drops.record_drops

    def watched(model: Any, method: Any, batch: Any, moment: DropMoment, **how: Any) -> Any:
        moments.append((moment.step, moment.epoch))
        return record(model, method, batch, moment, **how)

    monkeypatch.setattr(run_drops, "record_drops", watched)
    found = patterns(capsys, f"{folder}/ad-drop", "--rows", "32")
    assert moments == [(1, 0), (3, 0), (6, 1), (8, 1)]  # of ten steps in two epochs
    assert (found["method"], found["rows"], found["steps"]) == ("ad-drop", 32, 4)
    # p = 0.4 and q = 0.9 drop at most 0.36 of a row, and nothing of rows without signal.
    assert 0.1 < found["dropped"]["share"] < 0.4
    assert found["dropped"]["low"] < found["dropped"]["share"] < found["dropped"]["high"]
    assert list(found["by_layer"]) == ["encoder.0", "encoder.1"]
    assert set(found["by_to"]) == set(found["by_from"]) == {"special", "word"}
    assert list(found["by_distance"])[:4] == ["0", "1", "2", "3-4"]
    assert set(found["by_head"]) == {"0", "1"}
    rows = list(csv.DictReader(Path(found["table"]).read_text().splitlines()))
    overall = next(row for row in rows if (row["grouping"], row["layer"]) == ("layer", "all"))
    assert float(overall["dropped_share"]) == pytest.approx(found["dropped"]["share"], abs=1e-6)
    assert Path(found["picture"]).stat().st_size > 10_000
    assert cli.main(["patterns", f"{folder}/ad-drop", "--rows", "32", "--device", "cpu", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["patterns", f"{folder}/ad-drop", "--rows", "32", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ad-drop on 32 training rows: model on files, seed 0"
    assert f"4 repeated steps drop {found['dropped']['share']:.1%}" in lines[1]
    assert {"By layer:", "By type of the token attended to:"} <= set(lines)


def test_layers_in_which_nothing_is_dropped_do_not_count(folder: Path, capsys: Captured) -> None:
    found = patterns(capsys, f"{folder}/first", "--rows", "32")
    assert found["active_layers"] == ["encoder.0"]
    assert found["dropped"] == found["by_layer"]["encoder.0"]
    assert found["by_layer"]["encoder.1"]["share"] == 0
    trained = tiny.read_metrics(folder / "first")["history"][-1]["dropped"]["ad-drop"]
    assert found["dropped"]["share"] == pytest.approx(trained, abs=0.1)
    assert cli.main(["patterns", f"{folder}/first", "--rows", "32", "--device", "cpu"]) == 0
    assert " of the positions of attention in encoder.0, and nothing in the other 1 layer." in capsys.readouterr().out


def test_rows_of_a_file_need_no_labels(folder: Path, capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("a,b\nthe cat,the dog\nthe red bird,a cat sees\n")
    found = patterns(
        capsys, f"{folder}/ad-drop", "--file", f"{tmp_path}/texts.csv", "--text-columns", "a,b",
        "--csv", f"{tmp_path}/own.csv",
    )  # fmt: skip
    assert (found["rows"], found["steps"], found["dropped"]["low"]) == (2, 1, None)
    assert (found["table"], found["picture"]) == (f"{tmp_path}/own.csv", f"{tmp_path}/own.png")


@pytest.mark.parametrize(
    ("method", "because"),
    [
        ("finetune", "finetune drops nothing in attention: it regularises nothing."),
        ("alpha-dropout", "alpha-dropout dropped no position of attention in 2 steps that were repeated on 16"),
    ],
)
def test_a_method_that_drops_nothing_in_attention_is_said_to(
    folder: Path, capsys: Captured, method: str, because: str
) -> None:
    before = sorted(path.name for path in (folder / method).iterdir())
    found = patterns(capsys, f"{folder}/{method}", "--rows", "16")
    assert found["drops_in_attention"] is False
    assert found["because"].startswith(because)
    assert sorted(path.name for path in (folder / method).iterdir()) == before


def test_learnt_probabilities_are_used_and_short_runs_are_told(folder: Path, capsys: Captured) -> None:
    found = patterns(capsys, f"{folder}/concrete-dropout", "--rows", "40")
    learnt = tiny.read_metrics(folder / "concrete-dropout")["concrete_dropout"]
    for layer, share in found["by_layer"].items():
        assert share["low"] - 0.05 < learnt[layer] < share["high"] + 0.05
    train(tiny.config(folder, "short", method="ad-drop", options={"cross_tuning": True}, epochs=1, max_steps=None))
    assert cli.main(["patterns", f"{folder}/short", "--rows", "8", "--device", "cpu"]) == 0
    assert "the method was active in none of its epochs" in capsys.readouterr().out


def test_what_attendout_learnt_is_shown_with_what_it_drops(folder: Path, capsys: Captured) -> None:
    found = patterns(capsys, f"{folder}/attendout", "--rows", "16")
    assert len(found["drop_probability"]) == 2
    assert found["picture"] == f"{folder}/attendout/patterns.png"
    last = [found["drop_probability"][layer][-1] for layer in ("encoder.0", "encoder.1")]
    drops = found["drops"]
    assert [share["share"] for share in drops["by_layer"].values()] == pytest.approx(last, abs=0.1)
    assert drops["picture"] == f"{folder}/attendout/drops.png"
    _, *command = shlex.split(patterns(capsys, f"{folder}/attendout", "--rows", "8", "--fit", "1")["fit"]["command"])
    followed = ["--output-dir", f"{folder}/followed", "--max-steps", "2", "--quiet"]
    assert cli.main([*command, *followed]) == 0
    schedule = json.loads((folder / "attendout" / "scheduler.json").read_text())
    assert tiny.read_metrics(folder / "followed")["options"] == schedule["options"]
    generator = folder / "attendout" / "generator.safetensors"
    kept = generator.read_bytes()
    generator.unlink()
    try:
        assert cli.main(["patterns", f"{folder}/attendout", "--rows", "16", "--device", "cpu"]) == 0
    finally:
        generator.write_bytes(kept)
    out, err = capsys.readouterr()
    assert out.startswith("AttendOut: ")
    assert "What the run drops is not shown: " in err and "lacks generator.safetensors, which its run wrote" in err


def test_the_probe_compares_high_low_and_random_attributions(folder: Path, capsys: Captured) -> None:
    found = patterns(capsys, f"{folder}/finetune", "--probe", "--rows", "10", "--rates", "0.3,0.6")
    assert (found["rows"], found["set"], found["metric"]) == (10, "dev", "accuracy")
    places = [(each["layer"], each["rate"], each["direction"]) for each in found["results"]]
    directions = ("high", "low", "random")
    assert places == [(f"encoder.{i}", rate, way) for i in range(2) for rate in (0.3, 0.6) for way in directions]
    for each in found["results"]:
        assert each["change"] == pytest.approx(each["loss"] - found["loss"])
        assert 0 <= each["score"] <= 1
    rows = list(csv.DictReader(Path(found["table"]).read_text().splitlines()))
    assert [float(row["loss"]) for row in rows] == pytest.approx([each["loss"] for each in found["results"]], abs=1e-6)
    assert Path(found["picture"]).stat().st_size > 10_000
    assert (
        cli.main(["patterns", f"{folder}/finetune", "--probe", "--rows", "4", "--rates", "0.9,0.2", "--device", "cpu"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Probe of model on files, seed 0, on 4 rows of dev"
    assert any("drops 20% of each row" in line for line in lines)


@pytest.fixture(scope="module")
def windows(folder: Path) -> Path:
    """A run on texts in windows of four words."""
    options = {"text_columns": ("sentence1",), "long_texts": "windows", "max_length": 6, "method": "ad-drop"}
    train(tiny.config(folder, "windows", **options, options={"p": 0.4, "q": 0.9, "cross_tuning": False}))
    return folder / "windows"


def test_the_probe_of_texts_in_windows_is_over_texts(windows: Path, capsys: Captured) -> None:
    found = patterns(capsys, str(windows), "--probe", "--rows", "12", "--rates", "0.5")
    assert (found["rows"], found["windows"]) == (12, 22)
    assert found["score"] == tiny.read_metrics(windows)["all_scores"]["dev"]["accuracy"]
    assert cli.main(["patterns", str(windows), "--probe", "--rows", "5", "--rates", "0.5", "--device", "cpu"]) == 0
    assert re.search(r"on 5 rows of dev, \d+ windows\n", capsys.readouterr().out)


def test_what_is_dropped_of_texts_in_windows_is_told_by_rows_and_windows(
    windows: Path, capsys: Captured, tmp_path: Path
) -> None:
    found = patterns(capsys, str(windows), "--rows", "32")
    assert found["rows"] == 32
    assert found["windows"] > 40
    assert found["steps"] == -(-found["windows"] // 8)
    file = tmp_path / "texts.csv"
    file.write_text("sentence1\nthe cat sees the red bird and not the dog\nthe cat\n")
    given = ["patterns", str(windows), "--file", str(file), "--csv", f"{tmp_path}/own.csv", "--device", "cpu"]
    assert cli.main(given) == 0
    assert capsys.readouterr().out.startswith(f"ad-drop on 2 rows of {file}, 4 windows: ")


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        ("ad-drop", ["--rows", "0"], "rows must be at least 1"),
        ("ad-drop", ["--fit", "1"], "learns no dropout patterns"),
        ("ad-drop", ["--probe", "--rates", "x"], "is not a list of numbers"),
        ("ad-drop", ["--probe", "--rates", "1.0"], "must be above 0 and below 1"),
        ("ad-drop", ["--probe", "--file", "x.csv"], "omit --file"),
        ("ad-drop", ["--csv", "/nowhere/x.csv"], "cannot be written"),
        ("ad-drop", ["--file", "/nowhere/x.csv"], "/nowhere/x.csv"),
        ("model", [], "holds no finished run"),
        ("without", [], "kept no model, with which what it drops could be recorded"),
        ("without", ["--probe"], "kept no model to probe"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, capsys: Captured, run: str, arguments: list[str], message: str
) -> None:
    (folder / "without").mkdir(exist_ok=True)
    for file in ("run.json", "metrics.json"):
        (folder / "without" / file).write_bytes((folder / "ad-drop" / file).read_bytes())
    capsys.readouterr()
    assert cli.main(["patterns", f"{folder}/{run}", *arguments, "--device", "cpu", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
