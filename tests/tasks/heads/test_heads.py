"""What a kind of task means stands in its head, and nowhere else."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from helpers import task_examples
from transformers import BertConfig, MarianConfig, PreTrainedConfig

import attendrop
from attendrop.errors import AttendropError
from attendrop.tasks.heads import builtin
from attendrop.tasks.heads.base import Head, row_array
from attendrop.tasks.heads.builtin import LABEL_TYPES
from attendrop.tasks.heads.classification import Classification
from attendrop.tasks.heads.multi_label import MultiLabel
from attendrop.tasks.heads.multiple_choice import MultipleChoice
from attendrop.tasks.heads.registry import HEADS, get_head, head_of_model
from attendrop.tasks.heads.regression import Regression
from attendrop.tasks.heads.token_classification import TokenClassification
from attendrop.tasks.heads.translation import Translation, WrittenText

SOURCE = Path(attendrop.__file__).parent
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
# What a head decides: the model and its card, batches, whether labels are classes, and what a label type means.
OF_HEADS = re.compile(
    r"DataCollatorWithPadding|AutoModelFor\w+|text-classification|problem_type = |argmax\(axis=1\)"
    r"|(\bif|\bor|\band|\bnot|\belse) [\w.]*label_names\b(?!:? (is|==|!=))|label_names or\b|len\([\w.]*label_names\)"
    r'|label_type [!=]= "(?!auto)|label_type (not )?in \([^)]*"(?!auto)\w'
)


def test_generic_code_asks_the_head() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        if SOURCE / "tasks" / "heads" not in path.parents
        for line in path.read_text(encoding="utf-8").splitlines()
        if OF_HEADS.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.kind)
def test_every_head_is_complete(kind: type[Head]) -> None:
    head = EXAMPLES[kind.kind]
    assert get_head(head.kind, head.label_names) == head
    assert kind.label_type in LABEL_TYPES and builtin.HEADS[kind.label_type].endswith(f".{kind.__name__}")
    assert set(head.default_metrics) <= set(head.metrics) and head.metrics[head.default_metrics[0]].selects
    assert set(head.metric_aliases.values()) <= set(head.metrics)
    assert head.fitted_at is None or head.fitted_at[0] in head.metrics
    auto, config = getattr(transformers, head.auto_class), CONFIGS.get(kind.kind, BertConfig)()
    own = head.model_class(config)
    assert own is auto or issubclass(own, auto._model_mapping[type(config)])
    assert kind.least_inputs <= kind.most_inputs and set(kind.inputs_of(kind.most_inputs)) <= set(kind.inputs)
    compile(head.usage(2, 128), "card", "exec")


def test_every_method_is_tried_on_every_kind() -> None:
    """By ``tests/runs/test_every_method_of_every_task.py``."""
    missing = [kind.kind for kind in HEADS if kind.kind not in task_examples.EXAMPLES]
    assert not missing, f"add rows of {', '.join(missing)} to EXAMPLES in tests/helpers/task_examples.py"


@pytest.mark.parametrize("head", EXAMPLES.values(), ids=EXAMPLES)
def test_a_saved_model_tells_its_head(head: Head, tmp_path: Path) -> None:
    config = CONFIGS.get(head.kind, BertConfig)()
    head.configure(config)
    config.save_pretrained(tmp_path)
    saved = type(config).from_pretrained(tmp_path)
    assert head_of_model(saved) == head
    assert saved.problem_type == head.problem_type
    assert head.pretrained or saved.num_labels == len(head.label_names or head.output_names)


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
    assert head.metrics[head.default_metrics[0]].score(head.label_array(labels), outputs) == pytest.approx(best)


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
