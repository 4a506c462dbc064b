"""Scores compare each row's output with the same row's label, in whatever order the rows are evaluated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from helpers import tiny
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, TrainingArguments

from attendrop.runs.run_trainer import RunTrainer
from attendrop.tasks.heads.classification import Classification


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
        head=Classification(("no", "yes")),
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
