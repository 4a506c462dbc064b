"""The choice of an encoder on the training rows: what is held out, the decision in words, and whole comparisons."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import AttendropError
from attendrop.cli import main
from attendrop.runs.model_loading import Loaded, load_for
from attendrop.studies import screening
from attendrop.studies.comparison import Comparison
from attendrop.studies.screening import REPEATS, ScreenedEncoder, Screening, screen
from attendrop.studies.statistics import Estimate
from attendrop.tasks.types.classification import Classification

SMALL, LARGE = 20_000_000, 100_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, width in (("small", 16), ("large", 32)):
        tiny.save_tiny_bert(tmp_path / name, hidden_size=width)
    rows = [f"{tiny.sentence(number)},{name}_card,{number // 2}" for name in ("red", "blue") for number in range(6)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label,customer", *rows]) + "\n", encoding="utf-8")
    return tmp_path


def encoder(name: str, size: int, score: float, lead: tuple[float, float] | None = None, p: float | None = None) -> Any:
    difference = None if lead is None else Estimate(sum(lead) / 2, *lead)
    return ScreenedEncoder(name, size, score, 1.0, difference, p)


@pytest.mark.parametrize(
    ("encoders", "chosen", "told"),
    [
        ((encoder("a", LARGE, 0.9), encoder("b", SMALL, 0.8, (-0.15, -0.05), 0.01)), "a",
         "ahead of all that are smaller (a minus b: accuracy +0.100 [+0.050, +0.150])"),
        ((encoder("a", LARGE, 0.9), encoder("b", SMALL, 0.89, (-0.03, 0.01), 0.3)), "b",
         "(a minus b: accuracy +0.010 [-0.010, +0.030]), and none as good is smaller; where cost matters less, name a"),
        ((encoder("a", SMALL, 0.9), encoder("b", LARGE, 0.8, (-0.15, -0.05), 0.01)), "a", "none is smaller"),
        ((encoder("a", 3 * LARGE, 0.9), encoder("c", LARGE, 0.89, (-0.03, 0.01), 0.3),
          encoder("b", SMALL, 0.8, (-0.15, -0.05), 0.01)), "c", "not shown to be ahead of it (a minus c"),
        ((encoder("a", SMALL, 0.9),), "a", "no other is given"),
    ],
)  # fmt: skip
def test_the_cheapest_that_is_not_shown_to_be_behind_is_chosen(encoders: Any, chosen: str, told: str) -> None:
    found = Screening("accuracy", 40, encoders)
    assert found.chosen.model == chosen
    assert f"Encoder: {chosen}." in found.sentences[0] and told in found.sentences[0]
    assert Screening.from_dict(json.loads(json.dumps(asdict(found)))) == found


def test_names_tell_encoders_apart_and_are_those_that_an_option_takes() -> None:
    large, small = encoder("one/model", LARGE, 0.9), encoder("other/model", SMALL, 0.89, (-0.03, 0.01), 0.3)
    found = Screening("accuracy", 40, (large, small))
    assert "Encoder: other/model." in found.sentences[0] and "(one/model minus other/model: " in found.sentences[0]
    assert [row[0] for row in found.table()[1:]] == ["one/model", "other/model (chosen)"]
    found = Screening("accuracy", 40, (encoder("BAAI/bge", LARGE, 0.9), small))
    assert "(bge minus model: " in found.sentences[0] and "name BAAI/bge by --model" in found.sentences[0]


def test_small_errors_are_shown_with_the_decimals_that_tell_them_apart() -> None:
    behind = ScreenedEncoder("other", 5, -0.0009, 1.0, Estimate(-0.0005, -0.0006, -0.0004), 0.001)
    found = Screening("neg_root_mean_squared_error", 40, (ScreenedEncoder("best", 10, -0.0004, 1.0), behind))
    assert "error +0.000500 [+0.000400, +0.000600])." in found.sentences[0]
    assert [row[2:4] for row in found.table()[1:]] == [
        ("-0.000400", "-"),
        ("-0.000900", "-0.000500 [-0.000600, -0.000400]"),
    ]


def test_names_are_never_held_out_and_groups_are_as_a_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are told apart by their features: here their numbers, of which those of a customer differ by a fraction."""
    fits: list[set[float]] = []
    fit_linear = Classification.fit_linear

    def fit(self: Any, features: Any, *arguments: Any, **options: Any) -> Any:
        fits.append(set(features[:, 0].tolist()))
        return fit_linear(self, features, *arguments, **options)

    def numbers(model: Any, tokenizer: Any, task_type: Any, encoded: Any, *_: Any) -> Any:
        assert len(encoded["length"]) == 14  # 12 rows and 2 names of classes
        return np.arange(28.0).reshape(14, 2)

    monkeypatch.setattr(screening, "frozen_features", numbers)
    monkeypatch.setattr(Classification, "fit_linear", fit)
    data: dict[str, Any] = {
        "text_columns": ("text",),
        "group_column": "customer",
        "eval_file": str(folder / "train.csv"),
    }
    config = tiny.config(folder, model=str(folder / "small"), method="finetune", **data)
    found = screen(config, [str(folder / "small")])
    assert found.rows == 12
    every, folds = fits[0], fits[1:]
    assert len(every) == 14
    held = [every - kept for kept in folds]
    assert all(
        sorted(value for each in held[start : start + 3] for value in each) == sorted(range(0, 24, 2))
        for start in range(0, 3 * REPEATS, 3)
    )  # each row once in each repetition, and no name
    assert all({row + 12 for row in each if row < 12} == {row for row in each if row >= 12} for each in held)


def test_a_comparison_on_the_chosen_encoder(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    models, asked = f"{folder}/large,{folder}/small", ["--quiet", "--workers", "0", "--device", "cpu"]
    asked += ["compare", f"{folder}/train.csv", "--models", models, "--methods", "finetune", "--baselines", "frozen"]
    asked = [*asked[5:], *asked[:5], "--seeds", "1", "--max-steps", "1", "--label-column", "label"]
    assert main([*asked, "--text-columns", "text", "--output-dir", f"{folder}/answer"]) == 0
    found = json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))
    by_size = sorted(found["encoders"]["encoders"], key=lambda each: each["parameters"])
    assert [Path(each["model"]).name for each in by_size] == ["small", "large"]
    assert found["encoders"]["chosen"] == found["model"] == f"{folder}/small"  # eight rows tell nothing apart
    written = (folder / "answer" / "answer.md").read_text(encoding="utf-8")
    assert found["encoders"]["sentences"][0].partition(" (")[0] in written

    capsys.readouterr()
    monkeypatch.setattr("attendrop.studies.compare.screen", lambda *_: pytest.fail("screened again"))
    assert main([*asked, "--text-columns", "text", "--output-dir", f"{folder}/answer"]) == 0
    assert main([*asked, "--text-columns", "text", "--output-dir", f"{folder}/answer", "--model", "other"]) == 2
    assert "model 'other' is not one of models" in capsys.readouterr().err
    assert main(["report", f"{folder}/answer"]) == 0
    page = (folder / "answer" / "report" / "report.html").read_text(encoding="utf-8")
    assert "Encoder: small. Frozen, with a linear model, on the 8 training rows" in page and "small (chosen)" in page


def test_auto_leaves_out_what_cannot_be_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, task: Any) -> Loaded:
        if name != "minilm":
            raise AttendropError("no network")
        return load_for(str(folder / "small"), task)

    config = tiny.config(
        folder, text_columns=("text",), method="finetune", eval_file=str(folder / "train.csv"), model="minilm"
    )
    named = Comparison(config=config, models=("auto",))
    replace(named, config=replace(config, model="thenlper/gte-small"))  # which was chosen
    monkeypatch.setattr(screening, "load_for", load)
    found = screen(config, ["auto"])
    assert [each.model for each in found.encoders] == ["minilm"] and len(found.left_out) == 5
    assert found.sentences[0].endswith("it is the only one that could be loaded.")
    assert "Left out, because they cannot be loaded here: thenlper/gte-small, BAAI/" in found.sentences[1]
    with pytest.raises(AttendropError, match="no network"):
        screen(config, ["minilm", str(folder / "large")])
    monkeypatch.setattr(screening, "load_for", lambda *_: pytest.fail("read before all names were looked at"))
    with pytest.raises(AttendropError, match="missing"):
        screen(config, ["minilm", str(folder / "missing")])
