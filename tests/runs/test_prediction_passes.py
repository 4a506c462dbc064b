"""Passes over rows: outputs in their order, whatever the order of evaluation, and vectors without padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers import tiny, zoo
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, TrainingArguments

from attendrop.runs.prediction_passes import frozen_features, predict_outputs
from attendrop.runs.run_trainer import RunTrainer
from attendrop.tasks.base import encode_columns
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.types.classification import Classification

YES_NO = Classification(("no", "yes"))
FIRST = [tiny.sentence(number) for number in range(12)]
SECOND = [tiny.sentence(number + 3) for number in range(12)]


@pytest.mark.parametrize(("name", "texts"), [("bert", (FIRST,)), ("bert", (FIRST, SECOND)), ("bart-class", (FIRST,))])
def test_features_are_the_mean_of_the_encoder_s_tokens(name: str, texts: tuple[list[str], ...], tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path))
    model = zoo.build(name, dropout=0.5).train()
    columns = dict(zip(("text", "text_pair"), texts, strict=False))
    encoded = encode_columns(columns, files_task(list(columns), YES_NO), tokenizer, 24)
    features = frozen_features(model, tokenizer, YES_NO, encoded, 5, "cpu")
    encoder = model.get_encoder() if name == "bart-class" else model.base_model
    for row, vector in zip(zip(*texts, strict=True), features, strict=True):
        read = tokenizer(*row, truncation=True, max_length=24, return_tensors="pt")
        if name == "bart-class":
            del read["token_type_ids"]
        with torch.no_grad():
            mean = encoder(**read).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-5)


def test_a_row_without_tokens_has_no_direction(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path))
    encoded = {"input_ids": [[5, 6], []], "attention_mask": [[1, 1], []], "length": [2, 0]}
    features = frozen_features(zoo.build("bert"), tokenizer, YES_NO, encoded, 5, "cpu")
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), [1, 0], atol=1e-6)


def test_outputs_do_not_depend_on_the_side_on_which_a_tokenizer_pads(tmp_path: Path) -> None:
    folder = tiny.save_tiny_gpt2(tmp_path)
    AutoTokenizer.from_pretrained(folder, padding_side="left").save_pretrained(folder)
    tokenizer, model = YES_NO.load_tokenizer(str(folder)), AutoModelForSequenceClassification.from_pretrained(folder)
    encoded = encode_columns({"text": FIRST}, files_task(["text"], YES_NO), tokenizer, 24)
    alone, together = (predict_outputs(model, tokenizer, YES_NO, encoded, size, "cpu") for size in (1, 12))
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_outputs_come_in_the_order_of_the_rows(shared: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shared / "model")
    model = AutoModelForSequenceClassification.from_pretrained(shared / "model", num_labels=2)
    texts = [tiny.sentence(number) for number in range(20)]
    rows = Dataset.from_dict({**tokenizer(texts), "labels": list(range(20))})
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    trainer = RunTrainer(
        model,
        TrainingArguments(str(tmp_path), per_device_eval_batch_size=3, report_to="none", use_cpu=True),
        eval_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        task_type=Classification(("no", "yes")),
        compute_loss_func=lambda outputs, labels, num_items_in_batch: outputs.logits.sum(),
        compute_metrics=lambda found: seen.append((found.predictions, found.label_ids)) or {},  # type: ignore[func-returns-value]
    )
    with torch.no_grad():
        expected = torch.cat([model.eval()(**tokenizer(text, return_tensors="pt")).logits for text in texts]).numpy()
    trainer.evaluate()
    found = trainer.predict(rows)
    assert len({len(ids) for ids in rows["input_ids"]}) > 3
    assert len(seen) == 2
    for predictions, labels in [*seen, (found.predictions, found.label_ids)]:
        assert np.abs(predictions - expected).max() < 1e-5
        assert labels.tolist() == list(range(20))
