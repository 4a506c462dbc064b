"""Figures: what they show, and that they are made only of runs that have their data."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.finished_runs import history, write_run, write_runs
from matplotlib import colormaps

from attendrop.methods.core.registry import build_method
from attendrop.reports import figures
from attendrop.reports.charts import make_charts
from attendrop.reports.figures import Chart, Picture
from attendrop.reports.results import read_results

PLAIN, AHEAD = (0.50, 0.52, 0.51, 0.53), (0.60, 0.63, 0.61, 0.62)


def made(folder: Path) -> dict[str, Chart]:
    return {chart.kind: chart for chart in make_charts(read_results(folder))[0]}


def reasons(folder: Path) -> dict[str, str]:
    return {each.title: each.reason for each in make_charts(read_results(folder))[1]}


def texts(chart: Chart) -> list[str]:
    return [mark.text for mark in chart.marks]


def values(chart: Chart, *columns: str) -> list[Sequence[str]]:
    return [[row[list(chart.header).index(column)] for column in columns] for row in chart.rows]


# What they show ------------------------------------------------------------------------------------------------------


def test_curves_are_means_over_seeds_with_their_range(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", (0.3, 0.6))
    found = made(tmp_path)
    assert values(found["learning_curves"], "epoch", "mean") == [["1", "1.000"], ["2", "0.500"], ["3", "0.333"]]
    assert values(found["convergence"], "mean", "lowest", "highest", "seeds")[-1] == ["0.450", "0.300", "0.600", "2"]
    assert "bands" in found["convergence"].caption
    assert texts(found["convergence"])[-1] == "finetune, epoch 3: accuracy 0.450 (0.300 to 0.600)"
    losses = values(found["losses"], "value of", "epoch", "mean")
    assert ["training loss", "2", "0.500"] in losses
    assert ["validation loss", "2", "0.600"] in losses


def test_a_single_epoch_has_one_tick(tmp_path: Path) -> None:
    write_run(tmp_path, "finetune", 0.5, history=history(0.5)[:1])
    axes = made(tmp_path)["learning_curves"].figure.axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]


def test_held_out_curves_are_those_before_the_training_on_all_rows(tmp_path: Path) -> None:
    before = {"rows": 4, "history": history(0.9)}
    write_run(tmp_path, "finetune", 0.5, history=history(0.5, held_out=False), selection=before)
    assert values(made(tmp_path)["convergence"], "mean")[-1] == ["0.900"]


HELD_OUT = "on rows held out of the training data, which are never those of the final score"
REPORTED = "on the rows of the final score, which is optimistic, because the epoch is chosen on them"


@pytest.mark.parametrize(
    ("protocols", "rows"),
    [
        (("honest", "honest"), f"{HELD_OUT}."),
        (("honest", "paper"), f"{HELD_OUT}; of runs with protocol paper (r-drop), {REPORTED}."),
    ],
)
def test_captions_say_on_which_rows_epochs_are_scored(tmp_path: Path, protocols: tuple[str, str], rows: str) -> None:
    for method, protocol in zip(("finetune", "r-drop"), protocols, strict=True):
        write_run(tmp_path, method, 0.5, protocol=protocol)
    write_run(tmp_path, "majority", 0.4, protocol="honest")  # has no epochs
    found = made(tmp_path)
    assert f"Score after each epoch {rows} Lines" in found["convergence"].caption
    assert f"Validation loss: {rows} A training loss" in found["losses"].caption


def test_many_methods_are_the_reference_and_the_best(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", PLAIN[:2])
    for number in range(1, 10):
        write_runs(tmp_path, "r-drop", [number / 20, number / 20], options={"alpha": number / 100})
    chart = made(tmp_path)["learning_curves"]
    shown = {row[0] for row in chart.rows}
    assert len(shown) == 8
    assert {"finetune", "r-drop alpha=0.09"} <= shown
    assert "r-drop alpha=0.01" not in shown
    assert "Of 10 methods, the reference and the 7 with the best scores are shown." in chart.caption
    assert "bands" not in chart.caption  # of so many, they would cover each other


def drawn(chart: Chart) -> dict[str, tuple[Any, Any]]:
    """The colour and the marker of each label."""
    lines = [(line.get_color(), line.get_marker()) for line in chart.figure.axes[0].lines]
    looks = [(color, marker) for color, marker in lines if marker in figures.MARKERS]
    return dict(zip((text.get_text() for text in chart.figure.legends[0].texts), looks, strict=True))


def test_a_method_looks_the_same_in_all_figures_of_a_report(tmp_path: Path) -> None:
    for size, gain in ((16, 0.1), (64, -0.1)):
        config = {"max_train_samples": size}
        write_runs(tmp_path, "finetune", PLAIN[:2], config=config)
        write_runs(tmp_path, "r-drop", [score + gain for score in PLAIN[:2]], config=config)
        write_runs(tmp_path, "mixout", [score - gain for score in PLAIN[:2]], config=config)
        write_runs(tmp_path, "majority", [score - 0.01 for score in PLAIN[:2]], config=config)
    charts = [chart for chart in make_charts(read_results(tmp_path))[0] if chart.kind != "scores"]
    assert len(charts) == 1 + 2 * 4
    labels = ("finetune", "r-drop", "mixout", "majority")
    looks = dict(zip(labels, zip(figures.SERIES, figures.MARKERS, strict=True), strict=False))
    for chart in charts:
        assert drawn(chart).items() <= looks.items()
    assert len(drawn(charts[0])) == len(labels)


def test_a_score_stands_on_its_interval_where_methods_have_other_seeds(tmp_path: Path) -> None:
    """The bar is of common seeds, the mean of all."""
    write_runs(tmp_path, "finetune", (0.50, 0.51, 0.52, 0.53, 0.80, 0.81))
    write_runs(tmp_path, "r-drop", (0.51, 0.52, 0.53, 0.541))
    chart = made(tmp_path)["scores"]
    (mark,) = [mark for mark in chart.marks if mark.text.startswith("r-drop")]
    low, high = map(float, values(chart, "95 % interval beside the reference")[1][0].strip("[]").split(", "))
    assert low < mark.x < high
    assert "Where seeds are missing, a point is the reference's mean plus the difference." in chart.caption


def test_scores_and_gains_have_intervals_and_far_baselines_do_not_flatten_them(tmp_path: Path) -> None:
    for method, scores in (("finetune", PLAIN), ("r-drop", AHEAD), ("majority", (0.01, 0.01, 0.01, 0.01))):
        write_runs(tmp_path, method, scores)
    found = made(tmp_path)
    chart = found["cost_gain"]
    marks = {mark.text.partition(":")[0]: mark for mark in chart.marks}
    assert (marks["r-drop"].x, marks["r-drop"].y) == pytest.approx((1.75, 0.10))
    assert marks["r-drop"].text.startswith("r-drop: +0.100 [+")
    assert (marks["finetune"].x, marks["finetune"].y) == (1, 0)
    assert marks["majority"].y > -0.2  # at the lower edge
    assert "-0.505" in marks["majority"].text
    assert "Bars: 95 % intervals on new rows. An open marker at an edge marks a value beyond it." in chart.caption
    chart = found["scores"]
    assert [mark.x for mark in chart.marks][:2] == pytest.approx([0.515, 0.615])
    assert chart.marks[2].x > 0.4  # far away, at the edge
    assert values(chart, "method", "accuracy", "95 % interval beside the reference") == [
        ["finetune", "0.515", "-"],
        ["r-drop", "0.615", "[0.602, 0.628]"],
        ["majority", "0.010", "-"],
    ]
    assert chart.caption.endswith("may be chance. An open point at an edge marks a value beyond it.")


def test_intervals_of_scores_end_at_the_best_possible_score(tmp_path: Path) -> None:
    for size in (16, 64):
        for method, scores in (("finetune", (0.90, 0.99, 0.97, 0.98)), ("r-drop", (0.99, 1.0, 1.0, 1.0))):
            write_runs(tmp_path, method, scores, config={"max_train_samples": size})
    charts, _ = make_charts(read_results(tmp_path))
    over_size, scores, _ = (chart for chart in charts if chart.kind in ("data_size", "scores"))
    assert scores.figure.axes[0].get_xlim()[1] == 1.0
    assert values(scores, "95 % interval beside the reference")[1][0].endswith(", 1.000]")
    assert {row[0] for row in values(over_size, "high")} == {"1.000"}


def test_times_have_labels_also_where_there_is_one_power_of_ten_at_most(tmp_path: Path) -> None:
    for method, scores in (("finetune", PLAIN), ("r-drop", AHEAD)):
        write_runs(tmp_path, method, scores)
    (axes,) = made(tmp_path)["cost_gain"].figure.axes
    low, high = axes.get_xlim()
    shown = [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    assert len(shown) > 2 and "1x" in shown


def test_drop_probabilities_of_periods_and_of_epochs(tmp_path: Path) -> None:
    steps = [
        {"step": 10 * period, "drop_probability": {"encoder.0": 0.1, "encoder.1": 0.1 + 0.05 * period}}
        for period in (1, 2)
    ]
    write_run(tmp_path, "finetune", 0.5)
    write_run(tmp_path, "attendout", 0.5, dropout_steps=steps)
    name = "concrete_dropout/probability/encoder.0"
    epochs = [entry | {"figures": {name: 0.1 * entry["epoch"]}} for entry in history(0.5)]
    write_run(tmp_path, "concrete-dropout", 0.5, history=epochs)
    periods, of_epochs = (each for each in make_charts(read_results(tmp_path))[0] if each.kind == "drop_probability")
    assert "encoder.1, step 20: 0.200" in texts(periods)
    steps_of_epochs = ((4, "0.100"), (8, "0.200"), (12, "0.300"))
    assert texts(of_epochs) == [f"encoder.0, step {step}: {value}" for step, value in steps_of_epochs]


def cells(chart: Chart) -> dict[str, Any]:
    """Colours of a heat map by the text of the cell."""
    (axes,) = chart.figure.axes
    return {text.get_text(): patch.get_facecolor() for text, patch in zip(axes.texts, axes.patches, strict=True)}


def write_grid(folder: Path, score: Callable[[float, float, bool], float], **options: Any) -> list[Chart]:
    """Write runs of AD-DROP on a grid of p and q without and with cross-tuning; return their heat maps."""
    write_run(folder, "finetune", 0.5, **options)
    for p, q, cross_tuning in product((0.1, 0.9), (0.3, 0.7), (False, True)):
        given = build_method("ad-drop", {"p": p, "q": q, "cross_tuning": cross_tuning}).options()
        write_run(folder, "ad-drop", score(p, q, cross_tuning), options=given, **options)
    return [chart for chart in make_charts(read_results(folder))[0] if chart.kind == "heat_map"]


def test_heat_maps_of_a_setting_have_one_symmetric_scale_of_colours(tmp_path: Path) -> None:
    without, with_it = write_grid(tmp_path, lambda p, q, crossed: 0.5 + (0.1 * p * q if crossed else -0.3 * p))
    assert [without.detail, with_it.detail] == ["ad-drop cross_tuning=False", "ad-drop cross_tuning=True"]
    assert with_it.header[:4] == ("p", "q", "accuracy", "difference in points")
    assert sorted(values(with_it, "p", "q", "difference in points"))[-1] == ["0.9", "0.7", "+6.3"]
    assert "p=0.9, q=0.7: +6.3 points, 0.563 of 1 seed" in texts(with_it)
    assert with_it.title.startswith("Difference from finetune in points of accuracy over p and q, ad-drop cross")
    every = made(tmp_path)["grid"]  # all pairs stand beside those without the other option
    assert len(every.marks) == 8 and "ad-drop cross_tuning=False, p=0.1, q=0.3: 0.470" in texts(every)
    assert cells(without)["-27.0"] == colormaps["RdBu_r"](0.0)
    assert cells(with_it)["+6.3"] == colormaps["RdBu_r"](0.5 + 0.5 * 6.3 / 27)
    assert "The largest difference is 6.3 points. All heat maps of the setting" in with_it.caption
    assert "have the same colours, up to 27.0 points." in with_it.caption
    assert "The largest difference is 27.0 points." in without.caption


def test_heat_maps_of_errors_are_in_their_own_unit(tmp_path: Path) -> None:
    chart = write_grid(tmp_path, lambda p, q, _: 0.5 - 20 * p * q, metric="neg_mean_squared_error")[0]
    assert set(cells(chart)) == {"-0.600", "-1.400", "-5.400", "-12.6"}
    assert chart.title.startswith("Difference from finetune in neg_mean_squared_error over p and q")
    assert "The largest difference is 12.6." in chart.caption


def test_a_cell_is_compared_on_the_seeds_that_it_has_in_common_with_the_reference(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", (0.5, 0.9))
    for p, seed in ((0.1, 0), (0.9, 1), (0.5, 7)):
        for q in (0.3, 0.7):
            options = build_method("ad-drop", {"p": p, "q": q}).options()
            write_run(tmp_path, "ad-drop", 0.6, seed=seed, options=options)
    chart = made(tmp_path)["heat_map"]
    gains = {row[0]: row[3] for row in chart.rows}
    assert gains == {"0.1": "+10.0", "0.9": "-30.0"}


def test_score_over_data_size_joins_settings_that_differ_in_rows_only(tmp_path: Path) -> None:
    for size in (64, 16):
        for method, scores in (("finetune", PLAIN), ("r-drop", AHEAD)):
            config = {"max_train_samples": size}
            write_runs(tmp_path, method, [score - 0.2 * (size == 16) for score in scores], config=config)
    write_runs(tmp_path, "finetune", PLAIN, config={"task": "mrpc"})
    chart = made(tmp_path)["data_size"]
    assert chart.title == "Score over data size, cola"
    assert chart.figure.axes[0].get_ylim() == pytest.approx((0.30 - 0.066, 0.63 + 0.066))
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in chart.figure.axes[0].lines]
    means = ([0.315, 0.515], [0.415, 0.615])
    assert drawn == [([16, 64], pytest.approx(each)) for each in means]
    assert values(chart, "method", "training rows", "accuracy") == [
        ["finetune", "16", "0.315"],
        ["finetune", "64", "0.515"],
        ["r-drop", "16", "0.415"],
        ["r-drop", "64", "0.615"],
    ]


def test_sizes_without_a_common_method_have_no_chart(tmp_path: Path) -> None:
    for size, method in ((64, "finetune"), (16, "r-drop")):
        write_runs(tmp_path, method, PLAIN, config={"max_train_samples": size})
    assert "no two settings with a method in common" in reasons(tmp_path)["Score over data size"]


# What they need ------------------------------------------------------------------------------------------------------


def test_figures_are_made_only_where_runs_have_their_data(tmp_path: Path) -> None:
    old = history(0.5, held_out=False)
    del old[0]["step"], old[0]["selection_loss"]  # of an older version
    old[1]["train_loss"] = float("nan")
    write_run(tmp_path, "finetune", 0.5, history=old)
    assert list(made(tmp_path)) == ["learning_curves"]
    assert values(made(tmp_path)["learning_curves"], "epoch") == [["1"], ["3"]]  # what is no number is left out
    assert reasons(tmp_path) == {
        "Scores": "there are no scores of the reference and of a method",
        "Score over data size": "no two settings with a method in common differ only in the number of training rows",
        "Cost against gain": "no method has two seeds in common with the reference",
        "Convergence": "no run has scores on held-out rows; train with --selection-fraction 0.1",
        "Training and validation loss": "no run has scores on held-out rows; train with --selection-fraction 0.1 "
        "(runs of older versions kept no validation loss)",
        "Drop probability of each layer": "no method here learns a probability for each layer",
        "Scores over a grid, with and without an option": "no method was run on a grid of two numeric options, with "
        "and without another",
        "Heat map of a grid": "no method was run on a grid of two numeric options",
    }


# Files and pages -----------------------------------------------------------------------------------------------------


def hostile_chart() -> Chart:
    name = "<script>alert(1)</script>\x00\ud800 $\\frac{$ _&"
    with figures.drawing(2.0, [name]) as drawn:
        (drawn.entries[name],) = drawn.axes.plot([0, 1], [0, 1], color=figures.SERIES[0])
        figures.label_axes(drawn.axes, "", name)
        for place in (0, 1):
            drawn.tell(place, place, name, name)
    return drawn.chart("kind", "", name, name, (name,))


def words(svg: bytes) -> list[str]:
    """The lines of text in an SVG."""
    return [
        "".join(each.itertext()).strip() for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")
    ]


def svg_of(picture: Picture) -> bytes:
    return base64.b64decode(picture.source.removeprefix("data:image/svg+xml;base64,"))


def test_files_have_the_title_and_the_data_above_the_figure_and_the_page_does_not(tmp_path: Path) -> None:
    steps = [{"step": step, "drop_probability": {"encoder.0": 0.1}} for step in (1, 2)]
    write_run(tmp_path, "attendout", 0.5, dropout_steps=steps)
    chart = made(tmp_path)["drop_probability"]
    title = ["Drop probability of each layer, attendout", "cola"]
    before, svg = chart.picture(), chart.svg()
    assert [word for word in words(svg) if word in title] == title
    after = chart.picture()
    assert not set(words(svg_of(after))) & set(title)
    assert after[1:] == before[1:]  # the size, and the places of the marks
    assert made(tmp_path)["drop_probability"].svg() == svg  # the same runs make the same file


def test_names_of_wide_letters_leave_room_for_the_figure(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", PLAIN)
    write_runs(tmp_path, "r-drop", AHEAD, label="字" * 50)
    found = made(tmp_path)
    for chart in (found["scores"], found["convergence"]):
        chart.picture()
        assert chart.figure.axes[0].get_window_extent().width > 0.7 * chart.figure.bbox.width
        for text in chart.figure.legends[0].texts if chart.figure.legends else []:
            assert text.get_window_extent().x1 <= chart.figure.bbox.x1


@pytest.mark.parametrize("scores", [(1.0,) * 4, (-51_000, -52_000, -51_500, -52_300)])
def test_the_numbers_below_scores_do_not_touch_each_other(tmp_path: Path, scores: Sequence[float]) -> None:
    write_runs(tmp_path, "finetune", scores)
    write_runs(tmp_path, "r-drop", scores[::-1])
    chart = made(tmp_path)["scores"]
    chart.picture()
    boxes = [label.get_window_extent() for label in chart.figure.axes[0].get_xticklabels()]
    assert all(left.x1 + 4 < right.x0 for left, right in pairwise(boxes))


def test_bars_of_runs_without_scores_by_row_are_not_said_to_hold_on_new_rows(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", PLAIN)
    write_runs(tmp_path, "r-drop", AHEAD)
    write_runs(tmp_path, "mixout", AHEAD, row_scores=None)
    for kind in ("scores", "cost_gain"):
        assert "intervals on new rows (on these rows, of runs without scores by row)" in made(tmp_path)[kind].caption


def test_what_is_not_shown_takes_no_room(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", PLAIN)
    for number in range(12):
        write_runs(tmp_path, "r-drop", [score - number / 20 for score in AHEAD], options={"alpha": number / 100})
    low, _ = made(tmp_path)["cost_gain"].figure.axes[0].get_ylim()
    assert low > -0.3  # of the eight that are shown


@pytest.mark.parametrize("word", ["CAPITALS_", "字"])
def test_titles_are_broken_into_lines_that_fit(word: str) -> None:
    chart = replace(hostile_chart(), title=40 * word, setting=40 * word)
    with chart._titled():
        assert chart._saved("png").startswith(b"\x89PNG")
        (title,) = (text for text in chart.figure.texts if text.get_visible())
        box = title.get_window_extent()
        low, high = chart.figure.bbox.min[0], chart.figure.bbox.max[0]
        assert low <= box.x0 and box.x1 <= high
        assert box.y0 > chart.figure.axes[0].get_window_extent().y1
    assert title.get_text().count("\n") < 8


def test_marks_are_where_the_points_are_in_the_picture_of_a_page() -> None:
    picture = hostile_chart().picture()
    root = ElementTree.fromstring(svg_of(picture))
    assert [float(side) for side in root.attrib["viewBox"].split()[2:]] == pytest.approx(picture[1:3])
    line = next(
        each for each in root.iter() if figures.SERIES[0] in each.attrib.get("style", "") and "d" in each.attrib
    )
    ends = [float(number) for number in re.findall(r"-?[\d.]+", line.attrib["d"])]
    assert [place for x, y, _ in picture.marks for place in (x, y)] == pytest.approx(ends[:4], abs=0.1)
