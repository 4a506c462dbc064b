"""Which answers to trust: the threshold and its promise, and what commands do with it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny
from helpers.command_line import Captured
from helpers.stand_in_data import OTHER_ROWS, TRAIN_ROWS, write_stand_ins

from attendrop import cli, load
from attendrop.errors import AttendropError
from attendrop.runs.config import Source
from attendrop.runs.export import export_run
from attendrop.runs.inference import evaluate, predict
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train
from attendrop.studies.compare import run_comparison
from attendrop.studies.comparison import Comparison
from attendrop.tasks.error_analysis import accuracy_at_coverage, choose_threshold, promise

# What the answers of a linear model on a random encoder to few rows support, and how it is trained.
ACCEPT = 0.3
LINEAR: dict[str, Any] = {"head_init": "linear-probe", "max_steps": 0, "selection_fraction": 0.0}


def data_of(folder: Path) -> dict[str, str]:
    """Write files of two classes that one word tells apart; return their options."""
    for name, numbers in {"told": range(40), "scored": range(40, 60)}.items():
        rows = [f"{3 * (('bad ', 'good ')[n % 2])}{tiny.sentence(n)},{tiny.sentence(n + 3)},{n % 2}" for n in numbers]
        (folder / f"{name}.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n", encoding="utf-8")
    return {"train_file": str(folder / "told.csv"), "eval_file": str(folder / "scored.csv")}


def logits_of(confidence: np.ndarray) -> np.ndarray:
    """Logits of two classes that predict class 1 with this probability."""
    return np.stack([np.zeros_like(confidence), np.log(confidence / (1 - confidence))], axis=1)


def test_the_promise_holds_as_often_as_it_says() -> None:
    """Of answers with confidence c = 1 - u² / 2, u uniform, c are right: of those above t, 1 - (1 - t) / 3."""
    generator, broken, chosen = np.random.default_rng(0), 0, []
    for _ in range(400):
        confidence = 1 - generator.uniform(1e-6, 1, 400) ** 2 / 2
        right = generator.random(400) < confidence
        found = choose_threshold(logits_of(confidence), right.astype(int), 0.95)
        if found["threshold"] is not None:
            chosen.append(found["threshold"])
            broken += 1 - (1 - found["threshold"]) / 3 < 0.95
    assert 0.02 * 400 < broken <= 0.1 * 400  # the level is 0.1, and not wasted
    assert len(chosen) > 350 and np.median(chosen) < 0.93  # 0.85 is the least that is right


@pytest.mark.parametrize(
    ("rows", "wrong", "accepted"),
    [
        *((44, [], 0), (45, [], 45), (76, [75], 73), (77, [76], 77), (120, [118, 119], 120), (120, [100, 101], 96)),
        (77, [0], 0),  # 47 rows are tested first
        *((385, [0], 385), (380, [0], 0)),  # a fifth: 77 and 76
    ],
)
def test_accepted_rows_are_those_that_clopper_and_pearson_allow(rows: int, wrong: list[int], accepted: int) -> None:
    """The limit is 0.95 with 45 rows and no error, 77 and one, 105 and two; ``wrong`` are ranks, from 0."""
    confidence, right = np.linspace(0.99, 0.6, rows), np.ones(rows, int)
    right[wrong] = 0
    found = choose_threshold(logits_of(confidence), right, 0.95)
    assert (found["accepted"], found["right"]) == (accepted, int(right[:accepted].sum()))
    if accepted:
        assert found["threshold"] == pytest.approx(confidence[accepted - 1], abs=2e-6) and found["at_least"] >= 0.95


def test_the_promise_is_about_rows_also_where_large_groups_are_worse() -> None:
    generator, broken = np.random.default_rng(0), 0
    for _ in range(400):
        sizes = np.ceil(generator.lognormal(0.5, 1, 300)).astype(int)
        right = np.repeat(generator.random(300) < np.where(sizes > 4, 0.85, 0.98), sizes)  # all of a group, or none
        groups = np.repeat(np.arange(300), sizes)
        found = choose_threshold(logits_of(np.full(len(right), 0.9)), right.astype(int), 0.917, groups.tolist())
        assert found["rows"] == len(right) > found["effective_rows"] > 50
        broken += found["threshold"] is not None  # 0.916 of all rows are right, of groups 0.96
    assert 0.02 * 400 < broken <= 0.1 * 400


def test_rows_of_a_group_count_as_one_and_ties_are_accepted_together() -> None:
    logits = logits_of(np.full(100, 0.9))
    assert choose_threshold(logits, np.ones(100, int), 0.95)["accepted"] == 100
    found = choose_threshold(logits, np.ones(100, int), 0.95, groups=[row // 5 for row in range(100)])
    assert (found["rows"], found["effective_rows"], found["threshold"]) == (100, 20, None)
    told = "No answer is accepted at 0.95: 100 held-out rows (as good as 20 that are not alike) cannot show such an"
    assert promise(found).startswith(told)


def test_accuracy_at_coverage_is_that_of_the_most_confident_rows() -> None:
    confidence, right = np.linspace(0.99, 0.6, 20), np.array([1] * 10 + [0] * 10)
    shuffled = np.random.default_rng(1).permutation(20)
    curve = accuracy_at_coverage(logits_of(confidence[shuffled]), right[shuffled])
    assert [each["coverage"] for each in curve] == pytest.approx(np.arange(1, 11) / 10)
    assert [each["accuracy"] for each in curve] == pytest.approx([1] * 5 + [10 / n for n in (12, 14, 16, 18, 20)])


def test_accuracy_at_coverage_does_not_depend_on_the_order_of_rows_that_are_equally_confident() -> None:
    right = np.array([1] * 60 + [0] * 40)
    assert [each["accuracy"] for each in accuracy_at_coverage(logits_of(np.full(100, 0.6)), right)] == pytest.approx(
        [0.6] * 10
    )


def test_the_threshold_is_kept_predicted_with_and_told(
    files: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": True})  # as if bfloat16 were fast
    metrics = train(tiny.config(files, method="finetune", accept=ACCEPT, bf16=True, **LINEAR, **data_of(files)))
    kept = metrics["accept"]
    assert kept["threshold"] is not None and kept == tiny.read_metrics(files / "run")["accept"]
    assert promise(kept) in (files / "run" / "README.md").read_text(encoding="utf-8")
    run, written = str(files / "run"), files / "out.csv"
    assert cli.main(["predict", run, str(files / "scored.csv"), "--output", str(written), "--quiet"]) == 0
    with written.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["index", "label", "probability", "confidence", "accepted"]
    assert {row["accepted"] for row in rows} <= {"True", "False"}
    threshold = round(kept["threshold"], 6)
    assert all((row["accepted"] == "True") == (float(row["confidence"]) >= threshold) for row in rows)
    texts = [(row["sentence1"], row["sentence2"]) for row in csv.DictReader((files / "scored.csv").open())]
    answers = load(run).predict(texts, probabilities=True)
    assert [str(row["accepted"]) for row in answers] == [row["accepted"] for row in rows]
    # The threshold is one of full precision.
    assert [float(row["confidence"]) for row in rows] == pytest.approx([row["confidence"] for row in answers], abs=2e-5)
    again = ["predict", run, str(files / "scored.csv"), "--output", str(written), "--overwrite", "--max-length"]
    for length, marked in (("24", True), ("7", False)):  # that of the run, and another
        assert cli.main([*again, length]) == 0
        assert ("accepted" in written.read_text(encoding="utf-8").partition("\n")[0]) == marked
    # Told on the rows that chose it, and drawn.
    capsys.readouterr()
    assert cli.main(["evaluate", run, "--report"]) == 0
    told, accepted = capsys.readouterr().out, sum(row["accepted"] == "True" for row in rows)
    assert f"{accepted / 20:.0%} of new rows can be answered at 0.3: {accepted} of these 20 rows have" in told
    assert "The threshold was chosen on these rows." in told and "most confident  confidence  accuracy" in told
    (files / "other.csv").write_bytes((files / "scored.csv").read_bytes())
    other = evaluate(run, Source(file=str(files / "other.csv")), report=True)["report"]["accept"]
    assert other["rows"] == 20 and not other["chosen_here"]
    shorter = Source(file=str(files / "told.csv"), max_length=7)
    assert "accept" not in evaluate(run, shorter, report=True)["report"]
    assert "accept" not in prune_run(run, str(files / "pruned"), layers="0")
    (files / "run" / "run.json").unlink()  # as is said to do if other weights are meant
    assert "accepted" not in load(run).predict(texts[:1], probabilities=True)[0]


def test_neither_rows_that_were_trained_on_nor_the_same_text_twice_say_what_to_accept(files: Path) -> None:
    """A text stays the same whatever another column says in front of it."""
    for name, numbers in {"told": range(20), "scored": range(10, 30)}.items():
        rows = [f"{n} {tiny.sentence(n)},{place},{n % 2}" for n in numbers for place in ("shop", "phone", name)]
        (files / f"{name}.csv").write_text("\n".join(["text,place,label", *rows]) + "\n", encoding="utf-8")
    options = {"train_file": str(files / "told.csv"), "eval_file": str(files / "scored.csv"), "accept": ACCEPT}
    options |= {"text_columns": ("text",), "with_columns": ("place",), "method": "finetune"}
    metrics = train(tiny.config(files, **options | LINEAR))
    assert metrics["data"]["report"]["parts"]["dev"]["in_train"] == 30
    assert metrics["row_scores"]["groups"] == 20
    assert (metrics["accept"]["effective_rows"], metrics["accept"]["trained_on"]) == (10, 30)
    told = " 30 held-out rows (as good as 10 that are not alike; 30 more have a text of training rows)"
    assert told in promise(metrics["accept"])
    assert evaluate(str(files / "run"), Source(), report=True)["report"]["accept"]["rows"] == 30
    told = Source(file=str(files / "told.csv"))
    assert "accept" not in evaluate(str(files / "run"), told, report=True)["report"]


@pytest.mark.parametrize(("how", "marked"), [(None, True), ("windows", True), ("head", False)])
def test_answers_to_texts_that_are_cut_otherwise_are_not_marked(files: Path, how: str | None, marked: bool) -> None:
    read = {"text_columns": ("sentence1",), "max_length": 8, "long_texts": "windows"}
    train(tiny.config(files, **{"method": "finetune", "accept": ACCEPT} | LINEAR | data_of(files) | read))
    written = files / "out.csv"
    predict(str(files / "run"), Source(file=str(files / "scored.csv"), long_texts=how), str(written))
    assert ("accepted" in written.read_text(encoding="utf-8").partition("\n")[0]) == marked
    others = Source(file=str(files / "scored.csv"), long_texts=how, with_columns=("sentence2",), overwrite=True)
    predict(str(files / "run"), others, str(written))
    assert "accepted" not in written.read_text(encoding="utf-8").partition("\n")[0]


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_of_a_task_the_rows_that_chose_the_threshold_are_told(
    files: Path, monkeypatch: pytest.MonkeyPatch, fraction: float
) -> None:
    """They are its development set, unless a fraction of its training rows is reported on."""
    monkeypatch.setenv("ATTENDROP_DATA", str(write_stand_ins(files / "data")))
    of_files = {"train_file": None, "eval_file": None, "text_columns": (), "label_column": None}
    options = of_files | LINEAR | {"method": "finetune", "accept": ACCEPT, "test_fraction": fraction}
    train(tiny.config(files, task="mnli", **options))
    for source in (Source(), Source(task="mnli"), Source(split="dev_mismatched")):
        found = evaluate(str(files / "run"), source, report=True)
        held_out = bool(fraction) and source == Source()
        assert found["rows"] == (fraction * TRAIN_ROWS if held_out else OTHER_ROWS)
        assert found["report"]["accept"]["chosen_here"] == (held_out or (not fraction and source.split is None))


@pytest.mark.slow
@pytest.mark.parametrize("accept", [ACCEPT, 0.99])
def test_other_programs_find_the_threshold_or_that_there_is_none(files: Path, accept: float) -> None:
    import onnx

    kept = train(tiny.config(files, method="finetune", accept=accept, **LINEAR, **data_of(files)))["accept"]
    run = str(files / "run")
    assert (kept["threshold"] is None) == (accept == 0.99)
    export_run(run, str(files / "served"))
    entries = {each.key: each.value for each in onnx.load(files / "served" / "model.onnx").metadata_props}
    assert entries["accept_from"] == str(kept["threshold"])


@pytest.mark.slow
def test_a_file_that_reads_texts_otherwise_has_no_threshold(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    import onnx

    options = {"long_texts": "windows", "max_length": 6, "text_columns": ("sentence1",)}
    train(tiny.config(files, method="finetune", accept=ACCEPT, **options, **LINEAR, **data_of(files)))
    export_run(str(files / "run"), str(files / "served"))
    names = {each.key for each in onnx.load(files / "served" / "model.onnx").metadata_props}
    assert "long_texts" in names and "accept_from" not in names
    assert "Which answers to accept is known for windows, not for a file." in caplog.text


def test_without_evaluation_data_a_quarter_is_held_out_and_too_few_rows_accept_nothing(
    files: Path, capsys: Captured
) -> None:
    config = tiny.config(files, eval_file=None, accept=0.95, method="finetune", epochs=1, selection_fraction=0.0)
    metrics = train(config)
    assert metrics["data"]["rows"] == {"train": 30, "dev": 10} and metrics["accept"]["threshold"] is None
    assert "cannot show such an accuracy, which takes 45 with right answers to all" in promise(metrics["accept"])
    run, out = str(files / "run"), files / "out.jsonl"
    assert cli.main(["predict", run, str(files / "dev.csv"), "--output", str(out), "--quiet"]) == 0
    assert not any(json.loads(line)["accepted"] for line in out.read_text(encoding="utf-8").splitlines())
    assert cli.main(["evaluate", run, "--report"]) == 0
    assert "No answer is accepted at 0.95" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accept": 1.0}, "accept=1.0 must be above 0 and below 1"),
        ({"protocol": "paper"}, "accept needs evaluation rows on which nothing else is chosen"),
        ({"method": "attendout", "options": {"reward_data": "eval"}}, "reward_data='eval' uses the evaluation rows"),
        ({"label_type": "number", "eval_file": None}, "accept is for one class a row|accept is for classification"),
        (
            {"label_type": "number", "eval_file": None, "accept": None, "class_weights": "balanced"},
            "class-weights is for one class a row; the labels are numbers",
        ),
    ],
)
def test_what_cannot_be_promised_or_has_no_classes_is_refused(
    files: Path, options: dict[str, Any], message: str
) -> None:
    tiny.write_csv(files / "numbers.csv", [0.5, 1.5] * 20)
    if "label_type" in options:
        options = options | {"train_file": str(files / "numbers.csv")}
    with pytest.raises(AttendropError, match=message):
        train(tiny.config(files, "refused", **{"method": "finetune", "accept": 0.9} | options))


@pytest.mark.parametrize("baseline", [None, "tfidf"])
def test_a_comparison_asks_it_of_the_kept_model_alone(
    files: Path, baseline: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is not trained on the evaluation rows then."""
    config = tiny.config(files, method="finetune", max_steps=2, eval_file=None, accept=ACCEPT, selection_fraction=0.0)
    compared = {"methods": "finetune", "seeds": 1, "baselines": baseline or "none"}
    if baseline:
        recommended = property(lambda answer: baseline)
        monkeypatch.setattr("attendrop.studies.answer.Answer.use", recommended)
    outcome = run_comparison(Comparison(config=config, output_dir=str(files / "answer"), **compared), workers=0)
    runs = [json.loads(file.read_text()) for file in (files / "answer" / "runs").glob("*/metrics.json")]
    best = tiny.read_metrics(files / "answer" / "best")
    assert runs and all("accept" not in run and run["config"]["accept"] is None for run in runs)
    assert best["data"]["rows"] == {"train": 30, "dev": 10} and best["accept"] == outcome.accept
    assert outcome.lines()[-1] == promise(best["accept"]) and outcome.as_dict()["accept"] == best["accept"]
    found = load(files / "answer" / "best").predict([(tiny.sentence(1), tiny.sentence(2))], probabilities=True)
    assert found[0]["accepted"] in (True, False)
