"""What a kind of task means stands in its head, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import BertConfig

import attendrop
from attendrop.errors import AttendropError
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.classification import Classification
from attendrop.tasks.heads.multi_label import MultiLabel
from attendrop.tasks.heads.multiple_choice import MultipleChoice
from attendrop.tasks.heads.registry import HEADS, LABEL_TYPES, get_head, head_of_model
from attendrop.tasks.heads.regression import Regression
from attendrop.tasks.heads.token_classification import TokenClassification

SOURCE = Path(attendrop.__file__).parent
YES_NO = Classification(("no", "yes"))
EXAMPLES = {
    "classification": YES_NO,
    "multi-label-classification": MultiLabel(("art", "sport")),
    "regression": Regression(),
    "token-classification": TokenClassification(("O", "B-PER")),
    "multiple-choice": MultipleChoice(("A", "B")),
}
# What a head decides: the model and its card, batches, and whether labels are classes.
OF_HEADS = re.compile(
    r"DataCollatorWithPadding|AutoModelFor\w+|text-classification|problem_type = |argmax\(axis=1\)"
    r"|(\bif|\bor|\band|\bnot|\belse) [\w.]*label_names\b(?!:? (is|==|!=))|label_names or\b|len\([\w.]*label_names\)"
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
    assert kind.label_type in LABEL_TYPES
    assert set(head.default_metrics) <= set(head.metrics) and head.metrics[head.default_metrics[0]].selects
    assert set(head.metric_aliases.values()) <= set(head.metrics)
    auto = getattr(transformers, head.auto_class)
    own = head.model_class(BertConfig())
    assert own is auto or issubclass(own, auto._model_mapping[BertConfig])
    assert kind.least_inputs <= kind.most_inputs and set(kind.inputs_of(kind.most_inputs)) <= set(kind.inputs)
    compile(head.usage(2, 128), "card", "exec")


@pytest.mark.parametrize("head", EXAMPLES.values(), ids=EXAMPLES)
def test_a_saved_model_tells_its_head(head: Head, tmp_path: Path) -> None:
    config = BertConfig()
    head.configure(config)
    config.save_pretrained(tmp_path)
    saved = BertConfig.from_pretrained(tmp_path)
    assert head_of_model(saved) == head
    assert saved.num_labels == len(head.label_names or head.output_names) and saved.problem_type == head.problem_type


# Labels as they are written in files, and the outputs of a model that predicts them.
PERFECT: dict[str, tuple[list[Any], list[Any]]] = {
    "classification": (["yes", "no", "yes"], [[0, 1], [1, 0], [0, 1]]),
    "multi-label-classification": ([["art"], [], ["art", "sport"]], [[1, -1], [-1, -1], [1, 1]]),
    "regression": (["1.5", "-2", "0"], [[1.5], [-2], [0]]),
    "token-classification": ([["B-PER", "O"], ["O"]], [np.eye(2)[[1, 0]], np.eye(2)[[0]]]),
    "multiple-choice": (["B", "A", "C"], [np.eye(2)[1], np.eye(2)[0], np.eye(3)[2]]),
}


@pytest.mark.parametrize("head", EXAMPLES.values(), ids=EXAMPLES)
def test_labels_survive_a_perfect_model(head: Head) -> None:
    written, perfect = PERFECT[head.kind]
    labels = head.read_labels(written)
    assert not any(head.value_problem(value) or head.label_problem(value) for value in written)
    outputs = np.empty(len(perfect), dtype=object)
    outputs[:] = perfect
    outputs = outputs if len({len(row) for row in perfect}) > 1 else np.array(perfect, dtype=float)
    assert head.decode(head.checked(outputs)) == labels
    rows = head.prediction_rows(outputs, probabilities=False)
    assert [next(iter(row)) for row in rows] == [head.answer_column] * len(written)
    assert str(rows[0][head.answer_column]) == str(written[0])
    for name in head.default_metrics[:1]:
        assert head.metrics[name].score(head.label_array(labels), outputs) == pytest.approx(1)


def test_a_kind_that_is_not_known() -> None:
    with pytest.raises(AttendropError, match="no kind of task 'regresion'; did you mean 'regression'"):
        get_head("regresion")
