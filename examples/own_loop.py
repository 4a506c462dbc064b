"""Regularise a training loop of your own.

python examples/own_loop.py [MODEL]
"""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from attendrop import ADDrop, regularize
from attendrop.tasks.base import encode
from attendrop.tasks.registry import load_files

HERE = Path(__file__).parent
MODEL = sys.argv[1] if len(sys.argv) > 1 else "bert-base-uncased"

torch.manual_seed(0)
data = load_files(train_file=HERE / "tickets_train.csv", text_columns=["message"], label_column="team")
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=len(data.task.label_names))
rows = encode(data.splits["train"], data.task, tokenizer, 64)
rows = rows.remove_columns([name for name in rows.column_names if name not in (*tokenizer.model_input_names, "labels")])
loader = DataLoader(rows, batch_size=16, shuffle=True, collate_fn=DataCollatorWithPadding(tokenizer))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

model.train()
with regularize(model, ADDrop()) as reg:
    for epoch in range(2):
        for batch in loader:
            loss = reg.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            reg.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {reg.logs()}")
