"""The answer of a comparison: what it recommends, and that its figures bear it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attendrop import ADDrop
from attendrop.errors import AttendropError
from attendrop.studies.answer import Answer, answer
from attendrop.tasks.metrics import RowScores

Run = dict[str, Any]
PLAIN = (0.762, 0.756, 0.754, 0.781, 0.758)
AHEAD = (0.769, 0.779, 0.766, 0.787, 0.775)  # of every seed, by 0.013 on average
SLIGHTLY = (0.7630, 0.7572, 0.7551, 0.7821, 0.7591)  # by 0.0011
THREE = (0.7650, 0.7591, 0.7569, 0.7840, 0.7612)  # of every seed, by 0.003
UNCLEAR = (0.790, 0.740, 0.770, 0.770, 0.770)
BEHIND = (0.746, 0.744, 0.741, 0.760, 0.745)
HIGH, LOW = (0.81,) * 5, (0.55, 0.56, 0.54, 0.55, 0.56)
# Behind PLAIN by 0.001 on average, by 0.0044, and by 0.018 with much noise.
EQUAL = (0.761, 0.754, 0.753, 0.780, 0.758)
CLOSE = (0.756, 0.754, 0.748, 0.775, 0.756)
NOISY = (0.712, 0.776, 0.714, 0.791, 0.728)


def runs(
    method: str, scores: Sequence[float | None], seconds: float = 100, options: Run | None = None, **more: Any
) -> list[Run]:
    same: Run = {"task": "files", "model": "minilm", "metric": "accuracy", "method": method, "options": options or {}}
    same["data"] = {"selected_on": "selection", "rewarded_on": None, "rows": {"train": 300, "dev": 3000}}
    found = []
    for seed, score in enumerate(scores):
        # Rows add no noise: what is said of new rows is the paired t test of the seeds.
        by_row = {"rows": 3000, "data": "test", "blocks": [score] * 100}
        own = {"seed": seed, "score": score, "row_scores": by_row, "output_dir": f"runs/{method}-{seed}"}
        found.append(same | own | {"train_seconds": seconds * (1 + seed)} | more)
    return found


FINETUNE = runs("finetune", PLAIN)


def row(found: Answer, label: str) -> Any:
    return next(each for each in found.rows if each.label == label)


def sentences(*more: list[Run]) -> tuple[str, ...]:
    return answer([*FINETUNE, *(run for each in more for run in each)]).sentences


def test_no_interval_holds_what_no_difference_can_be() -> None:
    """Of two seeds that differ, intervals are wide; correlations differ by 2 at most, and errors without a limit."""
    for metric, limit in {"accuracy": 1.0, "pearson": 2.0, "neg_mean_squared_error": math.inf}.items():
        found = answer([*runs("finetune", (0.1, 0.5), metric=metric), *runs("ad-drop", (0.9, 0.5), metric=metric)])
        difference = row(found, "ad-drop").difference
        for interval in (difference.mean, difference.seeds_only):
            low, high = max(-limit, 0.4 - 5.082), min(limit, 0.4 + 5.082)
            assert (interval.low, interval.value, interval.high) == pytest.approx((low, 0.4, high), abs=1e-3)
        assert difference.p_value == pytest.approx(0.5)


# What is recommended -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "why", "use", "says"),
    [
        (runs("ad-drop", AHEAD), "ahead", "ad-drop", "accuracy +0.013 [+0.004, +0.022]."),
        (runs("mixout", BEHIND), "all behind", "finetune", "(mixout: accuracy -0.015 [-0.020, -0.010])."),
        (runs("r-drop", UNCLEAR), "undecided", "finetune", "(r-drop: accuracy +0.006 [-0.017, +0.029])."),
        (runs("r-drop", SLIGHTLY, 200), "negligible", "finetune", "and none as good is clearly cheaper (r-drop: "),
        (runs("drophead", SLIGHTLY, 50), "negligible", "drophead", "It is equivalent to plain fine-tuning, within"),
        (
            runs("r-drop", SLIGHTLY, 200) + runs("mixout", HIGH[:3]),
            "negligible",
            "finetune",
            "method that is tested is",
        ),
        (runs("ad-drop", THREE) + runs("r-drop", NOISY), "undecided", "finetune", "(r-drop: accuracy -0.018 ["),
        ([], "alone", "finetune", "No other method has a result."),
        (runs("ad-drop", AHEAD[:3]), "few seeds", None, "3 seeds in common of ad-drop and plain fine-tuning: too few"),
        (runs("ad-drop", AHEAD) + runs("frozen", HIGH), "behind", "frozen", "accuracy -0.035 [-0.045, -0.024])."),
        (runs("frozen", EQUAL), "negligible", "frozen", "(plain fine-tuning: accuracy +0.001 [+0.000, +0.002])."),
        (runs("frozen", NOISY), "undecided", "frozen", "(plain fine-tuning: accuracy +0.018 [-0.021, +0.057])."),
        (runs("tfidf", HIGH[:3]), "few seeds", None, "of plain fine-tuning and the TF-IDF model (tfidf): too few"),
    ],
)
def test_what_is_recommended(others: list[Run], why: str, use: str | None, says: str) -> None:
    found = answer(FINETUNE + others)
    assert (found.verdict.why, found.use) == (why, use) and says in found.sentences[0]


def test_the_figures_follow_the_decision() -> None:
    assert sentences(runs("ad-drop", AHEAD, 210), runs("tfidf", LOW, 5), runs("majority", [0.013] * 5))[1:] == (
        "Against plain fine-tuning, ad-drop is ahead in 5 of 5 seeds, p = 0.015 (Holm); it takes 2.1x the time.",
        "Against the best baseline, the TF-IDF model (tfidf), which takes 0.05x the time of plain fine-tuning, ad-drop "
        "is ahead in 5 of 5 seeds, p < 0.0001 (Holm): accuracy +0.223 [+0.212, +0.234].",
    )
    assert sentences(runs("frozen", CLOSE, 5))[1:] == (
        "Against the best baseline, the linear model on the frozen encoder (frozen), which takes 0.05x the time of "
        "plain fine-tuning, plain fine-tuning is ahead in 5 of 5 seeds, p = 0.011: accuracy +0.004 [+0.002, +0.007]; "
        "use the baseline where the time of training counts for more than 0.005.",
    )


def test_whether_other_columns_help_is_told() -> None:
    config = {"with_columns": ["channel", "date"], "options": {}}
    plain = runs("finetune", PLAIN, config=config)
    for scores, told in ((BEHIND, "they help"), (AHEAD, "they do harm"), (UNCLEAR, "no gain is shown")):
        alone = runs("finetune", scores, label="finetune without channel, date", config={"options": {}})
        found = answer([*plain, *alone])
        signed = row(found, "finetune without channel, date").difference.mean
        (note,) = [note for note in found.notes if note.startswith("Texts begin with channel, date, and ")]
        other = answer([*plain, *alone, *runs("ad-drop", BEHIND, config=config)], "ad-drop")
        assert note in other.notes  # also where methods are compared with another one
        assert (
            f"and {told}: plain fine-tuning with minus without is {-signed.value:+.3f} [{-signed.high:+.3f}, " in note
        )
        notes = answer([*plain[:3], *alone[:3]]).notes
        assert any("Texts begin with channel, date, and there are too few seeds to judge" in note for note in notes)


def test_without_plain_fine_tuning_nothing_is_recommended() -> None:
    found = answer(runs("ad-drop", AHEAD))
    assert (found.verdict.why, found.use, row(found, "ad-drop").difference) == ("no reference", None, None)
    against_baseline = answer([*runs("finetune", PLAIN[:1]), *runs("ad-drop", AHEAD), *runs("tfidf", LOW, 5)])
    assert (against_baseline.use, against_baseline.verdict.reference.label) == ("ad-drop", "tfidf")


def test_p_values_are_corrected_over_methods_and_not_for_baselines() -> None:
    alone, beside = (answer([*FINETUNE, *runs("ad-drop", AHEAD), *more]) for more in ([], runs("tfidf", LOW)))
    assert row(alone, "ad-drop").p_holm == row(beside, "ad-drop").p_holm == pytest.approx(0.015, abs=1e-3)
    assert row(beside, "tfidf").p_holm is None
    crowd = [run for place in range(4) for run in runs("r-drop", UNCLEAR, options={"alpha": 2.0 + place})]
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD), *crowd])
    assert row(found, "ad-drop").p_holm == pytest.approx(0.075, abs=1e-3)
    assert (found.verdict.why, found.use) == ("undecided", "finetune")


def test_a_method_that_alone_is_ahead_of_the_baseline_is_recommended() -> None:
    """It is not significantly ahead of plain fine-tuning, which is not ahead of the baseline."""
    ad_drop = [score + more for score, more in zip(PLAIN, (0.008, -0.001, 0.006, 0.010, 0.0), strict=True)]
    frozen = [score - less for score, less in zip(ad_drop, (0.007, 0.005, 0.006, 0.007, 0.005), strict=True)]
    found = answer([*FINETUNE, *runs("ad-drop", ad_drop, 120), *runs("frozen", frozen, 5)])
    assert (found.verdict.why, found.use, found.verdict.reference.label) == ("others not ahead", "ad-drop", "frozen")
    assert found.sentences[0].endswith("as not all fine-tuned models are: accuracy +0.006 [+0.005, +0.007].")


@pytest.mark.parametrize(("sign", "why"), [(1, "undecided"), (-1, "behind")])
def test_the_p_value_against_the_baseline_is_told_with_the_interval_that_it_corrects(sign: int, why: str) -> None:
    """Of two methods, the better one's interval is beside 0, and its p value above 0.05 after Holm's correction."""
    frozen = [score - sign * less for score, less in zip(AHEAD, (0.004, 0.021, 0.002, 0.014, 0.016), strict=True)]
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD), *runs("r-drop", UNCLEAR), *runs("frozen", frozen, 10)])
    assert (found.use, found.verdict.why) == ("frozen", why)
    interval = "+0.011 [+0.001, +0.021]" if sign == 1 else "-0.011 [-0.021, -0.001]"
    assert f"(ad-drop: accuracy {interval})" in found.sentences[0]
    assert found.sentences[1].endswith(f"ad-drop is ahead in {5 if sign == 1 else 0} of 5 seeds, p = 0.07 (Holm).")


def test_a_baseline_that_trains_the_encoder_must_be_shown_to_be_ahead_of_one_that_does_not() -> None:
    frozen = runs("frozen", (0.80,) * 5)
    unclear, ahead = runs("setfit", (0.79, 0.82, 0.80, 0.83, 0.79), 130), runs("setfit", (0.82,) * 4 + (0.83,), 130)
    found = answer([*FINETUNE, *frozen, *unclear])
    assert (found.use, found.verdict.reference) == ("frozen", row(found, "frozen"))
    note = "frozen, which trains no encoder, counts as the best baseline: setfit minus frozen is +0.006 [-"
    assert found.notes[0].startswith(note)
    assert answer([*FINETUNE, *frozen, *ahead]).use == "setfit"
    assert answer([*FINETUNE, *frozen, *ahead[:3]]).use == "frozen"


# Rows ----------------------------------------------------------------------------------------------------------------


def of_rows(method: str, right: np.ndarray, **more: Any) -> list[Run]:
    """Make runs that are right on some rows, ``(seeds, rows)``."""
    rows = right.shape[1]
    data = {"selected_on": None, "rewarded_on": None, "rows": {"dev": rows}}
    found = runs(method, right.mean(axis=1).tolist(), data=data, **more)
    for run, each in zip(found, right, strict=True):
        run["row_scores"] = RowScores(each, rows, "test").as_dict()
    return found


def right_on(rows: int, fraction: float) -> np.ndarray:
    """Make runs that are right on the first rows."""
    return np.tile(np.arange(rows) < fraction * rows, (5, 1))


def test_a_difference_that_rests_on_a_few_rows_is_not_significant() -> None:
    """All seeds agree that the method is right on two more of 300 rows: on these rows there is no doubt.

    Nor do 100 rows that all agree on show that there is no difference.
    """
    found = answer(of_rows("finetune", right_on(300, 0.7)) + of_rows("ad-drop", right_on(300, 0.7067)))
    difference = row(found, "ad-drop").difference
    assert difference.values == pytest.approx([0.01] * difference.n)
    assert difference.mean.low < 0 < difference.mean.value
    assert (found.verdict.why, found.use) == ("undecided", "finetune")
    many = answer(of_rows("finetune", right_on(9000, 0.7)) + of_rows("ad-drop", right_on(9000, 0.7067)))
    assert many.use == "ad-drop"
    for rows, why in ((100, "undecided"), (3000, "negligible")):
        found = answer(of_rows("finetune", right_on(rows, 0.7)) + of_rows("r-drop", right_on(rows, 0.7), seconds=200))
        assert (found.use, found.verdict.why) == ("finetune", why)


@pytest.mark.parametrize("change", [{"row_scores": None}, {"row_scores": {"rows": 3, "data": "x", "blocks": [1, 2]}}])
def test_without_scores_on_the_same_rows_nothing_is_said_of_others(change: Run) -> None:
    found = answer([*FINETUNE, *(run | change for run in runs("ad-drop", AHEAD))])
    difference = row(found, "ad-drop").difference
    assert (difference.p_value, row(found, "ad-drop").p_holm, found.use) == (None, None, None)
    assert difference.seeds_only.low == pytest.approx(0.0041, abs=1e-4)
    assert found.holds_for.endswith("on these evaluation rows only.")


def test_what_is_behind_by_less_than_the_margin_is_equivalent() -> None:
    found = answer([*FINETUNE, *runs("drophead", tuple(score - 0.001 for score in PLAIN), 50)])
    assert (found.verdict.why, found.use, found.verdict.groups["behind"]) == ("negligible", "drophead", [])
    assert "It is equivalent to plain fine-tuning" in found.sentences[0] and "takes 0.5x" in found.sentences[1]


def test_a_method_with_too_few_seeds_beside_the_baseline_is_not_taken_for_one_that_is_not_ahead() -> None:
    more = [*runs("r-drop", tuple(score + 0.15 for score in PLAIN[:4])), *runs("tfidf", [0.5] * 5, 5)]
    found = answer([*FINETUNE, *(run for run in more if (run["method"], run["seed"]) != ("tfidf", 1))])
    assert (found.verdict.why, found.use) == ("few seeds", None)
    assert "3 seeds in common of r-drop and the TF-IDF model" in found.sentences[0]


def test_what_differs_by_rounding_is_not_ahead() -> None:
    found = answer([*runs("finetune", [0.3] * 5 + [0.5]), *runs("r-drop", [0.1 + 0.2] * 5 + [0.6])])
    assert "is ahead in 1 of 6 seeds, " in found.sentences[1]
    scores = [0.3, 0.3, 0.3, 0.3, 0.5]
    found = answer([*runs("finetune", [score + 1e-16 for score in scores]), *runs("tfidf", scores)])
    assert (found.use, found.verdict.why) == ("tfidf", "behind")


@pytest.mark.parametrize(("units", "blocks"), [(73, None), (15, 15)], ids=["rows", "texts"])
def test_equal_predictions_have_no_interval_without_width(units: int, blocks: int | None) -> None:
    """Of 300 rows about 15 texts, 15 are counted."""
    right = {"rows": 73, "data": "test", "right": RowScores(np.ones(73, bool), 73, "").as_dict()["right"]}
    by_row = {"row_scores": {"rows": 300, "data": "test", "blocks": [0.8] * blocks} if blocks else right}
    found = answer([*runs("finetune", [0.8] * 5, **by_row), *runs("ad-drop", [0.8] * 5, **by_row)])
    record = found.as_dict()["methods"][1]
    least = 1 - 0.05 ** (1 / units)
    assert (record["difference_low"], record["difference_high"]) == pytest.approx((-least, least))


def test_the_cheapest_is_recommended_of_those_that_are_ahead_by_the_same() -> None:
    for gain, margin, use in ((0.002, None, "ad-drop"), (0.01, None, "r-drop"), (0.002, 0, "r-drop")):
        more = runs("r-drop", tuple(score + gain for score in AHEAD), 200)
        assert answer([*FINETUNE, *runs("ad-drop", AHEAD, 150), *more], margin=margin).use == use


def test_times_are_compared_seed_by_seed_and_per_step() -> None:
    slow = runs("ad-drop", AHEAD, 210)
    slow[0]["train_seconds"], slow[1]["train_seconds"] = 100_000, 1
    assert row(answer([*FINETUNE, *slow]), "ad-drop").cost == pytest.approx(2.1)
    plain = runs("finetune", PLAIN, steps=30, selection={"steps": 40, "history": [{"step": 50}, {"step": 60}]})
    fewer = runs("ad-drop", AHEAD, 80, steps=20, selection={"steps": 5, "history": [{"step": 20}]})
    assert row(answer([*plain, *fewer]), "ad-drop").cost == pytest.approx(0.8 * 90 / 40)


# Pairs, failures and odd scores --------------------------------------------------------------------------------------


def test_only_common_seeds_are_compared_and_missing_runs_are_named() -> None:
    """Methods with too few of them are not tested."""
    found = answer([*FINETUNE, *runs("mixout", BEHIND), *runs("ad-drop", AHEAD[:3])])
    assert (found.verdict.why, found.verdict.groups["untested"]) == ("all behind", ["ad-drop"])
    failed = [{"method": "ad-drop", "options": {}, "seed": 4, "error": "out of memory"}]
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD[:4]), *failed])
    assert row(found, "ad-drop").difference.values == pytest.approx([0.007, 0.023, 0.012, 0.006])
    assert found.notes == (
        "Without a result: ad-drop with seed 4 (out of memory).",
        "ad-drop and finetune have 4 seeds in common.",
    )
    found = answer([*FINETUNE, *runs("ad-drop", (AHEAD[0], None, AHEAD[2], math.nan, AHEAD[4]))])
    assert row(found, "ad-drop").scores.keys() == {0, 2, 4}
    assert found.notes[0] == "Without a result: ad-drop with seed 1 (no score); ad-drop with seed 3 (no score)."


def test_a_method_is_named_as_asked_and_a_note_says_what_the_data_decided() -> None:
    """Also where its name has a full stop."""
    asked, decided = ADDrop().options(), ADDrop(p=0.3, attribution="recorded", layers="all").options()
    found = answer([*runs("finetune", PLAIN), *runs("ad-drop", AHEAD, options=decided, config={"options": asked})])
    assert [row.label for row in found.rows] == ["finetune", "ad-drop"]
    named = "Here ad-drop means ad-drop p=0.3 attribution=recorded layers=all"
    assert f"{named}: there are many classes with few rows each." in found.notes
    named = [run | {"label": "No. 3"} for run in runs("ad-drop", AHEAD)]
    assert answer([*FINETUNE, *named]).decision[0] == "Use No. 3."


@pytest.mark.parametrize(
    ("given", "reference", "says"),
    [
        (FINETUNE + runs("finetune", PLAIN[:1]), "finetune", "Two runs of 'finetune' have seed 0: 'runs/finetune-0'"),
        (FINETUNE + runs("ad-drop", AHEAD, task="cola"), "finetune", r"differ in their task \(cola, files\)"),
        (FINETUNE + runs("ad-drop", AHEAD, model="bert"), "finetune", r"differ in their model \(bert, minilm\)"),
        (FINETUNE + runs("tfidf", LOW), "tfidf", "which 'tfidf' is not; all are compared with baselines"),
        ([], "finetune", "no finished run to compare"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(given: list[Run], reference: str, says: str) -> None:
    with pytest.raises(AttendropError, match=says):
        answer(given, reference)


def test_runs_from_before_the_model_was_moved_are_compared_with_those_after() -> None:
    before, after = (runs("finetune", PLAIN, model=model) for model in ("/a/model", "moved/model"))
    assert [each.n for each in answer([*before[:3], *after[3:]]).rows] == [5]


def test_runs_of_several_versions_are_told() -> None:
    """Runs are kept when a package is upgraded, and the methods that are added are of the new one."""
    old, new = ({"attendrop": version, "torch": "2.13.0", "transformers": "5.23.0"} for version in ("0.1.0", "0.2.0"))
    plain, more = runs("finetune", PLAIN, versions=old), runs("ad-drop", AHEAD, versions=new)
    told = "The runs are of several versions, which may make differences of their own: attendrop 0.1.0 and 0.2.0."
    assert answer([*plain, *more]).notes == (told,)
    assert answer([*plain, *runs("ad-drop", AHEAD, versions=old)]).notes == ()


def test_runs_in_which_the_method_never_acted_are_told() -> None:
    idle = [{"regularized": False}]
    found = runs("ad-drop", AHEAD, history=[*idle, {"regularized": True}])
    found[1]["history"] = found[3]["history"] = idle
    told = "ad-drop acted in no epoch of 2 of 5 runs, which are plain fine-tuning."
    assert answer([*runs("finetune", PLAIN, history=idle), *found]).notes == (told,)


@pytest.mark.parametrize("name", ["selected_on", "rewarded_on"])
def test_scores_that_flatter_are_marked(name: str) -> None:
    data = {"selected_on": None, "rewarded_on": None, "rows": {"dev": 3000}} | {name: "dev"}
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD, data=data), *runs("mixout", BEHIND)])
    assert found.notes[0].startswith("The best score of 3 on the same rows is optimistic")
    assert found.notes[1].startswith("*: a model was chosen on the rows")
    assert r"0.775 ± 0.008\*" in found.markdown() and "0.762 ± 0.011 " in found.markdown()


# Output --------------------------------------------------------------------------------------------------------------


def test_evaluation_rows_that_were_trained_on_are_told() -> None:
    found = runs("finetune", PLAIN)
    for run, known in zip(found, (0, 3, 1, 0, 2), strict=True):
        run["data"] = run["data"] | {
            "report": {"parts": {"train": {"rows": 50}, "dev": {"rows": 20, "in_train": known}}}
        }
    told = "3 of 20 evaluation rows have a text that is in the training rows, too: scores on them are optimistic."
    assert answer(found).notes == (told,)


@pytest.mark.parametrize(
    ("rows", "sample"),
    [
        *((10, " and other samples of 5 training rows per class"), (5, " and other samples of 5 training rows")),
        (4, ", with the same training rows"),  # all that there are
    ],
)
def test_a_sample_is_of_each_class_only_where_rows_have_one(rows: int, sample: str) -> None:
    more: Run = {"config": {"shots": 5}, "data": {"rows": {"train": rows, "dev": 3000}}}
    found = answer([*runs("finetune", PLAIN, **more), *runs("mixout", BEHIND, **more)])
    assert f"for other seeds{sample}, and other" in found.holds_for


@pytest.mark.parametrize(
    ("classes", "sample"),
    [
        ({"a": 60, "b": 45}, " and other samples of at most 50 training rows per class"),
        ({"a": 45, "b": 45}, ", with the same training rows"),
        ({"a": 50, "b": 50}, " and other samples of 50 training rows per class"),
    ],
)
def test_classes_with_fewer_rows_than_shots_are_no_samples(classes: dict[str, int], sample: str) -> None:
    classes = {name: min(count, 50) for name, count in classes.items()}
    parts = {"train": {"classes": {"a": classes["a"] - 5, "b": classes["b"]}}, "selection": {"classes": {"a": 5}}}
    rows = {"train": sum(classes.values()) - 5, "selection": 5, "dev": 3000}
    more: Run = {"config": {"shots": 50}, "data": {"rows": rows, "report": {"parts": parts}}}
    found = answer([*runs("finetune", PLAIN, **more), *runs("mixout", BEHIND, **more)])
    assert f"for other seeds{sample}, and other" in found.holds_for


def test_texts_of_users_are_no_markup() -> None:
    error = {"method": "r-drop", "options": {}, "seed": 1, "error": "got <class 'int'>\nfor *args, [a](b), `__all__`"}
    of_file = [run | {"config": {"train_file": "max_rows_*.csv"}, "label": "_a*"} for run in FINETUNE]
    text = answer([*of_file, error], "_a*").markdown()  # as it is, and not as markup
    assert r"&lt;class 'int'> for \*args, [a\](b), \`\_\_all\_\_\`)." in text
    assert r"on max_rows\_\*.csv (3000 rows):" in text and text.count(r"| \_a\* | ") == 2 and r"Use \_a\*." in text


def test_a_decision_follows_from_json_alone() -> None:
    """Plain fine-tuning and one method are ahead of the baseline, and the method of plain fine-tuning."""
    few = runs("mixout", AHEAD[:3])
    every = [*FINETUNE, *runs("ad-drop", AHEAD), *runs("drophead", BEHIND), *few, *runs("majority", LOW)]
    found = json.loads(json.dumps(answer(every).as_dict()))
    assert (found["use"], found["why"], found["baseline"]) == ("ad-drop", "ahead", "majority")
    expected = {"ahead": ["ad-drop"], "behind": ["drophead"], "untested": ["mixout"]}
    assert {name: group for name, group in found["groups"].items() if group} == expected
    leads = found["baseline_leads"]
    p_values = {label: each["p_holm"] for label, each in leads.items()}
    assert p_values["mixout"] is None and leads["mixout"]["seeds"] == 3  # too few to be tested
    ahead = [label for label, p in p_values.items() if p is not None and p <= 0.05 and leads[label]["value_low"] > 0]
    assert ahead == ["finetune", "ad-drop", "drophead"]
    found = answer([*every, *runs("frozen", HIGH)]).as_dict()
    assert (found["use"], found["why"], found["baseline"]) == ("frozen", "behind", "frozen")
    assert (found["lead"]["candidate"], found["lead"]["reference"]) == ("ad-drop", "frozen")
