"""The answer of a comparison: what it recommends, and that its figures bear it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attendrop import ADDrop
from attendrop.errors import AttendropError
from attendrop.files.output_files import write_json
from attendrop.studies.answer import Answer, answer
from attendrop.studies.study import read_answers, read_overall
from attendrop.tasks.row_scores import RowScores

Run = dict[str, Any]
PLAIN = (0.762, 0.756, 0.754, 0.781, 0.758)
AHEAD = (0.769, 0.779, 0.766, 0.787, 0.775)  # of every seed, by 0.013 on average
SLIGHTLY = (0.7630, 0.7572, 0.7551, 0.7821, 0.7591)  # by 0.0011
LITTLE = (0.7680, 0.7590, 0.7585, 0.7865, 0.7625)  # of every seed, by 0.0045 on average
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
    return [
        {
            "task": "files",
            "model": "minilm",
            "metric": "accuracy",
            "method": method,
            "options": options or {},
            "seed": seed,
            "score": score,
            "train_seconds": seconds * (1 + seed),
            "output_dir": f"runs/{method}-{seed}",
            "data": {"selected_on": "selection", "rewarded_on": None, "rows": {"train": 300, "dev": 3000}},
            # Rows add no noise: what is said of new rows is the paired t test of the seeds.
            "row_scores": {"rows": 3000, "data": "test", "blocks": [score] * 100},
        }
        | more
        for seed, score in enumerate(scores)
    ]


FINETUNE = runs("finetune", PLAIN)


def row(found: Answer, label: str) -> Any:
    return next(each for each in found.rows if each.label == label)


# What is recommended -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "kind", "use", "decision"),
    [
        (runs("ad-drop", AHEAD), "method", "ad-drop",
         "Use ad-drop. It gets 13 more of 1,000 right than plain fine-tuning."),
        (runs("ad-drop", LITTLE), "method", "ad-drop",
         "Use ad-drop. It gets 5 more of 1,000 right than plain fine-tuning: little, but more than chance."),
        (runs("mixout", BEHIND), "reference", "finetune",
         "Use plain fine-tuning. Every other method here is behind it; the best of them: mixout gets 15 fewer of 1,000 "
         "right."),
        (runs("r-drop", UNCLEAR), "tie", "finetune",
         "Use plain fine-tuning. No other method here is told apart from it; the best of them: r-drop gets 6 more of "
         "1,000 right, which may be chance. About 79 more seeds (runs of each) would probably settle it; no number of "
         "rows alone would."),
        (runs("r-drop", SLIGHTLY, 200), "tie", "finetune",
         "Use plain fine-tuning. The differences are practically nothing, and no other is clearly cheaper."),
        (runs("r-drop", SLIGHTLY, 95), "tie", "finetune",
         "Use plain fine-tuning. The differences are practically nothing, and no other is clearly cheaper."),
        (runs("ad-drop", THREE) + runs("r-drop", NOISY), "tie", "finetune",
         "Use plain fine-tuning. No other method here is shown to be ahead by 5 of 1,000; the best of those that are "
         "open: r-drop gets 18 fewer of 1,000 right, which may be chance."),
        (runs("r-drop", SLIGHTLY, 200) + runs("mixout", BEHIND, 50), "tie", "finetune",
         "Use plain fine-tuning. Apart from methods that are behind, the differences are practically nothing, and no "
         "other is clearly cheaper."),
        (runs("r-drop", PLAIN) + runs("mixout", BEHIND) + runs("ad-drop", HIGH[:3]), "tie", "finetune",
         "Apart from methods that are behind or cannot be judged yet, the differences are practically nothing, and no "
         "other is clearly cheaper. The others have the same scores: other"),
        (runs("drophead", EQUAL) + runs("r-drop", NOISY), "tie", "finetune",
         "No other method here is told apart from it; the best of those that are open: r-drop gets 18 fewer of 1,000"),
        (runs("drophead", SLIGHTLY, 50), "tie", "drophead",
         "Use drophead. The differences are practically nothing, and it is the cheapest."),
        (runs("r-drop", np.add(PLAIN, (-0.0012, 0.0002, 0.002, 0.0038, 0.0052)).tolist()), "tie", "finetune",
         "On as many seeds and rows, a difference of 5 of 1,000 would probably have shown."),
        ([], "reference", "finetune", "Use plain fine-tuning. No other method has a result."),
        (runs("ad-drop", AHEAD[:3]), "too few seeds", None,
         "No recommendation yet. 3 runs of each are too few to tell: take 4 seeds or more. About 2 more seeds (runs of "
         "each) would probably settle it; no number of rows alone would."),
        (runs("ad-drop", AHEAD) + runs("frozen", HIGH), "baseline", "frozen",
         "Use the linear model on the frozen encoder (frozen). Fine-tuning does not pay here: it would have to get 3 "
         "more of 100 right to be level."),
        (runs("frozen", (0.812, 0.736, 0.794, 0.771, 0.788)), "baseline", "frozen",
         "Fine-tuning is not shown to pay here: it would have to get 18 more of 1,000 right to be level."),
        (runs("frozen", EQUAL), "baseline", "frozen",
         "Fine-tuning does not pay here: plain fine-tuning gets 1 more of 1,000 right, which is practically nothing."),
        (runs("frozen", NOISY), "baseline", "frozen",
         "Fine-tuning is not shown to pay here: plain fine-tuning gets 18 more of 1,000 right, which may be chance. "
         "About 21 more seeds (runs of each) would probably settle it; no number of rows alone would."),
        (runs("frozen", CLOSE), "reference", "finetune",
         "Use plain fine-tuning. No other method has a result. It gets 4 more of 1,000 right than the best baseline, "
         "the linear model on the frozen encoder (frozen): little, but more than chance."),
        (runs("ad-drop", AHEAD) + runs("majority", LOW), "method", "ad-drop",
         "Use ad-drop. It gets 13 more of 1,000 right than plain fine-tuning, and 22 more of 100 than the best "
         "baseline, the constant answer (majority)."),
        (runs("tfidf", HIGH[:3]), "too few seeds", None,
         "No recommendation yet. So far fine-tuning is not ahead of the TF-IDF model (tfidf): it would have to get 5 "
         "more of 100 right to be level. 3 runs of plain fine-tuning and the TF-IDF model (tfidf) are too few to tell: "
         "take 4 seeds or more."),
    ],
)  # fmt: skip
def test_what_is_recommended(others: list[Run], kind: str, use: str | None, decision: str) -> None:
    found = answer(FINETUNE + others)
    assert (found.verdict.kind, found.use) == (kind, use)
    assert decision in found.sentences[0]


@pytest.mark.parametrize(
    ("metric", "others", "decision"),
    [
        ("f1", runs("ad-drop", AHEAD), "Use ad-drop. Its f1 is 0.013 higher than that of plain fine-tuning."),
        ("f1", runs("r-drop", np.add(PLAIN, (-0.03, 0.03, -0.01, 0.01, 0)).tolist()),
         "the best of them: the f1 of r-drop is the same."),
        ("f1", runs("r-drop", np.add(PLAIN, (-0.03, 0.03, -0.01, 0.0111, 0)).tolist()),
         "the best of them: the f1 of r-drop is less than 0.001 higher, which may be chance."),
        ("neg_mean_squared_error", runs("mixout", BEHIND),
         "the best of them: the mean_squared_error of mixout is 0.015 higher."),
        ("neg_mean_squared_error", runs("ad-drop", AHEAD) + runs("majority", LOW),
         "Use ad-drop. Its mean_squared_error is 0.013 lower than that of plain fine-tuning, and 0.223 lower than that "
         "of the best baseline, the constant answer (majority)."),
    ],
)  # fmt: skip
def test_only_fractions_of_right_answers_are_told_of_a_hundred(metric: str, others: list[Run], decision: str) -> None:
    def of_metric(run: Run) -> Run:
        score = run["score"] - metric.startswith("neg_")
        return run | {"metric": metric, "score": score, "row_scores": run["row_scores"] | {"blocks": [score] * 100}}

    assert decision in answer([of_metric(run) for run in FINETUNE + others]).sentences[0]


def test_small_errors_have_the_digits_that_tell_them_apart() -> None:
    def small(run: Run) -> Run:
        score = (run["score"] - 1) / 1e4
        return run | {"metric": "neg_mse", "score": score, "row_scores": run["row_scores"] | {"blocks": [score] * 100}}

    found = answer([small(run) for run in FINETUNE + runs("ad-drop", AHEAD) + runs("majority", LOW)])
    lines = {line.split()[0]: line for line in found.lines() if line.startswith(("finetune", "ad-drop"))}
    assert "-0.0000238" in lines["finetune"] and "+0.0000013 [" in lines["ad-drop"]
    assert "Its mse is 0.0000013 lower than that of plain fine-tuning" in found.sentences[0]
    assert " 0.000 " not in " ".join([*found.lines(), found.markdown()])


def test_large_errors_and_times_are_written_out() -> None:
    def large(run: Run) -> Run:
        score = (run["score"] - 1) * 1e6
        return run | {"metric": "neg_mse", "score": score, "row_scores": run["row_scores"] | {"blocks": [score] * 100}}

    found = answer([large(run) for run in FINETUNE + runs("ad-drop", AHEAD, 15_000)])
    assert "Its mse is 13000 lower than that of plain fine-tuning" in found.sentences[0]
    assert "-237800 ± 10918" in found.lines()[-3] and found.lines()[-2].endswith("150x")


def test_without_plain_fine_tuning_nothing_is_recommended() -> None:
    found = answer(runs("ad-drop", AHEAD))
    assert (found.verdict.kind, found.use) == ("no reference", None)
    assert row(found, "ad-drop").difference is None
    nothing = "Nothing is compared with the reference: there are no intervals."
    assert found.holds_for == answer(FINETUNE).holds_for == nothing
    assert answer([*FINETUNE, *runs("ad-drop", AHEAD[:1])]).holds_for == "One seed gives no intervals."


@pytest.mark.parametrize("times, p", [(1.0, "0.05"), (0.998, ">0.05")])
def test_a_p_value_is_not_rounded_to_the_limit_that_it_exceeds(times: float, p: str) -> None:
    spread = np.array([-2.0, -1, 0, 1, 2]) / 1000
    least = stats.t.ppf(0.975, 4) * spread.std(ddof=1) / 5**0.5
    scores = np.add(PLAIN, spread + least * times + 1e-9).tolist()
    found = answer([*FINETUNE, *runs("ad-drop", scores)])
    told = " ".join(found.lines())
    assert (row(found, "ad-drop").p_holm <= 0.05) == (p == "0.05")
    assert f" {p} " in told and f"p {p[0] if p[0] == '>' else '='} 0.05 (Holm)" in told


def test_a_p_value_that_does_not_survive_the_correction_recommends_nothing() -> None:
    assert answer([*FINETUNE, *runs("ad-drop", AHEAD)]).use == "ad-drop"
    crowd = [run for place in range(4) for run in runs("r-drop", UNCLEAR, options={"alpha": 2.0 + place})]
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD), *crowd])
    assert row(found, "ad-drop").difference.p_value == pytest.approx(0.015, abs=1e-3)
    assert row(found, "ad-drop").p_holm == pytest.approx(0.075, abs=1e-3)
    assert (found.verdict.kind, found.use) == ("tie", "finetune")


def test_the_plan_against_a_baseline_is_corrected_as_its_test_is() -> None:
    """Plain fine-tuning was not chosen among the methods."""
    near = runs("tfidf", [score - 0.004 * (-1) ** place for place, score in enumerate(PLAIN)])
    crowd = [run for place in range(4) for run in runs("r-drop", LOW, options={"alpha": 2.0 + place})]
    alone, beside = (answer([*FINETUNE, *near, *more]).verdict.plan for more in ([], crowd))
    assert alone is not None and alone == beside


def test_a_baseline_is_no_reference() -> None:
    with pytest.raises(AttendropError, match="which 'tfidf' is not; all are compared with baselines"):
        answer([*FINETUNE, *runs("tfidf", LOW)], "tfidf")


def test_baselines_are_not_among_the_methods_that_are_corrected_for() -> None:
    alone, beside = (answer([*FINETUNE, *runs("ad-drop", AHEAD), *more]) for more in ([], runs("tfidf", LOW)))
    assert row(alone, "ad-drop").p_holm == row(beside, "ad-drop").p_holm
    assert row(beside, "tfidf").p_holm is None


def test_of_methods_that_are_ahead_by_the_same_the_cheapest_is_recommended() -> None:
    more = tuple(score + 0.002 for score in AHEAD)
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD, 150), *runs("r-drop", more, 200)])
    assert found.use == "ad-drop"
    assert "Also ahead: r-drop (+0.015 [+0.006, +0.024]); below 0.005 apart" in " ".join(found.sentences)
    much_more = tuple(score + 0.01 for score in AHEAD)
    assert answer([*FINETUNE, *runs("ad-drop", AHEAD, 150), *runs("r-drop", much_more, 200)]).use == "r-drop"


def of_rows(method: str, right: np.ndarray, **more: Any) -> list[Run]:
    """Make runs that are right on some rows, ``(seeds, rows)``."""
    rows = right.shape[1]
    data = {"selected_on": None, "rewarded_on": None, "rows": {"dev": rows}}
    found = runs(method, right.mean(axis=1).tolist(), data=data, **more)
    for run, each in zip(found, right, strict=True):
        run["row_scores"] = RowScores(each, rows, "test").as_dict()
    return found


def right_on(rows: int, fraction: float, *, noise: float = 0.0) -> np.ndarray:
    """Make runs that are right on the first rows, but for some that differ from seed to seed."""
    right = np.tile(np.arange(rows) < fraction * rows, (5, 1))
    return right ^ (np.random.default_rng(int(1000 * fraction)).random(right.shape) < noise)


def test_without_a_margin_the_best_of_those_ahead_is_recommended() -> None:
    assert answer([*FINETUNE, *runs("ad-drop", AHEAD), *runs("r-drop", HIGH)], margin=0).use == "r-drop"
    found = [*runs("finetune", [0.0] * 2), *runs("ad-drop", np.negative(AHEAD)), *runs("tfidf", [-2.0] * 5)]
    assert answer([run | {"metric": "neg_mean_squared_error"} for run in found]).use == "ad-drop"  # 1 % of no error


def test_files_of_the_same_name_are_told_apart() -> None:
    found = answer([run | {"config": {"train_file": "a/train.csv", "label_column": "price"}} for run in FINETUNE])
    assert (found.task, found.data, Answer.from_dict(found.as_dict()).data) == ("train.csv", "a/train.csv: price", "")


def test_a_difference_that_rests_on_a_few_rows_is_not_shown_on_new_ones() -> None:
    """All seeds agree that the method is right on two more of 300 rows: on these rows there is no doubt."""
    found = answer(of_rows("finetune", right_on(300, 0.7)) + of_rows("ad-drop", right_on(300, 0.7067)))
    difference = row(found, "ad-drop").difference
    assert difference.values == pytest.approx([0.01] * difference.n)
    assert difference.mean.low < 0 < difference.mean.value
    assert (found.verdict.kind, found.use) == ("tie", "finetune")
    many = answer(of_rows("finetune", right_on(9000, 0.7)) + of_rows("ad-drop", right_on(9000, 0.7067)))
    assert many.use == "ad-drop"


@pytest.mark.parametrize(
    ("plain", "other", "says"),
    [
        # Rows decide, and seeds; with noise, either.
        (right_on(300, 0.7), right_on(300, 0.71), "evaluation rows would probably settle it; no number of seeds"),
        (right_on(500, 0.7, noise=0.05), right_on(500, 0.71, noise=0.05), "more seeds (runs of each), or about"),
        # Hundreds of thousands of rows are no advice.
        (right_on(3000, 0.7, noise=0.1), right_on(3000, 0.705, noise=0.1), "About 23 more seeds (runs of each) would"),
    ],
)
def test_a_tie_says_what_would_show_which_difference(plain: np.ndarray, other: np.ndarray, says: str) -> None:
    found = answer([*of_rows("finetune", plain), *of_rows("r-drop", other)])
    assert found.verdict.kind == "tie"
    assert says in found.sentences[0]


def test_a_plan_is_for_as_many_methods_as_were_compared() -> None:
    """Holm's correction takes more seeds the more methods there are."""
    noisy = [run for place in range(6) for run in runs("mixout", NOISY, options={"p": 0.1 + place / 10})]
    alone, crowd = (answer([*FINETUNE, *runs("r-drop", UNCLEAR), *more]).sentences for more in ([], noisy))
    first, second = (int(re.search(r"About (\d+) more seeds", " ".join(each))[1]) for each in (alone, crowd))  # type: ignore[index]
    assert second > 1.3 * first


def test_where_no_seeds_would_tell_the_answer_says_what_would() -> None:
    for scores, says in (
        ((1.0, 1.0), "All are within 0.005 of 1.000, the best"),
        ((0.8, 0.9), "All have the same scores"),
    ):
        found = " ".join(answer(runs("finetune", scores) + runs("r-drop", scores)).sentences)
        assert says in found and "would probably show" not in found


@pytest.mark.parametrize("change", [{"row_scores": None}, {"row_scores": {"rows": 3, "data": "x", "blocks": [1, 2]}}])
def test_without_scores_on_the_same_rows_nothing_is_said_of_new_ones(change: Run) -> None:
    found = answer([*FINETUNE, *(run | change for run in runs("ad-drop", AHEAD))])
    difference = row(found, "ad-drop").difference
    assert (difference.p_value, row(found, "ad-drop").p_holm, found.use) == (None, None, None)
    assert difference.these_rows.low == pytest.approx(0.0041, abs=1e-4)
    assert found.notes[0].endswith("so nothing on new rows: ad-drop.")
    assert found.sentences[0].endswith("compare in a new folder, with two evaluation rows or more.")  # not on one again
    assert found.holds_for.endswith("on these evaluation rows only.")


def test_few_rows_do_not_show_that_a_difference_is_practically_nothing() -> None:
    """On 100 rows that all agree on, a difference of 3 % would often not be seen."""
    for rows, says in ((100, "other evaluation rows may tell them apart"), (3000, "practically nothing")):
        found = answer(of_rows("finetune", right_on(rows, 0.7)) + of_rows("r-drop", right_on(rows, 0.7), seconds=200))
        assert found.use == "finetune" and says in " ".join(found.sentences)
    of_texts = {"row_scores": {"rows": 3000, "data": "test", "blocks": [0.7] * 99}}  # many questions about few texts
    found = answer([run | of_texts for run in runs("finetune", [0.7] * 5) + runs("r-drop", [0.7] * 5)])
    assert found.verdict.why == "undecided"


@pytest.mark.parametrize(
    ("right", "says"), [(0.7, "have the same scores: other"), (1.0, "are within 0.005 of 1.000, the best")]
)
def test_only_what_has_the_same_scores_is_said_to(right: float, says: str) -> None:
    equal = of_rows("finetune", right_on(100, right)) + of_rows("r-drop", right_on(100, right))
    behind, baseline = of_rows("mixout", right_on(100, 0.3)), of_rows("tfidf", right_on(100, right))
    for others, which in (([], "All"), (behind, "Those that are open"), (baseline + behind, "Both")):
        assert f"{which} {says}" in answer(equal + others).sentences[0]


@pytest.mark.parametrize("seeds", [2, 5])
def test_scores_that_never_differ_do_not_say_what_would_have_shown(seeds: int) -> None:
    equal, other = right_on(37, 0.3)[:seeds], right_on(37, 0.27, noise=0.05)[:seeds]
    found = answer(of_rows("finetune", equal) + of_rows("ad-drop", equal) + of_rows("mixout", other))
    assert found.verdict.challenger == "ad-drop"
    assert found.verdict.plan is None and "would probably" not in found.sentences[0]


def sentences(*more: list[Run]) -> tuple[str, ...]:
    return answer([*FINETUNE, *(run for each in more for run in each)]).sentences


def test_the_figures_follow_the_decision() -> None:
    assert sentences(runs("ad-drop", AHEAD, 210), runs("tfidf", LOW, 5), runs("majority", [0.013] * 5))[1:] == (
        "On new rows, ad-drop minus plain fine-tuning is +0.013 [+0.004, +0.022]; ahead in 5 of 5 seeds, p = 0.015 "
        "(Holm); it takes 2.1x the time.",
        "On new rows, ad-drop minus tfidf is +0.223 [+0.212, +0.234]; ahead in 5 of 5 seeds, p < 0.0001 (Holm); tfidf "
        "takes 0.05x the time of plain fine-tuning.",
    )
    assert sentences(runs("frozen", EQUAL, 5))[1:] == (
        "On new rows, plain fine-tuning minus frozen is +0.001 [+0.000, +0.002]; ahead in 4 of 5 seeds, p = 0.05; "
        "frozen takes 0.05x the time of plain fine-tuning.",
        "Among the fine-tuned models it would be plain fine-tuning. No other method has a result.",
    )


def test_a_method_that_alone_is_ahead_of_the_baseline_is_recommended() -> None:
    """It is not shown to be ahead of plain fine-tuning, which is not shown to be ahead of the baseline."""
    ad_drop = [score + more for score, more in zip(PLAIN, (0.008, -0.001, 0.006, 0.010, 0.0), strict=True)]
    frozen = [score - less for score, less in zip(ad_drop, (0.007, 0.005, 0.006, 0.007, 0.005), strict=True)]
    every = [*FINETUNE, *runs("ad-drop", ad_drop, 120), *runs("frozen", frozen, 5)]
    found = answer(every)
    assert (found.verdict.kind, found.use) == ("method", "ad-drop")
    first, own, others, among, _ = found.sentences
    assert first.startswith("Use ad-drop. Unlike plain fine-tuning, it is shown to be ahead of the linear model on the")
    assert (
        own
        == "On new rows, ad-drop minus frozen is +0.006 [+0.005, +0.007]; ahead in 5 of 5 seeds, p = 0.00018 (Holm)."
    )
    assert others.startswith("On new rows, plain fine-tuning minus frozen is +0.001 [-")
    assert others.endswith("; frozen takes 0.05x the time of plain fine-tuning.")
    assert among.startswith("Among the fine-tuned models it would be plain fine-tuning. No other method here is told")
    assert "About 5 more seeds (runs of each) would probably show a difference of 5 of 1,000" in among


def test_a_method_must_be_ahead_of_the_baseline_too() -> None:
    """AD-DROP is shown to be ahead of plain fine-tuning, and by chance perhaps of the frozen encoder."""
    frozen = tuple(score - 0.018 + 0.02 * (-1) ** place for place, score in enumerate(AHEAD))
    found = sentences(runs("ad-drop", AHEAD), runs("frozen", frozen, 10))
    assert "(frozen). Fine-tuning is not shown to pay here: ad-drop gets 14 more of 1,000 right" in found[0]
    assert found[2].startswith("Among the fine-tuned models it would be ad-drop. It gets 13 more of 1,000 right")


def test_plain_fine_tuning_takes_the_place_of_a_method_that_is_not_ahead_of_the_baseline() -> None:
    """DropHead is recommended for its price only, and plain fine-tuning alone is ahead of the baseline."""
    drophead = [score - less for score, less in zip(PLAIN, (0.0012, 0.0001, 0.001, -0.0002, 0.0009), strict=True)]
    frozen = [score - less for score, less in zip(PLAIN, (0.0046, 0.0038, 0.0045, 0.0037, 0.0044), strict=True)]
    found = answer([*FINETUNE, *runs("drophead", drophead, 50), *runs("frozen", frozen, 10)])
    assert (found.verdict.kind, found.use) == ("reference", "finetune")
    assert found.sentences[0].startswith("Use plain fine-tuning. Unlike drophead, it is shown to be ahead of")
    assert "Where the time of training counts for more than 0.005, use frozen." in found.sentences


@pytest.mark.parametrize(
    ("sign", "why", "interval"),
    [(1, "undecided", "+0.011 [+0.001, +0.021]; ahead in 5"), (-1, "behind", "-0.011 [-0.021, -0.001]; ahead in 0")],
)
def test_the_p_value_against_the_baseline_is_told_with_the_interval_that_it_corrects(
    sign: int, why: str, interval: str
) -> None:
    """Of two methods, the better one's interval is beside 0, and its p value above 0.05 after Holm's correction."""
    frozen = [score - sign * less for score, less in zip(AHEAD, (0.004, 0.021, 0.002, 0.014, 0.016), strict=True)]
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD), *runs("r-drop", UNCLEAR), *runs("frozen", frozen, 10)])
    assert (found.use, found.verdict.why) == ("frozen", why)
    assert "Fine-tuning is not shown to pay here" in found.sentences[0]
    assert found.verdict.plan is not None
    assert found.sentences[1].startswith(f"On new rows, ad-drop minus frozen is {interval} of 5 seeds, p = 0.07 (Holm)")


# Pairs, failures and odd scores --------------------------------------------------------------------------------------


def test_only_common_seeds_are_compared_and_missing_ones_are_named() -> None:
    failed = [{"method": "ad-drop", "options": {}, "seed": 4, "error": "out of memory"}]
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD[:4])], failed=failed)
    assert row(found, "ad-drop").difference.values == pytest.approx([0.007, 0.023, 0.012, 0.006])
    assert found.notes == (
        "Without a result: ad-drop with seed 4 (out of memory).",
        "ad-drop and finetune have 4 seeds in common.",
    )


def test_a_run_without_a_score_is_left_out_and_named() -> None:
    found = answer([*FINETUNE, *runs("ad-drop", (AHEAD[0], None, AHEAD[2], math.nan, AHEAD[4]))])
    assert row(found, "ad-drop").scores.keys() == {0, 2, 4}
    assert found.notes[0] == "Without a result: ad-drop with seed 1 (no score); ad-drop with seed 3 (no score)."


def test_methods_with_too_few_common_seeds_are_not_judged() -> None:
    found = answer([*FINETUNE, *runs("mixout", BEHIND), *runs("ad-drop", AHEAD[:3])])
    assert found.sentences[0].startswith("Use plain fine-tuning. Every other method here but ad-drop (+0.014 [")
    assert "ad-drop and finetune have 3 seeds in common, too few to judge." in found.notes
    apart = answer([*FINETUNE, *runs("mixout", BEHIND), *(run | {"seed": 9} for run in runs("ad-drop", AHEAD[:1]))])
    assert "Every other method here but ad-drop (no seed in common), which cannot be judged yet," in apart.sentences[0]
    none = answer([*runs("finetune", PLAIN[:1]), *runs("ad-drop", AHEAD[:2])[1:]])
    assert none.sentences == ("No recommendation yet. 0 seeds in common are too few to tell: take 4 seeds or more.",)
    few = answer([*FINETUNE, *(run | {"seed": run["seed"] + 4} for run in runs("ad-drop", AHEAD))])
    assert few.sentences[0] == "No recommendation yet. 1 seed in common is too few to tell: take 4 seeds or more."
    every = [*FINETUNE, *runs("r-drop", AHEAD), *runs("frozen", LOW, 5)]
    assert answer([*every, *runs("mixout", [score + 0.05 for score in AHEAD[:2]])]).use == "r-drop"


def test_intervals_against_a_baseline_are_not_denied_where_the_reference_has_one_seed() -> None:
    found = answer([*runs("finetune", PLAIN[:1]), *runs("ad-drop", AHEAD), *runs("tfidf", LOW, 5)])
    assert "ad-drop minus tfidf is +0.223 [+0.2" in found.sentences[1]
    assert found.holds_for.startswith("Intervals on new rows hold for other seeds")
    assert answer([*runs("finetune", PLAIN[:1]), *runs("ad-drop", AHEAD)]).holds_for == "One seed gives no intervals."


@pytest.mark.parametrize(
    ("metric", "scores"),
    [
        ("accuracy", {"rows": 73, "data": "test", "right": RowScores(np.ones(73, bool), 73, "").as_dict()["right"]}),
        ("matthews_correlation", {"rows": 300, "data": "test", "blocks": [0.8] * 100}),
        ("neg_mean_squared_error", {"rows": 300, "data": "test", "blocks": [-7.3] * 100}),
        ("accuracy", {"rows": 300, "data": "test", "blocks": [0.8] * 15}),  # about 15 texts
    ],
)
def test_equal_predictions_have_no_interval_without_width(metric: str, scores: Run) -> None:
    """In words, in the table, in Markdown, in JSON and CSV."""
    score = {"metric": metric, "row_scores": scores}
    equal = [0.8 if metric != "neg_mean_squared_error" else -7.3] * 5
    found = answer([*runs("finetune", equal, **score), *runs("ad-drop", equal, **score)])
    for text in ("\n".join(found.lines()), found.markdown()):
        assert "0.000 [-" in text and "[0.000, 0.000]" not in text
    (record,) = (each for each in found.as_dict()["methods"] if each["label"] == "ad-drop")
    units = scores["rows"] if len(scores.get("blocks", [])) != 15 else 15
    least = (1 if equal[0] > 0 else 7.3) * (1 - 0.05 ** (1 / units))
    assert (record["difference_low"], record["difference_high"]) == pytest.approx((-least, least))
    assert (record["these_rows_low"], record["these_rows_high"]) == (None, None)
    assert (found.records()[1]["difference_low"], record["p"]) == (record["difference_low"], 1.0)


def test_equal_scores_are_not_taken_for_certainty() -> None:
    rows = np.tile(np.arange(1000) < 500, (4, 1))  # the same in all seeds, and another that gains five and loses three
    other = rows ^ np.isin(np.arange(1000), [1, 2, 3, *range(600, 605)])
    assert answer([*of_rows("finetune", rows), *of_rows("ad-drop", other)]).verdict.kind == "tie"
    same = answer([*runs("finetune", [0.0] * 4), *runs("ad-drop", [0.0] * 4, 200)])
    assert same.use == "finetune" and "practically nothing" in same.sentences[0]


def test_what_differs_by_rounding_is_not_ahead() -> None:
    found = answer([*runs("finetune", [0.3] * 5 + [0.5]), *runs("r-drop", [0.1 + 0.2] * 5 + [0.6])])
    assert "; ahead in 1 of 6 seeds, " in found.sentences[1]
    for seeds, says in ((5, "is not shown to pay here: it gets as many right."), (3, "it gets as many right. 3 runs")):
        scores = [*[0.3] * (seeds - 1), 0.5]
        found = answer([*runs("finetune", [score + 1e-16 for score in scores]), *runs("tfidf", scores)])
        assert says in found.sentences[0]


def test_another_reference_is_compared_with_plain_fine_tuning() -> None:
    found = answer([*runs("l2-sp", PLAIN), *runs("finetune", UNCLEAR)], "l2-sp")
    assert (
        "Use l2-sp. No other method here is told apart from it; the best of them: plain fine-tuning gets 6 more"
        in (found.sentences[0])
    )


def test_times_are_compared_seed_by_seed() -> None:
    slow = runs("ad-drop", AHEAD, 210)
    slow[0]["train_seconds"], slow[1]["train_seconds"] = 100_000, 1
    assert row(answer([*FINETUNE, *slow]), "ad-drop").cost == pytest.approx(2.1)


def test_times_of_different_numbers_of_steps_are_compared_per_step() -> None:
    plain = runs("finetune", PLAIN, steps=30, selection={"steps": 40, "history": [{"step": 50}, {"step": 60}]})
    fewer = runs("ad-drop", AHEAD, 80, steps=20, selection={"steps": 5, "history": [{"step": 20}]})
    found = answer([*plain, *fewer, *runs("frozen", LOW, 10)])
    assert row(found, "ad-drop").cost == pytest.approx(0.8 * 90 / 40)
    assert row(found, "frozen").cost == pytest.approx(0.1)


def test_runs_in_which_the_method_never_acted_are_told() -> None:
    acted, idle = [{"regularized": False}, {"regularized": True}], [{"regularized": False}]
    found = runs("ad-drop", AHEAD, history=acted)
    found[1]["history"] = found[3]["history"] = idle
    plain = runs("finetune", PLAIN, history=idle)
    assert answer([*plain, *found]).notes == (
        "ad-drop acted in no epoch of 2 of 5 runs, which are plain fine-tuning.",
        *answer([*plain, *runs("ad-drop", AHEAD, history=acted)]).notes,
    )


def test_a_method_is_named_as_asked_and_a_note_says_what_the_data_decided() -> None:
    asked, decided = ADDrop().options(), ADDrop(p=0.3, attribution="recorded", layers="all").options()
    found = answer([*runs("finetune", PLAIN), *runs("ad-drop", AHEAD, options=decided, config={"options": asked})])
    assert [row.label for row in found.rows] == ["finetune", "ad-drop"]
    named = "Here ad-drop means ad-drop p=0.3 attribution=recorded layers=all"
    assert f"{named}: there are many classes with few rows each." in found.notes
    usual = ADDrop().for_data(classes=2, rows=100).options()
    usual.popitem()  # a run of an older version, that had fewer options
    found = answer([*runs("finetune", PLAIN), *runs("ad-drop", AHEAD, options=usual, config={"options": asked})])
    assert "means" not in " ".join(found.notes)


@pytest.mark.parametrize(
    ("config", "rows", "sampled"),
    [
        ({"train_file": "a/tr.csv", "eval_file": "a/dev.csv", "shots": 5}, "dev.csv (3000 rows), trained on tr.csv",
         "other samples of 5 training rows per class, and other evaluation rows like those of dev.csv"),
        ({"train_file": "t.csv", "test_fraction": 0.25, "max_train_samples": 256}, "25 % of t.csv, set aside (3000",
         "256 training rows, and other evaluation rows like those of t.csv"),
        ({"train_file": "t.csv", "test_fraction": 0.25, "shift": True}, "a random part of t.csv, set aside (3000",
         "the same training rows, and other evaluation rows like those of t.csv"),  # the fraction of the other rows
        ({"task": "cola", "train_file": None, "eval_file": None}, "cola (3000 rows)", "rows like those of files"),
    ],
)  # fmt: skip
def test_an_answer_says_what_it_is_on_and_what_is_sampled(config: Run, rows: str, sampled: str) -> None:
    lines = answer([*runs("finetune", PLAIN, config=config), *runs("r-drop", UNCLEAR, config=config)]).lines()
    assert any(line.startswith(f"accuracy of minilm on {rows}") for line in lines)
    assert sampled in lines[-1]


@pytest.mark.parametrize(
    ("metric", "scale", "margin"), [("accuracy", 1, 0.005), ("neg_mean_squared_error", -10, 0.076)]
)
def test_what_is_practically_nothing_depends_on_the_metric(metric: str, scale: float, margin: float) -> None:
    found = answer(runs("finetune", [scale * score for score in PLAIN], metric=metric))
    assert found.margin == pytest.approx(margin, rel=0.01)


@pytest.mark.parametrize(
    ("metric", "best", "limit"),
    [
        ("accuracy", 1.0, "at best"), ("accuracy", 0.9, ""), ("f1", 1.0, "at best"), ("pearson", 1.0, "at best"),
        ("neg_mean_squared_error", 0.0, "at best"), ("neg_log_loss", 0.0, "at best"),
        ("neg_mean_squared_error", -0.1, ""),
    ],
)  # fmt: skip
def test_scores_at_the_best_possible_one_leave_nothing_to_settle(metric: str, best: float, limit: str) -> None:
    """That of an error is 0, of which the score is the negative."""
    around = (0.79, 0.74, 0.77, 0.77, 0.77), PLAIN
    found = answer(
        [
            run
            for method, scores in zip(("r-drop", "finetune"), around, strict=True)
            for run in runs(method, [best + (score - 1) / 100 for score in scores], metric=metric)
        ],
        margin=0.005,
    )
    assert found.verdict.limit == limit
    at_best = f"are within 0.005 of {best:.3f}, the best possible score"
    assert (at_best in found.sentences[0]) is (limit == "at best")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (runs("finetune", PLAIN[:1]), "Two runs of 'finetune' have seed 0: 'runs/finetune-0'"),
        (runs("ad-drop", AHEAD, task="cola"), r"differ in their task \(cola, files\)"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(more: list[Run], says: str) -> None:
    with pytest.raises(AttendropError, match=says):
        answer(FINETUNE + more)
    with pytest.raises(AttendropError, match="no finished run to compare"):
        answer([])


# Limits --------------------------------------------------------------------------------------------------------------


def test_the_score_of_the_best_of_several_is_said_to_flatter() -> None:
    several = answer([*FINETUNE, *runs("ad-drop", AHEAD), *runs("mixout", BEHIND)])
    assert several.notes == ("The best score of 3 on the same rows is optimistic: expect slightly less on new data.",)


@pytest.mark.parametrize("name", ["selected_on", "rewarded_on"])
def test_scores_chosen_on_the_reported_rows_are_marked(name: str) -> None:
    data = {"selected_on": None, "rewarded_on": None, "rows": {"dev": 3000}} | {name: "dev"}
    found = answer([*FINETUNE, *runs("ad-drop", AHEAD, data=data)])
    assert any(note.startswith("*: a model was chosen on the rows") for note in found.notes)
    assert r"0.775 ± 0.008\*" in found.markdown() and "0.762 ± 0.011 " in found.markdown()


# Output --------------------------------------------------------------------------------------------------------------

FOUND = answer([*FINETUNE, *runs("ad-drop", AHEAD, 210), *runs("majority", [0.013] * 4, 0.001)])


def test_lines_and_markdown_have_the_answer_the_table_and_every_seed() -> None:
    lines, text = FOUND.lines(), FOUND.markdown()
    says = "It gets 13 more of 1,000 right than plain fine-tuning, and 76 more of 100"
    assert lines[0].startswith(f"Use ad-drop. {says}") and text.startswith(f"**Use ad-drop.** {says}")
    assert lines[lines.index("") + 1] == "accuracy of minilm on files (3000 rows):"
    (ad_drop,) = (line for line in lines if line.startswith("ad-drop  "))
    assert " ".join(ad_drop.split()) == (
        "ad-drop 5 0.775 ± 0.008 +0.013 [+0.004, +0.022] [+0.004, +0.022] 0.015 1.00 2.1x"
    )
    assert "| majority | 4 | 0.013 ± 0.000 | -0.750 [-0.770, -0.731] | [-0.770, -0.731] | - | 0.00 | <0.01x |" in text
    assert "| majority | 0.013 | 0.013 | 0.013 | 0.013 | - |" in text
    error = {"method": "r-drop", "options": {}, "seed": 1, "error": "got <class 'int'>\nfor *args, [a](b), `__all__`"}
    of_file = [run | {"config": {"train_file": "max_rows_*.csv"}, "label": "_a*"} for run in FINETUNE]
    text = answer(of_file, "_a*", failed=[error]).markdown()  # as it is, and not as markup
    assert r"&lt;class 'int'> for \*args, [a\](b), \`\_\_all\_\_\`)." in text
    assert r"on max_rows\_\*.csv (3000 rows):" in text and text.count(r"| \_a\* | ") == 2 and r"Use \_a\*." in text


def test_csv_and_json_hold_everything(tmp_path: Path) -> None:
    table = list(csv.DictReader(io.StringIO(FOUND.csv())))
    assert [line["label"] for line in table] == ["finetune", "ad-drop", "majority"]
    assert float(table[1]["difference"]) == pytest.approx(0.013) and table[2]["seed_4"] == ""
    found = FOUND.as_dict()
    assert (found["kind"], found["challenger"], found["incumbent"]) == ("method", "ad-drop", "finetune")
    method = found["methods"][1]
    assert method["differences"] == pytest.approx([0.007, 0.023, 0.012, 0.006, 0.017])
    assert (method["ahead"], method["pairs"], method["components"]["rows"]) == (1, 5, 3000)
    unclear = [*FINETUNE, *runs("ad-drop", AHEAD), *runs("mixout", BEHIND), *runs("frozen", NOISY)]
    for each in (
        FOUND,
        answer(unclear),
        answer(runs("finetune", PLAIN[:1]) + runs("ad-drop", AHEAD[:1])),  # an interval of one seed is infinite
    ):
        (tmp_path / "answer.json").write_text(json.dumps(each.as_dict(), allow_nan=False))
        assert read_answers(tmp_path / "answer.json") == {"": each}
    (tmp_path / "answer.json").write_text(json.dumps({"settings": {"a": found, "b": found}}))
    assert list(read_answers(tmp_path / "answer.json") or {}) == ["a", "b"]


def test_a_decision_follows_from_json_alone() -> None:
    """Plain fine-tuning and one method are ahead of the baseline, and the method of plain fine-tuning."""
    few = runs("mixout", AHEAD[:3])
    every = [*FINETUNE, *runs("ad-drop", AHEAD), *runs("drophead", BEHIND), *few, *runs("majority", LOW)]
    found = json.loads(json.dumps(answer(every).as_dict()))
    assert (found["use"], found["why"], found["baseline"], found["among"]) == ("ad-drop", "ahead", "majority", None)
    assert (found["behind"], found["not_judged"], found["also_ahead"]) == (["drophead"], ["mixout"], [])
    leads = found["baseline_leads"]
    p_values = {label: each["p_holm"] for label, each in leads.items()}
    assert p_values["mixout"] is None and leads["mixout"]["seeds"] == 3  # too few to be tested
    ahead = [label for label, p in p_values.items() if p is not None and p <= 0.05 and leads[label]["value_low"] > 0]
    assert ahead == ["finetune", "ad-drop", "drophead"]

    found = answer([*every, *runs("frozen", HIGH)]).as_dict()
    assert (found["use"], found["why"], found["baseline"]) == ("frozen", "behind", None)
    assert (found["incumbent"], found["among"]["use"], found["among"]["why"]) == ("frozen", "ad-drop", "ahead")


def test_a_baseline_that_trains_the_encoder_must_be_shown_to_be_ahead_of_one_that_does_not() -> None:
    frozen = runs("frozen", (0.80,) * 5)
    unclear, ahead = runs("setfit", (0.79, 0.82, 0.80, 0.83, 0.79), 130), runs("setfit", (0.82,) * 4 + (0.83,), 130)
    found = answer([*FINETUNE, *frozen, *unclear])
    assert (found.verdict.use, found.verdict.incumbent) == ("frozen", "frozen")
    note = "frozen, which trains no encoder, counts as the best baseline: setfit minus frozen is +0.006 [-"
    assert found.notes[0].startswith(note)
    assert answer([*FINETUNE, *frozen, *ahead]).verdict.use == "setfit"
    assert answer([*FINETUNE, *frozen, *ahead[:3]]).verdict.use == "frozen"
    best = answer([*runs("finetune", (0.85, 0.86, 0.85, 0.86, 0.85)), *frozen, *unclear])
    assert best.verdict.use == "finetune"
    assert "than the best baseline that trains no encoder, the linear model on the frozen" in best.sentences[0]


def test_the_decision_ends_where_its_reason_begins() -> None:
    named = [run | {"label": "No. 3"} for run in runs("ad-drop", AHEAD)]
    decision, reason = answer([*FINETUNE, *named]).decision
    assert (decision, reason[:7]) == ("Use No. 3.", "It gets")
    decision, reason = answer(named).decision
    assert reason == "" and decision == (
        "No recommendation: plain fine-tuning, with which all others are compared, has no score; "
        "attendrop report FOLDER --reference 'No. 3' compares with that instead."
    )


def test_a_file_of_another_program_is_refused_and_none_is_no_error(tmp_path: Path) -> None:
    assert read_answers(tmp_path / "answer.json") is None
    for content in ({"answer": 42}, {"settings": []}, {"settings": {"a": {"methods": []}}}):
        (tmp_path / "answer.json").write_text(json.dumps(content))
        with pytest.raises(AttendropError, match="not written by attendrop"):
            read_answers(tmp_path / "answer.json")
    write_json(tmp_path / "answer.json", {"settings": {}, "overall": [{"label": "ad-drop", "seeds": 0}]})
    with pytest.raises(AttendropError, match="not written by attendrop"):
        read_overall(tmp_path / "answer.json")
