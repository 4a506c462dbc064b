"""Fine-tune with the Trainer that you know; the `regularizer=` line is what changes.

    python examples/trainer_script.py [MODEL] [OUTPUT_DIR]

The data are messages of customers: which team should answer?
"""

import sys
from pathlib import Path

import numpy as np
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, TrainingArguments

from attendrop import ADDrop, RegularizedTrainer
from attendrop.tasks.base import encode
from attendrop.tasks.registry import load_files

HERE = Path(__file__).parent
MODEL = sys.argv[1] if len(sys.argv) > 1 else "bert-base-uncased"
OUTPUT_DIR = sys.argv[2] if len(sys.argv) > 2 else "runs/trainer-script"

data = load_files(
    train_file=HERE / "tickets_train.csv",
    eval_file=HERE / "tickets_dev.csv",
    text_columns=["message"],
    label_column="team",
)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=len(data.task.label_names))

train, dev = (encode(data.splits[split], data.task, tokenizer, 64) for split in ("train", "dev"))


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


trainer = RegularizedTrainer(
    model=model,
    args=TrainingArguments(
        OUTPUT_DIR,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=5e-5,
        train_sampling_strategy="group_by_length",
        eval_strategy="epoch",
        logging_steps=4,
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
    ),
    train_dataset=train,
    eval_dataset=dev,
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=accuracy,
    regularizer=ADDrop(),
)
trainer.train()
trainer.save_model()

dropped = [entry for entry in trainer.state.log_history if "ad_drop/dropped" in entry]
print(f"AD-DROP was active in epochs {sorted({int(entry['epoch'] - 1e-6) for entry in dropped})}, counted from 0.")
print(f"Share of attention positions dropped there: {np.mean([entry['ad_drop/dropped'] for entry in dropped]):.3f}")
