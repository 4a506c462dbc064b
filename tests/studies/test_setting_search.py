"""The search of settings: proposals, halving, the choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop.methods.core.registry import build_method, method_names
from attendrop.runs.config import RunConfig
from attendrop.studies.comparison import Comparison
from attendrop.studies.setting_search import (
    LEARNING_RATE_FACTORS,
    SELECTION_FRACTION,
    MethodSetting,
    Trial,
    choose,
    number_of_selection_runs,
    search_settings,
    search_space,
)
from attendrop.studies.units import Result, Unit

DEFAULT = MethodSetting("ad-drop")
OTHER = MethodSetting("ad-drop", {"p": 0.5})


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    tiny.write_data(tmp_path)
    return tiny.config(tmp_path, method="finetune")


class Runs:
    """Units that are scored by a function, instead of being run."""

    def __init__(self, score: Any) -> None:
        self.score = score
        self.asked: list[RunConfig] = []

    def __call__(self, units: Iterable[Unit]) -> list[Result]:
        results = []
        for unit in units:
            self.asked.append(unit.config)
            found = self.score(unit.config)
            metrics = None if found is None else {"selection_score": found, "score": -found}
            results.append(Result(unit, Path("somewhere"), metrics, "failed" if found is None else None))
        return results


def search(config: RunConfig, runs: Runs, *defaults: MethodSetting, **options: Any) -> Any:
    chosen: dict[str, Any] = {"trials": 6, "folds": 2, "learning_rate": 1e-4} | options
    return search_settings(config, defaults or (MethodSetting("finetune"), DEFAULT), run_units=runs, **chosen)


def test_all_methods_have_the_same_number_of_settings_each_once(config: RunConfig) -> None:
    found = search(config, Runs(lambda run: 0.5), trials=5, learning_rate=0.01)
    assert {name: len(trials) for name, trials in found.items()} == {"finetune": 5, "ad-drop": 5}
    for name, trials in found.items():
        assert trials[0].setting == MethodSetting(name)
        assert len({repr(trial.setting) for trial in trials}) == 5
    assert all(trial.setting.options == {} for trial in found["finetune"])
    rates = {trial.setting.learning_rate for trial in found["finetune"][1:]}
    assert len(rates) == 4 and rates < {0.01 * factor for factor in LEARNING_RATE_FACTORS[1:]}


def test_the_same_seed_proposes_the_same_settings(config: RunConfig) -> None:
    one, other = (search(config, Runs(lambda run: 0.5)) for _ in range(2))
    assert one == other


def test_settings_are_around_what_the_data_decided_of_the_default(config: RunConfig) -> None:
    """Which is not given, so that it is searched, too."""
    decided = {"p": 0.3, "attribution": "recorded", "layers": "all"}
    found = search(config, Runs(lambda run: 0.5), DEFAULT, trials=12, decided={"ad-drop": decided})["ad-drop"]
    assert found[0].setting.options == {}
    changed = [trial.setting.options for trial in found[1:] if trial.setting.options]
    assert {options["attribution"] for options in changed} == {"recorded"}
    assert len({options["p"] for options in changed}) > 1


def test_options_are_given_by_any_of_their_names(config: RunConfig) -> None:
    given = [
        MethodSetting("ad-drop+r-drop", {"ad_drop": {"p": 0.3}, "r-drop.alpha": 2.0}),
        MethodSetting("ad-drop", {"cross-tuning": True}),
    ]
    _, both, alone = Comparison(config=config, methods=given).methods
    assert (both.method, both.options) == ("ad-drop+r-drop", {"ad-drop.p": 0.3, "r-drop.alpha": 2.0})
    assert (alone.method, alone.options) == ("ad-drop", {"cross_tuning": True})


def test_settings_of_a_method_keep_what_they_differ_in(config: RunConfig) -> None:
    found = search(config, Runs(lambda run: 0.5), DEFAULT, OTHER, MethodSetting("mixout"), trials=12)
    tried = {label: [trial.setting.options for trial in trials] for label, trials in found.items()}
    assert all("p" not in options for options in tried["ad-drop"])
    assert all(options["p"] == 0.5 for options in tried["ad-drop p=0.5"])
    assert any("p" in options for options in tried["mixout"])
    given = search(config, Runs(lambda run: 0.5), MethodSetting("ad-drop", {"p": "0.4"}), trials=8)
    assert all(trial.setting.applied(config).regularizer.options()["p"] == 0.4 for trial in given["ad-drop p=0.4"])


def test_all_settings_of_a_fold_are_scored_on_the_same_rows(config: RunConfig) -> None:
    runs = Runs(lambda run: 0.5)
    search(dataclasses.replace(config, protocol="paper"), runs, folds=2)
    assert {run.seed for run in runs.asked} == {1000, 1001}
    assert {(run.selection_fraction, run.protocol) for run in runs.asked} == {(SELECTION_FRACTION, "honest")}


def test_hopeless_settings_stop_early_and_the_default_never(config: RunConfig) -> None:
    config = dataclasses.replace(config, learning_rate=1e-9)  # the default, which is the worst
    runs = Runs(lambda run: run.learning_rate)
    found = search(config, runs, MethodSetting("finetune"), trials=5, folds=3)["finetune"]
    rates = [trial.setting.learning_rate or 0.0 for trial in found]
    assert [len(trial.scores) for trial in found if trial.setting == MethodSetting("finetune")] == [3]
    assert sorted(len(trial.scores) for trial in found) == [1, 1, 2, 3, 3]
    assert len(runs.asked) == number_of_selection_runs(5, 3) == 10
    assert choose(found).learning_rate == max(rates)


def test_a_setting_whose_run_fails_is_not_chosen(config: RunConfig) -> None:
    error = -4e10  # of large labels
    runs = Runs(lambda run: error if run.learning_rate == config.learning_rate else None)
    found = search(config, runs, trials=5, folds=1)
    assert choose(found["finetune"]) == MethodSetting("finetune")


@pytest.mark.parametrize(
    ("default", "other", "chosen"),
    [
        ([0.5, 0.5, 0.5], [0.6, 0.6, 0.6], OTHER),
        ([0.5, 0.5, 0.5], [0.9, 0.3, 0.4], DEFAULT),  # better on average by less than its standard error
        ([0.5, 0.5, 0.5], [0.62, 0.48, 0.55], OTHER),  # by more than its standard error, less than its deviation
        ([0.5, 0.6, 0.7], [0.52, 0.61, 0.73], OTHER),
        ([0.5, 0.5, 0.5], [0.9, 0.9], DEFAULT),  # stopped early
        ([None, 0.8, 0.8], [0.1, 0.8, 0.81], DEFAULT),  # better by no more than its standard error where both ran
        ([None, 0.8, 0.8], [0.1, 0.9, 0.9], OTHER),
        ([None, None, None], [0.1, 0.2, 0.1], OTHER),
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], DEFAULT),
        ([0.5], [0.6], OTHER),
    ],
)
def test_the_default_is_left_only_for_more_than_a_standard_error(
    default: list[float | None], other: list[float | None], chosen: MethodSetting
) -> None:
    assert choose([Trial(DEFAULT, default), Trial(OTHER, other)]) == chosen


def test_of_several_that_are_better_the_best_is_chosen() -> None:
    trials = [Trial(DEFAULT, [0.5]), Trial(OTHER, [0.7]), Trial(MethodSetting("ad-drop", {"p": 0.2}), [0.6])]
    assert choose(trials) == OTHER


def test_every_searched_value_is_allowed_and_the_default_comes_first() -> None:
    for name in method_names():
        defaults = build_method(name).options()
        for option, values in search_space(name).items():
            assert len(set(values)) == len(values) > 1
            assert all(build_method(name, {option: value}).options()[option] == value for value in values)
            assert values[0] in (defaults[option], "", None)
    assert {"ad-drop.p", "r-drop.alpha"} <= set(search_space("ad-drop+r-drop"))
