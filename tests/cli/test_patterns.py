"""`attendrop patterns`: what the methods of runs drop, and the probe. What AttendOut learnt is in tests/reports."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import cli
from attendrop.cli import drops_output, probe_output
from attendrop.reports import learned_patterns, run_drops
from attendrop.reports.drops import DropMoment
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train

AD_DROP: dict[str, Any] = {"method": "ad-drop", "epochs": 1}
STRONG = {"p": 0.4, "q": 0.9}
WINDOWS: dict[str, Any] = {"text_columns": ("sentence1",), "long_texts": "windows", "max_length": 6}
RUNS: dict[str, dict[str, Any]] = {
    "ad-drop": AD_DROP | {"options": STRONG, "epochs": 2},
    "first": AD_DROP | {"options": STRONG | {"layers": "0"}},
    "finetune": {"method": "finetune", "epochs": 1},
    "alpha-dropout": {"method": "alpha-dropout", "epochs": 1},
    "attendout": {"method": "attendout", "options": {"dropout_step": 2}},
    "concrete-dropout": {"method": "concrete-dropout", "options": {"p": 0.4}, "epochs": 1},
    "short": AD_DROP | {"options": {"cross_tuning": True}},
    "windows": AD_DROP | WINDOWS | {"options": STRONG | {"cross_tuning": False}},
}


def run(folder: Path, name: str) -> Path:
    if not (folder / name).exists():
        train(tiny.config(folder, name, **RUNS[name]))
    return folder / name


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that take no time; tests/reports draws them."""
    monkeypatch.setattr(drops_output, "plot_drops", lambda found, title, picture: picture.touch())
    monkeypatch.setattr(probe_output, "plot_probe", lambda found, picture: picture.touch())
    monkeypatch.setattr(learned_patterns, "plot", lambda found, picture, fitted: picture.touch())


def patterns(captured: Captured, *arguments: str) -> dict[str, Any]:
    return json.loads(shown(captured, *arguments, "--json"))


def shown(captured: Captured, *arguments: str) -> str:
    captured.readouterr()
    assert cli.main(["patterns", *arguments, "--device", "cpu"]) == 0
    return captured.readouterr().out


def test_what_a_run_drops_is_shown_by_layer_distance_and_type(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[tuple[int, int]] = []
    record = run_drops.record_drops

    def watched(model: Any, method: Any, batch: Any, moment: DropMoment, **how: Any) -> Any:
        moments.append((moment.step, moment.epoch))
        return record(model, method, batch, moment, **how)

    monkeypatch.setattr(run_drops, "record_drops", watched)
    place = str(run(folder, "ad-drop"))
    found = patterns(capsys, place, "--rows", "32")
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
    lines = shown(capsys, place, "--rows", "32").splitlines()
    assert lines[0] == "ad-drop on 32 training rows: model on files, seed 0"
    assert f"4 repeated steps drop {found['dropped']['share']:.1%}" in lines[1]
    assert {"By layer:", "By type of the token attended to:"} <= set(lines)


def test_layers_in_which_nothing_is_dropped_do_not_count(folder: Path, capsys: Captured, undrawn: None) -> None:
    out = shown(capsys, str(run(folder, "first")), "--rows", "32")
    assert " of the attention positions in encoder.0, and nothing in the other 1 layer." in out
    shares = {line.split()[0]: line.split()[2] for line in out.splitlines() if line.startswith("encoder.")}
    assert shares["encoder.1"] == "0.0%" and f"steps drop {shares['encoder.0']} (" in out
    trained = tiny.read_metrics(folder / "first")["history"][-1]["dropped"]["ad-drop"]
    assert float(shares["encoder.0"].rstrip("%")) / 100 == pytest.approx(trained, abs=0.1)


@pytest.mark.parametrize(
    ("method", "because"),
    [
        ("finetune", "finetune drops nothing in attention: it regularises nothing."),
        (
            "alpha-dropout",
            "alpha-dropout dropped no attention position in 2 repeated steps on 16 training rows; it drops hidden "
            "units.",
        ),
    ],
)
def test_a_method_that_drops_nothing_in_attention_is_said_to(
    folder: Path, capsys: Captured, method: str, because: str
) -> None:
    before = sorted(path.name for path in run(folder, method).iterdir())
    found = patterns(capsys, f"{folder}/{method}", "--rows", "16")
    assert found["drops_in_attention"] is False
    assert found["because"] == because
    assert sorted(path.name for path in (folder / method).iterdir()) == before


def test_learnt_probabilities_are_used_and_short_runs_are_told(folder: Path, capsys: Captured, undrawn: None) -> None:
    found = patterns(capsys, str(run(folder, "concrete-dropout")), "--rows", "40")
    learnt = tiny.read_metrics(folder / "concrete-dropout")["concrete_dropout"]
    for layer, share in found["by_layer"].items():
        assert share["low"] - 0.05 < learnt[layer] < share["high"] + 0.05
    out = shown(capsys, str(run(folder, "short")), "--rows", "8")
    assert "the method was active in none of its epochs" in out


def test_what_attendout_learnt_is_shown_with_what_it_drops(folder: Path, capsys: Captured, undrawn: None) -> None:
    place = run(folder, "attendout")
    found = patterns(capsys, str(place), "--rows", "16", "--fit", "1")
    assert len(found["drop_probability"]) == 2
    assert found["picture"] == f"{place}/patterns.png"
    last = [found["drop_probability"][layer][-1] for layer in ("encoder.0", "encoder.1")]
    drops = found["drops"]
    assert [share["share"] for share in drops["by_layer"].values()] == pytest.approx(last, abs=0.1)
    assert drops["picture"] == f"{place}/drops.png"
    _, *command = shlex.split(found["fit"]["command"])
    assert cli.main([*command, "--output-dir", f"{folder}/followed", "--max-steps", "1", "--quiet"]) == 0
    schedule = json.loads((place / "scheduler.json").read_text())
    assert tiny.read_metrics(folder / "followed")["options"] == schedule["options"]
    (place / "generator.safetensors").unlink()
    assert cli.main(["patterns", str(place), "--rows", "16", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("AttendOut: ")
    assert "What the run drops is not shown: " in err and "lacks generator.safetensors, which its run wrote" in err


def test_the_probe_compares_high_low_and_random_attributions(folder: Path, capsys: Captured, undrawn: None) -> None:
    place = str(run(folder, "finetune"))
    found = patterns(capsys, place, "--probe", "--rows", "10", "--rates", "0.3,0.6")
    assert (found["rows"], found["set"], found["metric"]) == (10, "dev", "accuracy")
    places = [(each["layer"], each["rate"], each["direction"]) for each in found["results"]]
    directions = ("high", "low", "random")
    assert places == [(f"encoder.{i}", rate, way) for i in range(2) for rate in (0.3, 0.6) for way in directions]
    for each in found["results"]:
        assert each["change"] == pytest.approx(each["loss"] - found["loss"])
        assert 0 <= each["score"] <= 1
    rows = list(csv.DictReader(Path(found["table"]).read_text().splitlines()))
    assert [float(row["loss"]) for row in rows] == pytest.approx([each["loss"] for each in found["results"]], abs=1e-6)
    lines = shown(capsys, place, "--probe", "--rows", "4", "--rates", "0.9,0.2").splitlines()
    assert lines[0] == "Probe of model on files, seed 0, on 4 rows of dev"
    assert any("drops 20% of each row" in line for line in lines)


def test_texts_in_windows_are_told_by_rows_and_windows(
    folder: Path, capsys: Captured, undrawn: None, tmp_path: Path
) -> None:
    place = str(run(folder, "windows"))
    probe = patterns(capsys, place, "--probe", "--rows", "12", "--rates", "0.5")
    assert (probe["rows"], probe["windows"]) == (12, 22)
    assert probe["score"] == tiny.read_metrics(folder / "windows")["all_scores"]["dev"]["accuracy"]
    found = patterns(capsys, place, "--rows", "32")
    assert found["rows"] == 32 and found["windows"] > 40
    assert found["steps"] == -(-found["windows"] // 8)
    file = tmp_path / "texts.csv"  # which needs no labels
    file.write_text("text\nthe cat sees the red bird and not the dog\nthe cat\n")
    own = ["--file", str(file), "--text-columns", "text", "--csv", f"{tmp_path}/own.csv"]
    out = shown(capsys, place, *own)
    assert out.startswith(f"ad-drop on 2 rows of {file}, 4 windows: ")
    assert out.endswith(f"Wrote {tmp_path}/own.csv and {tmp_path}/own.png.\n")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("finetune", ["--rows", "0"], "rows must be at least 1"),
        ("finetune", ["--fit", "1"], "learns no dropout patterns"),
        ("finetune", ["--probe", "--rates", "x"], "is not a list of numbers"),
        ("finetune", ["--probe", "--rates", "1.0"], "must be above 0 and below 1"),
        ("finetune", ["--probe", "--file", "x.csv"], "omit --file"),
        ("finetune", ["--probe", "--fit", "2"], "--fit is for what AttendOut learnt"),
        ("finetune", ["--rates", "0.3"], "--rates is for --probe, which is missing"),
        ("first", ["--text-columns", "text"], "--text-columns is for --file, which is missing"),
        ("pruned", [], "is pruned, and its fast layers compute no attention weights"),
        ("finetune", ["--csv", "/nowhere/x.csv"], "cannot be written"),
        ("first", ["--file", "/nowhere/x.csv"], "/nowhere/x.csv"),
        ("model", [], "holds no finished run"),
        ("without", [], "kept no model, only its scores"),
        ("without", ["--probe"], "kept no model, only its scores"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, name: str, arguments: list[str], message: str
) -> None:
    (folder / "without").mkdir(exist_ok=True)
    for file in ("run.json", "metrics.json"):
        (folder / "without" / file).write_bytes((run(folder, "first") / file).read_bytes())
    record = json.loads((folder / "without" / "run.json").read_text())
    (folder / "without" / "run.json").write_text(json.dumps(record | {"files": {}}))
    place = run(folder, name) if name in RUNS else folder / name
    if name == "pruned":
        monkeypatch.setattr("attendrop.runs.speed.SECONDS", 0.01)
        prune_run(str(folder / "first"), str(place), layers="1,", device="cpu")
    capsys.readouterr()
    assert cli.main(["patterns", str(place), *arguments, "--device", "cpu", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
