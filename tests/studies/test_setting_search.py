"""The search of settings: proposals, scores, the choice."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop.errors import AttendropError
from attendrop.methods.core.options import searched_values
from attendrop.methods.core.registry import build_method, get_method, method_names
from attendrop.runs.config import RunConfig
from attendrop.studies.compare import MOST_FACTOR, SELECTION_FRACTION, Trial, choose, search_settings
from attendrop.studies.comparison import MethodSetting
from attendrop.studies.units import Result, Unit

pytest.importorskip("optuna")

DEFAULT = MethodSetting("ad-drop")
OTHER = MethodSetting("ad-drop", {"p": 0.5})


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    tiny.write_data(tmp_path)
    return tiny.config(tmp_path, method="finetune")


class Runs:
    """Units that are scored by a function, instead of being run; the data decide some options of the default."""

    def __init__(self, score: Any = lambda run: 0.5, decided: Any = None, rate: float = 0.01) -> None:
        self.score, self.decided, self.rate = score, decided or {}, rate
        self.asked: list[RunConfig] = []

    def __call__(self, units: list[Unit]) -> list[Result]:
        results = []
        for unit in units:
            self.asked.append(unit.config)
            found = self.score(unit.config)
            metrics = {"selection_score": found, "score": -(found or 0), "training": {"learning_rate": self.rate}}
            metrics["options"] = unit.config.regularizer.options() | self.decided
            error = "failed" if found is None else None
            results.append(Result(unit, Path("somewhere"), None if error else metrics, error))
        return results


def search(config: RunConfig, runs: Runs, *defaults: MethodSetting, **options: Any) -> Any:
    chosen: dict[str, Any] = {"trials": 6, "folds": 2} | options
    return search_settings(config, defaults or (MethodSetting("finetune"), DEFAULT), run_units=runs, **chosen)


def test_all_methods_have_the_same_number_of_settings_each_once(config: RunConfig) -> None:
    found = search(config, Runs(), trials=5)
    assert {name: len(trials) for name, trials in found.items()} == {"finetune": 5, "ad-drop": 5}
    for name, trials in found.items():
        assert trials[0].setting == MethodSetting(name)
        assert len({repr(trial.setting) for trial in trials}) == 5
        assert all(trial.scores == [0.5, 0.5] for trial in trials)
    assert all(trial.setting.options == {} for trial in found["finetune"])
    rates = [trial.setting.learning_rate for trial in found["finetune"][1:]]
    assert all(0.01 / MOST_FACTOR <= rate <= 0.01 * MOST_FACTOR for rate in rates)


def test_the_same_seed_and_scores_propose_the_same_settings(config: RunConfig) -> None:
    """So a search that was stopped goes on with its finished runs."""
    score = {"score": lambda run: -abs(math.log(run.learning_rate or 0.01) + 5)}
    one, other = (search(config, Runs(**score), trials=9) for _ in range(2))
    assert one == other
    assert search(config, Runs(**score), trials=5)["ad-drop"] == one["ad-drop"][:5]
    assert search(dataclasses.replace(config, seed=1), Runs(**score), trials=9) != one
    assert search(config, Runs(lambda run: -score["score"](run)), trials=9) != one


def test_settings_are_around_what_the_data_decided_of_the_default(config: RunConfig) -> None:
    """Which is not given, so that it is searched, too."""
    runs = Runs(decided={"p": 0.3, "attribution": "recorded", "layers": "all"})
    found = search(config, runs, DEFAULT, trials=12)["ad-drop"]
    assert found[0].setting.options == {}
    changed = [trial.setting.options for trial in found[1:] if trial.setting.options]
    assert {options["attribution"] for options in changed} == {"recorded"}
    assert len({options["p"] for options in changed}) > 1


def test_settings_of_a_method_keep_what_they_differ_in(config: RunConfig) -> None:
    found = search(config, Runs(), DEFAULT, OTHER, MethodSetting("mixout"), MethodSetting("ad-drop+r-drop"), trials=12)
    tried = {label: [trial.setting.options for trial in trials] for label, trials in found.items()}
    assert all("p" not in options or options["p"] == 0.1 for options in tried["ad-drop"])
    assert all(options["p"] == 0.5 for options in tried["ad-drop p=0.5"])
    assert any("p" in options for options in tried["mixout"])
    assert {"ad-drop.p", "r-drop.alpha"} <= {name for options in tried["ad-drop+r-drop"] for name in options}
    given = search(config, Runs(), MethodSetting("ad-drop", {"p": "0.4"}), trials=8)
    assert all(trial.setting.applied(config).regularizer.options()["p"] == 0.4 for trial in given["ad-drop p=0.4"])


def test_all_settings_are_scored_on_the_same_held_out_rows(config: RunConfig) -> None:
    runs = Runs()
    search(dataclasses.replace(config, protocol="paper"), runs, folds=2)
    assert {run.seed for run in runs.asked} == {1000, 1001}
    assert {(run.selection_fraction, run.protocol) for run in runs.asked} == {(SELECTION_FRACTION, "held-out")}


def test_a_method_whose_default_fails_is_not_searched_and_others_are(config: RunConfig) -> None:
    found = search(config, Runs(lambda run: None if run.method == "ad-drop" else 0.5))
    assert [len(found[name]) for name in ("finetune", "ad-drop")] == [6, 1]
    with pytest.raises(AttendropError, match="No run succeeded; the first error: failed"):
        search(config, Runs(lambda run: None))


def test_without_optuna_it_is_named(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(AttendropError, match=r"--trials needs optuna; run `pip install 'attendrop\[search\]'`"):
        search(config, Runs())


@pytest.mark.parametrize(
    ("default", "other", "chosen"),
    [
        ([0.5, 0.5, 0.5], [0.6, 0.6, 0.6], OTHER),
        ([0.5, 0.5, 0.5], [0.9, 0.3, 0.4], DEFAULT),  # better on average by less than its standard error
        ([0.5, 0.5, 0.5], [0.62, 0.48, 0.55], OTHER),  # by more than its standard error, less than its deviation
        ([0.5, 0.5, 0.5], [0.9, None, 0.9], DEFAULT),
        ([None, 0.8, 0.8], [0.1, 0.8, 0.81], DEFAULT),  # better by no more than its standard error where both ran
        ([None, 0.8, 0.8], [0.1, 0.9, 0.9], OTHER),
        ([None, None, None], [0.1, 0.2, 0.1], OTHER),
        ([0.5], [0.6], OTHER),
    ],
)
def test_the_default_is_left_only_for_more_than_a_standard_error(
    default: list[float | None], other: list[float | None], chosen: MethodSetting
) -> None:
    assert choose([Trial(DEFAULT, default), Trial(OTHER, other)]) == chosen


def test_every_searched_value_is_allowed_and_the_default_comes_first() -> None:
    for name in method_names():
        defaults = build_method(name).options()
        for option, values in searched_values(get_method(name)).items():
            assert len(set(values)) == len(values) > 1
            assert all(build_method(name, {option: value}).options()[option] == value for value in values)
            assert values[0] in (defaults[option], "", None)
