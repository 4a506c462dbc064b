"""Figures: what they show, that they are made only of runs that have their data, and their files."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.finished_runs import AHEAD, PLAIN, history, write_run, write_runs

from attendrop.methods.core.registry import build_method
from attendrop.reports.figures import Figure, make_figures
from attendrop.studies.results import read_results


def made(folder: Path) -> dict[str, Figure]:
    return {figure.kind: figure for figure in make_figures(read_results(folder))[0]}


def values(figure: Figure, *columns: str) -> list[list[str]]:
    return figure.values[list(columns)].values.tolist()


def layer_of(figure: Figure, layer: int = -1) -> dict[str, Any]:
    """One layer of the first panel of a figure, with its data, which may be those of the layers around it."""
    (spec, *_) = figure.spec().get("vconcat", [figure.spec()])
    while "layer" in spec:
        spec, layer = {"data": spec.get("data")} | spec["layer"][layer], -1
    return spec


def encoding(figure: Figure, channel: str, layer: int = -1) -> dict[str, Any]:
    return layer_of(figure, layer)["encoding"][channel]


def test_curves_are_means_over_seeds_with_their_range(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", (0.3, 0.6))
    found = made(tmp_path)
    assert values(found["convergence"], "mean", "lowest", "highest", "seeds")[-1] == ["0.450", "0.300", "0.600", "2"]
    assert "bands" in found["convergence"].caption
    losses = values(found["learning_curves"], "value of", "epoch", "mean")
    assert ["training loss", "2", "0.500"] in losses
    assert ["validation loss", "2", "0.600"] in losses
    assert encoding(found["learning_curves"], "x")["axis"]["values"] == [1, 2, 3]


def test_held_out_curves_are_those_before_the_training_on_all_rows(tmp_path: Path) -> None:
    before = {"rows": 4, "history": history(0.9)}
    write_run(tmp_path, "finetune", 0.5, history=history(0.5, held_out=False), selection=before)
    assert values(made(tmp_path)["convergence"], "mean")[-1] == ["0.900"]


def test_accuracy_at_coverage_is_a_mean_over_seeds(tmp_path: Path) -> None:
    for seed, accuracies in enumerate([(1.0, 0.6), (0.8, 0.5)]):
        points = [{"coverage": share, "accuracy": each} for share, each in zip((0.5, 1.0), accuracies, strict=True)]
        write_run(tmp_path, "finetune", 0.5, seed=seed, report={"coverage": points})
    found = made(tmp_path)["coverage"]
    assert values(found, "rows accepted, %", "mean") == [["50", "0.900"], ["100", "0.550"]]


def test_scores_and_gains_have_intervals_and_far_baselines_do_not_flatten_them(tmp_path: Path) -> None:
    for method, scores in (("finetune", PLAIN), ("r-drop", AHEAD), ("majority", (0.01, 0.01, 0.01, 0.01))):
        write_runs(tmp_path, method, scores)
    found = made(tmp_path)
    gain, scores = found["cost_gain"], found["scores"]
    records = {each["_0"]: each for each in layer_of(gain)["data"]["values"]}
    assert (records["r-drop"]["_x"], records["r-drop"]["_y"]) == pytest.approx((1.75, 0.10))
    assert (records["finetune"]["_x"], records["finetune"]["_y"]) == (1, 0)
    assert values(gain, "difference [95 %]")[1][0].startswith("+0.100 [+")
    assert values(gain, "difference [95 %]")[2][0].startswith("-0.505")
    low, high = encoding(gain, "y")["scale"]["domain"]
    assert -0.2 < low < 0 < 0.1 < high
    assert values(scores, "method", "accuracy", "95 % interval beside the reference")[:2] == [
        ["finetune", "0.515", "-"],
        ["r-drop", "0.615", "[0.602, 0.628]"],
    ]
    assert encoding(scores, "x", -2)["scale"]["domain"][0] > 0.4


def test_score_over_data_size_joins_settings_that_differ_in_rows_only(tmp_path: Path) -> None:
    for size in (64, 16):
        for method, scores in (("finetune", (0.90, 0.99, 0.97, 0.98)), ("r-drop", (0.99, 1.0, 1.0, 1.0))):
            config = {"max_train_samples": size}
            write_runs(tmp_path, method, [score - 0.2 * (size == 16) for score in scores], config=config)
    write_runs(tmp_path, "finetune", PLAIN, config={"task": "mrpc"})
    found, _ = make_figures(read_results(tmp_path))
    (chart,) = (figure for figure in found if figure.kind == "data_size")
    assert encoding(chart, "y")["scale"]["domain"] == pytest.approx([0.76 - 0.2 * 0.238, 0.998 + 0.2 * 0.238], abs=1e-3)
    assert values(chart, "method", "training rows", "accuracy") == [
        ["finetune", "16", "0.760"],
        ["finetune", "64", "0.960"],
        ["r-drop", "16", "0.798"],
        ["r-drop", "64", "0.998"],
    ]


def test_heat_maps_of_a_setting_have_one_symmetric_scale_of_colours(tmp_path: Path) -> None:
    """Of AD-DROP on a grid of p and q without and with cross-tuning."""
    write_run(tmp_path, "finetune", 0.5)
    for p, q, crossed in product((0.1, 0.9), (0.3, 0.7), (False, True)):
        given = build_method("ad-drop", {"p": p, "q": q, "cross_tuning": crossed}).options()
        if (p, q, crossed) != (0.1, 0.3, True):  # without the first cell, values rise along both axes, too
            write_run(tmp_path, "ad-drop", 0.5 + (0.1 * p * q if crossed else -0.3 * p), options=given)
    without, with_it = (each for each in make_figures(read_results(tmp_path))[0] if each.kind == "heat_map")
    assert (encoding(with_it, "x", 0)["sort"], encoding(with_it, "y", 0)["sort"]) == (["0.3", "0.7"], ["0.1", "0.9"])
    assert [without.detail, with_it.detail] == ["ad-drop cross_tuning=False", "ad-drop cross_tuning=True"]
    columns = ("p", "q", "accuracy", "difference in points", "seeds")
    assert values(with_it, *columns)[-1] == ["0.9", "0.7", "0.563", "+6.3", "1"]
    assert (encoding(with_it, "x", 0)["title"], encoding(with_it, "y", 0)["title"]) == ("q", "p")
    every = made(tmp_path)["grid"]  # all pairs stand beside those without the other option
    assert len(every.values) == 7
    assert ["ad-drop cross_tuning=False", "0.1", "0.3", "0.470"] in values(every, "method", "p", "q", "accuracy")
    for figure in (without, with_it):
        assert encoding(figure, "color", 0)["scale"]["domain"] == pytest.approx([-27, 27])


def test_methods_with_a_learning_rate_of_their_own_are_a_grid_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path, "finetune", 0.5)
    for p, q, (rate, score) in product((0.1, 0.9), (0.3, 0.7), (("", 0.6), (" learning_rate=1e-06", 0.4))):
        label = f"ad-drop p={p:g} q={q:g}{rate}"
        options = build_method("ad-drop", {"p": p, "q": q}).options()
        write_run(tmp_path, "ad-drop", score, options=options, label=label.replace(" q=0.3", ""))
    maps = [each for each in make_figures(read_results(tmp_path))[0] if each.kind == "heat_map"]
    found = {each.detail: {score for (score,) in values(each, "accuracy")} for each in maps}
    assert found == {"ad-drop": {"0.600"}, "ad-drop learning_rate=1e-06": {"0.400"}}


def test_a_cell_is_compared_on_the_seeds_that_it_has_in_common_with_the_reference(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", (0.5, 0.9))
    for p, seed in ((0.1, 0), (0.9, 1), (0.5, 7)):
        for q in (0.3, 0.7):
            options = build_method("ad-drop", {"p": p, "q": q}).options()
            write_run(tmp_path, "ad-drop", 0.6, seed=seed, options=options)
    chart = made(tmp_path)["heat_map"]
    assert dict(values(chart, "p", "difference in points")) == {"0.1": "+10.0", "0.9": "-30.0"}


def test_figures_are_made_only_where_runs_have_their_data(tmp_path: Path) -> None:
    old = history(0.5, held_out=False)
    del old[0]["step"], old[0]["selection_loss"]  # of an older version
    old[1]["train_loss"] = float("nan")
    write_run(tmp_path, "finetune", 0.5, history=old)
    found, left_out = make_figures(read_results(tmp_path))
    assert [figure.kind for figure in found] == ["learning_curves"]
    assert values(found[0], "epoch") == [["1"], ["3"]]  # what is no number is left out
    assert "Convergence: no run has scores on held-out rows; train with --selection-fraction 0.1." in left_out


@pytest.mark.parametrize("ended", [False, True])
def test_means_over_fewer_seeds_at_the_end_are_told(ended: bool, tmp_path: Path) -> None:
    write_run(tmp_path, "finetune", 0.5, history=history(0.5))
    write_run(tmp_path, "finetune", 0.5, seed=1, history=history(0.5)[: -1 if ended else None])
    caption = made(tmp_path)["convergence"].caption
    assert ("Lines: mean over seeds, where some runs ended, of those that are left" in caption) is ended


def test_files_have_the_title_and_the_data_and_hold_any_letter(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\x00\ud800 $\\frac{$ _&"
    steps = [{"step": step, "drop_probability": {hostile: 0.1}} for step in (1, 2)]
    write_run(tmp_path, "attendout", 0.5, dropout_steps=steps, config={"task": hostile})
    figure = made(tmp_path)["drop_probability"]
    assert values(figure, "layer", "step", "probability")[1][1:] == ["2", "0.1000"]
    files = figure.files()
    assert (files["png"][:4], files["pdf"][:4]) == (b"\x89PNG", b"%PDF")
    words = [
        "".join(each.itertext()) for each in ElementTree.fromstring(files["svg"]).iter() if each.tag.endswith("text")
    ]
    assert sum("<script>alert(1)</script>" in word for word in words) >= 2  # the setting, and the legend
