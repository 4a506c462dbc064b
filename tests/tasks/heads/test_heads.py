"""Facts of each kind of task, and that its labels survive files, models and predictions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import BertConfig, MarianConfig, PreTrainedConfig

from attendrop.errors import AttendropError
from attendrop.runs.model_card import usage_of
from attendrop.tasks.heads.base import Head, row_array
from attendrop.tasks.heads.builtin import LABEL_TYPES
from attendrop.tasks.heads.classification import Classification, MultiLabel, Regression
from attendrop.tasks.heads.multiple_choice import MultipleChoice
from attendrop.tasks.heads.registry import HEADS, get_head, head_of_model
from attendrop.tasks.heads.token_classification import TokenClassification
from attendrop.tasks.heads.translation import Translation, WrittenText

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


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.kind)
def test_every_head_is_complete(kind: type[Head]) -> None:
    head = EXAMPLES[kind.kind]
    assert get_head(head.kind, head.label_names) == head
    assert kind.label_type in LABEL_TYPES
    assert set(head.default_metrics) <= set(head.metrics) and head.metrics[head.default_metrics[0]].selects
    assert set(head.metric_aliases.values()) <= set(head.metrics)
    assert head.fitted_at is None or head.fitted_at[0] in head.metrics
    auto, config = getattr(transformers, head.auto_class), CONFIGS.get(kind.kind, BertConfig)()
    own = head.model_class(config)
    assert own is auto or issubclass(own, auto._model_mapping[type(config)])
    assert kind.least_inputs <= kind.most_inputs and set(kind.inputs_of(kind.most_inputs)) <= set(kind.inputs)
    compile(usage_of(head, 2, 128), "card", "exec")


@pytest.mark.parametrize("head", EXAMPLES.values(), ids=EXAMPLES)
def test_a_saved_model_tells_its_head(head: Head, tmp_path: Path) -> None:
    config = CONFIGS.get(head.kind, BertConfig)()
    head.configure(config)
    config.save_pretrained(tmp_path)
    saved = type(config).from_pretrained(tmp_path)
    assert head_of_model(saved) == head
    assert saved.problem_type == head.problem_type
    assert head.generates or saved.num_labels == len(head.label_names or head.output_names)


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


def outputs_of(head: Head) -> np.ndarray[Any, Any]:
    perfect = PERFECT[head.kind][1]
    return row_array(perfect) if head.kind in OBJECTS else np.array(perfect, dtype=float)


@pytest.mark.parametrize("head", EXAMPLES.values(), ids=EXAMPLES)
def test_labels_survive_a_perfect_model(head: Head) -> None:
    written, _ = PERFECT[head.kind]
    labels = head.read_labels(written)
    assert not any(head.value_problem(value) or head.label_problem(value) for value in written)
    outputs = outputs_of(head)
    assert head.decode(head.checked(outputs)) == labels
    rows = head.prediction_rows(outputs, probabilities=False)
    assert [next(iter(row)) for row in rows] == [head.answer_column] * len(written)
    assert str(rows[0][head.answer_column]) in str(written[0])
    best = 0 if head.default_metrics[0].startswith("neg_") else 1
    metric, references = head.metrics[head.default_metrics[0]], head.references({"labels": labels})
    assert metric.score(references, outputs) == pytest.approx(best)


DIVERGED: dict[str, Any] = {
    "token-classification": np.array([[np.nan, 0]]),
    "multiple-choice": np.array([np.nan, 0.0]),
    "translation": WrittenText("a", math.nan, 1),
}


@pytest.mark.parametrize("head", EXAMPLES.values(), ids=EXAMPLES)
def test_outputs_of_a_diverged_model_are_refused(head: Head) -> None:
    perfect = PERFECT[head.kind][1]
    outputs = outputs_of(head)
    outputs[0] = DIVERGED.get(head.kind, np.nan)
    with pytest.raises(AttendropError, match=f"NaN or infinite for 1 of {len(perfect)} rows: training diverged"):
        head.checked(outputs)


def test_translators_are_recognized_but_shown_as_classifiers() -> None:
    config = MarianConfig(architectures=["MarianMTModel"])
    assert head_of_model(config) == Translation()
    assert head_of_model(config, command="attend").kind == "classification"
