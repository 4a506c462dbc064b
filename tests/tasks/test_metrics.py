"""Scores against values computed by hand, also divided among rows, and the exact content of files of predictions."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as skm
from datasets import Dataset
from scipy.special import softmax
from sklearn.metrics import precision_recall_fscore_support

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.error_analysis import best_temperature, calibration, error_analysis, remarks
from attendrop.tasks.metrics import RowScores, compute_scores, constant_scores, label_mapping, row_scores, with_metric
from attendrop.tasks.prediction_files import PredictionWriter
from attendrop.tasks.registry import get_task
from attendrop.tasks.table import read_table
from attendrop.tasks.types.base import TaskType, row_array
from attendrop.tasks.types.classification import Classification, MultiLabel, Regression
from attendrop.tasks.types.token_classification import TokenClassification
from attendrop.tasks.types.translation import Translation, WrittenText

OWN_CLASSES = Task(
    "files", Classification(("a", "b, c", "d")), ("text",), "accuracy", "", ("f1_macro", "matthews_correlation")
)
TWO_CLASSES = Task("files", Classification(("no", "yes")), ("text",), "accuracy", "", OWN_CLASSES.other_metrics)
MULTI_LABEL = Task("files", MultiLabel(("a", "b", "c")), ("text",), "f1_micro", "")
OWN_NUMBERS = Task("files", Regression(), ("text",), "pearson", "", ("spearman", "mse", "rmse", "mae"))


BINARY = {"f1": skm.f1_score, "precision": skm.precision_score, "recall": skm.recall_score}
RANKING = {"roc_auc": skm.roc_auc_score, "average_precision": skm.average_precision_score}


@pytest.mark.parametrize("task", [OWN_CLASSES, TWO_CLASSES], ids=["three", "two"])
def test_labels_that_training_lacks_are_wrong(task: Task) -> None:
    """All metrics are those of scikit-learn, of the labels as they are written."""
    task = replace(task, type=replace(task.type, unknown_names=("x", "y")))
    draw, names = np.random.default_rng(0), np.array(task.type.all_names)
    logits, labels = draw.normal(size=(60, len(task.label_names))), draw.integers(len(names), size=60)
    gold, found = names[labels], names[logits.argmax(axis=1)]
    averages = {
        f"{name}_{of}": score(gold, found, average=of, zero_division=0.0)
        for name, score in BINARY.items()
        for of in ("macro", "micro", "weighted")
    }
    expected = averages | {
        "accuracy": skm.accuracy_score(gold, found),
        "balanced_accuracy": skm.recall_score(gold, found, average="macro", zero_division=0.0),
        "matthews_correlation": skm.matthews_corrcoef(gold, found),
        "cohen_kappa": skm.cohen_kappa_score(gold, found),
    }
    if task is not OWN_CLASSES and len(task.label_names) == 2:
        expected |= {name: score(gold == "yes", found == "yes") for name, score in BINARY.items()}
        expected |= {name: score(gold == "yes", logits[:, 1] - logits[:, 0]) for name, score in RANKING.items()}
    metrics = task.type.metrics
    assert {name: metric.score(labels, logits) for name, metric in metrics.items()} == pytest.approx(
        {name: expected[name] for name in metrics}
    )


def test_models_are_selected_by_the_least_error() -> None:
    predictions, labels = np.array([[1.0], [2.0], [3.0], [10.0]]), np.array([1.0, 2.0, 3.0, 4.0])
    for names, error in (("mse neg_mse neg-mean-squared-error", -9.0), ("mae neg_mae neg_mean_absolute_error", -1.5)):
        for name in names.split():
            task = with_metric(OWN_NUMBERS, name)
            assert task.metric == names.split()[-1].replace("-", "_")
            assert compute_scores(task, predictions, labels)[task.metric] == pytest.approx(error)


def write_predictions(path: Path, task: Task, index: list[int], outputs: np.ndarray[Any, Any]) -> None:
    with PredictionWriter(path, task) as writer:
        writer.write({"index": index}, outputs)


def test_what_cannot_be_scored() -> None:
    broken = np.where(np.arange(10).reshape(5, 2) == 2, np.nan, 1.0)
    with pytest.raises(AttendropError, match="NaN or infinite for 1 of 5 rows"):
        write_predictions(Path("out.tsv"), get_task("rte"), [*range(5)], broken)
    with pytest.raises(AttendropError, match="there are no rows to score"):
        compute_scores(get_task("rte"), np.zeros((0, 2)), np.zeros(0))


def test_lists_and_objects_are_json_in_tables_and_lines_of_text(tmp_path: Path) -> None:
    answers = {"text": ["a, b"], "answer_start": [2], "sure": [math.nan]}
    (tmp_path / "in.jsonl").write_text(json.dumps({"answers": answers, "sure": math.inf}) + "\n")
    for name in ("out.txt", "out.csv", "out.jsonl"):
        with PredictionWriter(tmp_path / name, MULTI_LABEL, keep_columns=name != "out.txt") as writer:
            writer.write({"index": [0]}, np.array([[1.0, -1.0, 1.0]]), read_table(tmp_path / "in.jsonl"))
    assert (tmp_path / "out.txt").read_text() == '["a", "c"]\n'
    _, (read, _, labels) = csv.reader((tmp_path / "out.csv").open(newline=""))
    finite = answers | {"sure": [None]}  # no JSON has NaN, which many programs refuse to read
    assert [json.loads(read), json.loads(labels)] == [finite, ["a", "c"]]
    written = json.loads((tmp_path / "out.jsonl").read_text())
    assert written == {"answers": finite, "sure": None, "predicted_labels": ["a", "c"]}


def test_submission(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.tsv"
    for name, logits, answers in (
        ("mnli", [[0, 1, 0], [0, 0, 1]], ["neutral", "contradiction"]),
        ("stsb", [[5.2], [-0.1]], ["5.000", "0.000"]),
    ):
        write_predictions(path, get_task(name), [0, 7], np.array(logits))
        assert path.read_bytes().decode() == f"index\tprediction\n0\t{answers[0]}\n7\t{answers[1]}\n"


def test_own_predictions(tmp_path: Path) -> None:
    logits = np.log([[0.2, 0.7, 0.1], [0.5, 0.25, 0.25]])
    write_predictions(tmp_path / "a.csv", OWN_CLASSES, [0, 1], logits)
    assert (tmp_path / "a.csv").read_text() == 'index,label,probability\n0,"b, c",0.7\n1,a,0.5\n'
    write_predictions(tmp_path / "a.tsv", OWN_NUMBERS, [0, 1], np.array([[1.25], [-3.0]]))
    assert (tmp_path / "a.tsv").read_text() == "index\tscore\n0\t1.25\n1\t-3.0\n"
    write_predictions(tmp_path / "a.TXT", OWN_CLASSES, [0, 1], logits)
    assert (tmp_path / "a.TXT").read_text() == "b, c\na\n"


NUMBERS = np.random.default_rng(1).normal(size=(40, 3))
LABELLED: dict[str, tuple[Task, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {
    "classes": (TWO_CLASSES, (NUMBERS[:, 2] > 0.5).astype(int), NUMBERS[:, :2], NUMBERS[:, 1] - NUMBERS[:, 0]),
    "labels": (MULTI_LABEL, (NUMBERS[::-1] > 0.5).astype(int), NUMBERS, NUMBERS),
    "numbers": (OWN_NUMBERS, NUMBERS[:, 0], NUMBERS[:, 1], NUMBERS[:, 1]),
}
NAMES = [(kind, name) for kind, row in LABELLED.items() for name in row[0].type.metrics]


@pytest.mark.filterwarnings("ignore:.* is ill-defined")  # of rows without labels
@pytest.mark.parametrize(("kind", "name"), [row for row in NAMES if row[1] in skm.get_scorer_names()])
def test_metrics_are_the_scorers_of_scikit_learn(kind: str, name: str) -> None:
    task, labels, outputs, margins = LABELLED[kind]
    scorer = skm.get_scorer(name)
    read = margins if kind == "numbers" or scorer._response_method != "predict" else margins > 0
    expected = scorer._sign * scorer._score_func(labels, read, **scorer._kwargs)
    assert compute_scores(with_metric(task, name), outputs, labels)[name] == pytest.approx(expected)


def test_constant_scores_are_those_of_the_most_common_class_of_training() -> None:
    answer, scores = constant_scores(TWO_CLASSES, np.array([0, 1, 1]), np.array([0, 0, 0, 1])) or ("", {})
    assert (answer, scores["accuracy"]) == (TWO_CLASSES.label_names[1], 0.25)
    _, outputs = TWO_CLASSES.type.constant_answer(np.array([0, 1, 1]), np.zeros(2)) or ("", np.zeros(0))
    assert np.exp(outputs[1]) / np.exp(outputs[1]).sum() == pytest.approx([2 / 5, 3 / 5])  # smoothed frequencies
    several = MultiLabel(("a", "b", "c"))
    shown = [several.constant_answer(np.array(rows), np.zeros(1))[0] for rows in ([[1, 0, 0], [0, 1, 0]], [[1, 1, 0]])]
    assert shown == ["a", "a, b"]  # of labels that are as frequent, one
    answer, scores = constant_scores(OWN_NUMBERS, np.array([1.0, 2.0]), np.array([1.5, 3.5])) or ("", {})
    assert (answer, scores["pearson"], scores["mse"]) == (1.5, 0.0, 2.0)


def test_classes_of_a_model_are_read_by_their_names() -> None:
    for task, trained_on, reading in (
        ("hans", "mnli", [0, 1, 1]),
        ("hans", "hans", None),
        ("pawsx", "mrpc", [0, 1]),
        ("wnli", "rte", [1, 0]),  # the same names in another order
        ("rte", "mrpc", None),  # a task without readings leaves the decision to the user, with a warning
    ):
        assert label_mapping(get_task(task), get_task(trained_on).type) == reading
    turned = replace(get_task("mnli").type, label_names=("contradiction", "entailment", "neutral"))
    assert label_mapping(get_task("mnli"), turned) == [2, 0, 1]


def test_models_with_other_classes_are_refused() -> None:
    with pytest.raises(AttendropError, match=r"pawsx scores models with the classes .* This model's are: "):
        label_mapping(get_task("pawsx"), get_task("mnli").type)


TAGS = ("O", "B-PER", "I-PER")


def task(metric: str, task_type: TaskType = TWO_CLASSES.type) -> Task:
    return Task("files", task_type, ("text",), metric, "")


def rows_of(texts: Sequence[str]) -> Dataset:
    return Dataset.from_dict({"text": list(texts), "label": [0] * len(texts), "index": list(range(len(texts)))})


def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits and labels that agree in three rows of four."""
    generator = np.random.default_rng(0)
    labels = (generator.random(count) < 0.4).astype(int)
    answers = labels ^ (generator.random(count) < 0.25)
    return np.eye(2)[answers], labels


def correlated(count: int, key: int = 0) -> tuple[np.ndarray, np.ndarray]:
    outputs, noise = np.random.default_rng(key).normal(size=(2, count))
    return outputs, outputs + noise


CORRELATION = task("pearson", Regression())


def correlation_scores(count: int) -> RowScores:
    return row_scores(CORRELATION, *correlated(count), rows_of([str(row) for row in range(count)]))


def test_the_mean_of_the_values_is_the_score() -> None:
    expected = compute_scores(CORRELATION, *correlated(99))["pearson"]
    assert np.mean(correlation_scores(99).values) == pytest.approx(expected, abs=0.003)
    (outputs, labels), texts = drawn(99), [f"row {row}" for row in range(99)]
    assert pairs(texts, texts).values.tolist() == (outputs.argmax(1) == labels).tolist()


def test_the_variance_of_the_values_is_that_of_the_score_on_other_rows() -> None:
    scores = [compute_scores(CORRELATION, *correlated(400, key))["pearson"] for key in range(100)]
    found = correlation_scores(400).values
    assert np.std(found, ddof=1) / np.sqrt(len(found)) == pytest.approx(np.std(scores), rel=0.25)


def pairs(first: Sequence[str], second: Sequence[str]) -> RowScores:
    """Divide accuracy among pairs of texts."""
    outputs, labels = drawn(len(first))
    columns = {"text": list(first), "text_pair": list(second), "label": labels.tolist()}
    found = row_scores(task("accuracy"), outputs, labels, Dataset.from_dict(columns))
    assert found is not None and found.rows == len(first)
    return found


def test_neighbours_in_running_text_are_one_block() -> None:
    """Errors that come in runs make the score less certain than independent ones."""
    outputs = row_array([WrittenText("", -float(row // 20 % 2), 1) for row in range(200)])
    found = row_scores(task("neg_log_loss", Translation()), outputs, row_array([""] * 200), rows_of([""] * 200))
    assert found is not None and found.values == pytest.approx(-np.repeat(np.arange(10) % 2, 10))


def test_values_of_entities_are_those_of_scores_without_each_block() -> None:
    tags = np.random.default_rng(0).integers(3, size=(2, 60, 4))
    own = task("entity_f1", TokenClassification(TAGS))
    references, outputs = row_array(list(tags[0])), row_array(list(np.eye(3)[tags[1]]))
    score = own.type.metrics["entity_f1"].score
    without = [score(np.delete(references, row), np.delete(outputs, row)) for row in range(60)]
    rows = Dataset.from_dict({"tokens": [[f"word {row}"] * 4 for row in range(60)]})
    found = row_scores(own, outputs, references, rows)
    assert found.values == pytest.approx(60 * score(references, outputs) - 59 * np.array(without))


def test_values_are_read_as_they_were_written() -> None:
    texts = [f"row {row}" for row in range(77)]
    shared = [f"a long paragraph {row * row % 13}" for row in range(77)]
    for found in (correlation_scores(77), pairs(texts, texts), pairs(texts, shared)):
        again = RowScores.from_dict(json.loads(json.dumps(found.as_dict())))
        assert (again.values == found.values).all() and (again.by_unit == found.by_unit).all()
        assert (again.rows, again.data) == (found.rows, found.data)


def test_only_scores_on_the_same_rows_are_of_the_same_data() -> None:
    texts = [str(row) for row in range(9)]
    one, same, other = (
        row_scores(task("accuracy"), *drawn(9), rows_of([*texts[:8], last])) for last in ("8", "8", "another")
    )
    assert one.data == same.data != other.data


@pytest.mark.filterwarnings("ignore")  # of scikit-learn
def test_a_score_that_is_undefined_without_a_row_is_that_of_all_rows() -> None:
    """Such as the only row of a class: left out as a score of 0, it would look like the row on which all depends."""
    labels = np.array([0, 0, 0, 0, 0, 1])
    found = row_scores(task("cohen_kappa"), np.eye(2)[labels], labels, rows_of([*"abcdef"]))
    assert found.values.tolist() == [1.0] * 6


ANSWERS = ("no", "perhaps", "yes")
ANALYSED = files_task(["text"], Classification(ANSWERS))
GENERATOR = np.random.default_rng(0)
DRAWN = GENERATOR.normal(size=(200, 3)) * 3
GOLD = GENERATOR.integers(0, 3, 200)
ANALYSED_ROWS = Dataset.from_dict(
    {"text": [f"row {number}" for number in range(200)], "label": GOLD.tolist(), "index": range(200)}
)


def test_classes_are_scored_as_by_scikit_learn() -> None:
    found = error_analysis(ANALYSED, DRAWN, GOLD, ANALYSED_ROWS)
    expected = np.array(precision_recall_fscore_support(GOLD, DRAWN.argmax(1)))
    names = ("precision", "recall", "f1", "rows")
    np.testing.assert_allclose([[row[name] for row in found["classes"]] for name in names], expected)
    assert [row["predicted"] for row in found["classes"]] == np.bincount(DRAWN.argmax(1)).tolist()
    assert sum(pair["rows"] for pair in found["confusions"]) == (DRAWN.argmax(1) != GOLD).sum()
    other = replace(ANALYSED, type=replace(ANALYSED.type, unknown_names=("other",)))
    unknown = error_analysis(other, DRAWN, np.full(200, 3), ANALYSED_ROWS)
    assert {pair["class"] for pair in unknown["confusions"]} == {"other"}


def test_errors_begin_with_the_surest_and_have_their_nearest_training_row() -> None:
    rows = Dataset.from_dict(
        {"text": ["the cat sleeps", "a dog barks", "Where  is it"], "label": [0, 0, 2], "index": [0, 2, 5]}
    )
    train = Dataset.from_dict({"text": ["dogs bark", "where is it", "a cat sleeps"], "label": [0, 1, 1]})
    logits, labels = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 5.0, 0.0]]), np.array([0, 0, 2])
    found = error_analysis(ANALYSED, logits, labels, rows, train)
    assert [(error["row"], error["class"], error["predicted"]) for error in found["errors"]] == [
        (5, "yes", "perhaps"),  # as counted in the file, of which some rows were skipped
        (0, "no", "perhaps"),
    ]
    assert found["errors"][0]["probability"] == pytest.approx(softmax(logits[2])[1])
    assert [error["nearest"]["text"] for error in found["errors"]] == ["where is it", "a cat sleeps"]
    assert found["errors"][0]["nearest"]["likeness"] == pytest.approx(1.0)
    # The same text with another label: one of the two is wrong; also if a row before it agrees.
    doubtful = "The text of 1 error is that of a training row with another label"
    assert remarks(found)[-1].startswith(doubtful)
    train = Dataset.from_dict({"text": ["where is it", "Where is it"], "label": [2, 1]})
    assert remarks(error_analysis(ANALYSED, logits, labels, rows, train))[-1].startswith(doubtful)
    many = error_analysis(ANALYSED, np.tile(logits[2], (21, 1)), np.full(21, 2), rows.select([2] * 21), train)
    assert "The text of 20 errors of the 20 most confident ones is that of" in remarks(many)[-1]


def test_the_calibration_error_is_the_distance_of_probability_and_accuracy() -> None:
    logits = np.log(np.array([[0.75, 0.25]] * 4 + [[0.95, 0.05]] * 2))
    found = calibration(logits, np.array([0, 0, 1, 1, 0, 0]))
    bins = [(part["rows"], round(part["probability"], 6), part["accuracy"]) for part in found["bins"]]
    assert bins == [(4, 0.75, 0.5), (2, 0.95, 1.0)]
    assert found["error"] == pytest.approx((4 * 0.25 + 2 * 0.05) / 6)


def test_the_temperature_of_overconfident_logits_is_found() -> None:
    logits = GENERATOR.normal(size=(20_000, 4)) * 2
    labels = (logits + GENERATOR.gumbel(size=logits.shape)).argmax(axis=1)  # drawn from the softmax
    assert best_temperature(logits * 3.0, labels) == pytest.approx(3.0, rel=0.05)
    logits, labels = np.array([[1.0, -1.0], [-1.0, 1.0]] * 9), np.array([0, 1] * 9)
    # Of 18 rows, all right, the probability is 19 / 20: a few do not make a model sure.
    assert softmax(logits / best_temperature(logits, labels), axis=1).max(axis=1) == pytest.approx(0.95, abs=1e-3)


def test_labels_have_scores_of_their_own_and_numbers_have_none() -> None:
    several, rows = files_task(["text"], MultiLabel(("a", "b"))), ANALYSED_ROWS.select([0, 1])
    found = error_analysis(several, np.array([[2.0, -1.0], [1.0, 1.0]]), np.array([[1, 0], [0, 1]]), rows)
    assert found == {
        "classes": [
            {"class": "a", "rows": 1, "predicted": 2, "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3)},
            {"class": "b", "rows": 1, "predicted": 1, "precision": 1.0, "recall": 1.0, "f1": 1.0},
        ]
    }
    assert error_analysis(files_task(["text"], Regression()), np.zeros((2, 1)), np.zeros(2), rows) is None
