"""Facts of each kind of task; its labels survive files, models and predictions; rows that it cannot read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import BertConfig, MarianConfig, PreTrainedConfig

from attendrop.errors import AttendropError
from attendrop.runs.model_card import usage_of
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.table import LABEL_TYPES
from attendrop.tasks.types.base import TaskType, row_array
from attendrop.tasks.types.classification import Classification, MultiLabel, MultipleChoice, Regression
from attendrop.tasks.types.registry import TASK_TYPES, get_task_type, task_type_of_model
from attendrop.tasks.types.token_classification import TokenClassification
from attendrop.tasks.types.translation import Translation, WrittenText

YES_NO = Classification(("no", "yes"))
EXAMPLES = {
    "classification": YES_NO,
    "multi-label-classification": MultiLabel(("art", "sport")),
    "regression": Regression(),
    "token-classification": TokenClassification(("O", "B-PER")),
    "multiple-choice": MultipleChoice(("A", "B")),
    "translation": Translation(),
}
# Configurations of models of each kind, where BERT has none.
CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "translation": MarianConfig,
}


@pytest.mark.parametrize("kind", TASK_TYPES, ids=lambda kind: kind.kind)
def test_every_head_is_complete(kind: type[TaskType]) -> None:
    task_type = EXAMPLES[kind.kind]
    assert get_task_type(task_type.kind, task_type.label_names) == task_type
    assert kind.label_type in LABEL_TYPES
    assert (
        set(task_type.default_metrics) <= set(task_type.metrics)
        and task_type.metrics[task_type.default_metrics[0]].selects
    )
    assert set(task_type.metric_aliases.values()) <= set(task_type.metrics)
    assert task_type.fitted_at is None or task_type.fitted_at[0] in task_type.metrics
    auto, config = getattr(transformers, task_type.auto_class), CONFIGS.get(kind.kind, BertConfig)()
    own = task_type.model_class(config)
    assert own is auto or issubclass(own, auto._model_mapping[type(config)])
    assert kind.least_inputs <= kind.most_inputs and set(kind.inputs_of(kind.most_inputs)) <= set(kind.inputs)
    compile(usage_of(task_type, 2, 128), "card", "exec")


@pytest.mark.parametrize("task_type", EXAMPLES.values(), ids=EXAMPLES)
def test_a_saved_model_tells_its_head(task_type: TaskType, tmp_path: Path) -> None:
    config = CONFIGS.get(task_type.kind, BertConfig)()
    task_type.configure(config)
    config.save_pretrained(tmp_path)
    saved = type(config).from_pretrained(tmp_path)
    assert task_type_of_model(saved) == task_type
    assert saved.problem_type == task_type.problem_type
    assert task_type.generates or saved.num_labels == len(task_type.label_names or task_type.output_names)


# Labels as they are written in files, and the outputs of a model that predicts them.
PERFECT: dict[str, tuple[list[Any], list[Any]]] = {
    "classification": (["yes", "no", "yes"], [[0, 1], [1, 0], [0, 1]]),
    "multi-label-classification": ([["art"], [], ["art", "sport"]], [[1, -1], [-1, -1], [1, 1]]),
    "regression": (["1.5", "-2", "0"], [[1.5], [-2], [0]]),
    "token-classification": ([["B-PER", "O"], ["O"]], [np.eye(2)[[1, 0]], np.eye(2)[[0]]]),
    "multiple-choice": (["B", "A", "C"], [np.eye(2)[1], np.eye(2)[0], np.eye(3)[2]]),
    "translation": (["un doi trei mare", "si un caine"], [WrittenText("un doi trei mare"), WrittenText("si un caine")]),
}


# Kinds whose outputs for a row are no fixed number of numbers.
OBJECTS = ("token-classification", "multiple-choice", "translation")


def outputs_of(task_type: TaskType) -> np.ndarray[Any, Any]:
    perfect = PERFECT[task_type.kind][1]
    return row_array(perfect) if task_type.kind in OBJECTS else np.array(perfect, dtype=float)


@pytest.mark.parametrize("task_type", EXAMPLES.values(), ids=EXAMPLES)
def test_labels_survive_a_perfect_model(task_type: TaskType) -> None:
    written, _ = PERFECT[task_type.kind]
    labels = [task_type.read_label(value) for value in written]
    outputs = outputs_of(task_type)
    assert task_type.decode(task_type.checked(outputs)) == labels
    rows = task_type.prediction_rows(outputs, probabilities=False)
    assert [next(iter(row)) for row in rows] == [task_type.answer_column] * len(written)
    assert str(rows[0][task_type.answer_column]) in str(written[0])
    best = 0 if task_type.default_metrics[0].startswith("neg_") else 1
    metric, references = task_type.metrics[task_type.default_metrics[0]], task_type.references({"labels": labels})
    assert metric.score(references, outputs) == pytest.approx(best)


DIVERGED: dict[str, Any] = {
    "token-classification": np.array([[np.nan, 0]]),
    "multiple-choice": np.array([np.nan, 0.0]),
    "translation": WrittenText("a", math.nan, 1),
}


@pytest.mark.parametrize("task_type", EXAMPLES.values(), ids=EXAMPLES)
def test_outputs_of_a_diverged_model_are_refused(task_type: TaskType) -> None:
    perfect = PERFECT[task_type.kind][1]
    outputs = outputs_of(task_type)
    outputs[0] = DIVERGED.get(task_type.kind, np.nan)
    with pytest.raises(AttendropError, match=f"NaN or infinite for 1 of {len(perfect)} rows: training diverged"):
        task_type.checked(outputs)


def test_translators_are_recognized_but_shown_as_classifiers() -> None:
    config = MarianConfig(architectures=["MarianMTModel"])
    assert task_type_of_model(config) == Translation()
    assert task_type_of_model(config, command="attend").kind == "classification"


# Rows that cannot be read ---------------------------------------------------------------------------------------------

Record = dict[str, Any]
LABELS = ("label_type labels; text_columns x", [{"x": "a", "label": ["art"]}, {"x": "a", "label": ["music"]}])
TAGS = ("label_type tags; text_columns x", [{"x": ["a", "cat"], "label": ["O", "B-X"]}])
CHOICES = ("label_type choice; text_columns q,a,b,c", [{"q": "how?", "a": "x", "b": "y", "c": "z", "label": "A"}])
TRANSLATIONS = ("label_type text; text_columns x", [{"x": "a", "label": "b"}])


def question(a: Any, b: Any, c: Any, label: Any, q: Any = "why?") -> Record:
    return {"q": q, "a": a, "b": b, "c": c, "label": label}


BAD: list[tuple[tuple[str, list[Record]], Record, str]] = [
    (LABELS, {"x": "a", "label": None}, "column 'label': the labels are missing; write an empty list"),
    (LABELS, {"x": "a", "label": "nan"}, "column 'label': the labels are missing; write an empty list"),
    (LABELS, {"x": "a", "label": 0.5}, "0.5 is not a list of labels"),
    (LABELS, {"x": "a", "label": ["art", ""]}, "label 2 of \"['art', '']\" is empty"),
    (TAGS, {"x": ["a"], "label": ["O", "O"]}, ": 1 words, but 2 tags; give one for each word"),
    (TAGS, {"x": [], "label": []}, ", column 'x': there is no word; give a list of words"),
    (TAGS, {"x": ["a", " "], "label": ["O", "O"]}, ", column 'x': word 2 of 2 is empty"),
    (CHOICES, question("x", "", "", "A"), ": only one choice; give 2 to 26, in a column each, or as a list."),
    (CHOICES, question("x", "", "z", "A"), ": choice 2 of 3 is empty."),
    (CHOICES, question("x", "y", "", "C"), ": the label 'C' is none of the 2 choices, from A to B."),
    (CHOICES, question("x", "y", "z", -1), "the label '-1' is neither the letter of a choice nor its number, from 0."),
    (CHOICES, question("x", "y", "z", 1), "the label '1' is not written as those of training, with letters."),
    (TRANSLATIONS, {"x": "a", "label": " "}, "column 'label': the text is empty"),
    (TRANSLATIONS, {"x": 3, "label": "b"}, "3 is not text"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "record", "message"), BAD)
def test_a_bad_row_is_named_or_skipped(
    kind: tuple[str, list[Record]], record: Record, message: str, tmp_path: Path
) -> None:
    options, good = kind
    given: dict[str, Any] = {"label_column": "label"}
    for name, _, value in (option.strip().partition(" ") for option in options.split(";")):
        given[name] = value.split(",") if name == "text_columns" else value or None
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (*good, record)))
    with pytest.raises(AttendropError) as refused:
        load_files(train_file=file, **given)
    assert f"own.jsonl, line {len(good) + 1}" in str(refused.value) and message in str(refused.value)
    data = load_files(train_file=file, **given, skip_bad_rows=True)
    assert len(data.splits["train"]) == len(good) and len(data.skipped) == 1
