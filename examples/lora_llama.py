"""Fine-tune a Llama with a LoRA adapter and AD-DROP, and load the adapter with PEFT alone.

    python examples/lora_llama.py [MODEL] [OUTPUT_DIR]

The data are messages of customers: which team should answer?
"""

import sys
from pathlib import Path

import numpy as np
import torch
from peft import AutoPeftModelForSequenceClassification, LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, TrainingArguments

from attendrop import ADDrop, RegularizedTrainer
from attendrop.tasks.base import encode
from attendrop.tasks.registry import load_files

HERE = Path(__file__).parent
MODEL = sys.argv[1] if len(sys.argv) > 1 else "meta-llama/Llama-3.2-1B"
OUTPUT_DIR = sys.argv[2] if len(sys.argv) > 2 else "runs/lora-llama"

data = load_files(train_file=HERE / "tickets_train.csv", text_columns=["message"], label_column="team")
classes = len(data.task.label_names)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
model = AutoModelForSequenceClassification.from_pretrained(
    MODEL, num_labels=classes, pad_token_id=tokenizer.pad_token_id
)
lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear")
model = get_peft_model(model, lora)
model.print_trainable_parameters()

train = encode(data.splits["train"], data.task, tokenizer, 64)
trainer = RegularizedTrainer(
    model=model,
    args=TrainingArguments(
        OUTPUT_DIR,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=2e-4,
        logging_steps=4,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=train,
    data_collator=DataCollatorWithPadding(tokenizer),
    regularizer=ADDrop(),
)
trainer.train()
trainer.save_model()

dropped = [entry["ad_drop/dropped"] for entry in trainer.state.log_history if "ad_drop/dropped" in entry]
print(f"Share of attention positions dropped by AD-DROP: {np.mean(dropped):.3f}")

loaded = AutoPeftModelForSequenceClassification.from_pretrained(
    OUTPUT_DIR, num_labels=classes, pad_token_id=tokenizer.pad_token_id
)
batch = tokenizer("I was charged twice.", return_tensors="pt")
with torch.no_grad():
    same = torch.allclose(loaded.eval()(**batch).logits, model.cpu().eval()(**batch).logits, atol=1e-5)
print(f"PEFT alone loads the adapter from {OUTPUT_DIR}, and predicts the same: {same}")
