"""Continue the pre-training of an encoder on texts of your own, without labels, before it is fine-tuned.

    python examples/pretrain_mlm.py --model bert-base-uncased --train-file corpus.txt --output-dir runs/pretrained
    attendrop train rows.csv --model runs/pretrained --method ad-drop

The masks are those of BERT (Devlin et al., 2019), by transformers' collator: 15 % of the tokens are to be predicted.
Without a file, the texts are the messages of customers in this folder.
"""

import argparse
import math
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling, TrainingArguments

from attendrop import ADDrop, AttendOut, RegularizedTrainer

HERE = Path(__file__).parent
METHODS = {
    # The papers mention this as future work. A tenth of the texts is set aside for the rewards: the losses of the two
    # networks on the same texts, with the same masks.
    "attendout": AttendOut,
    # Attributes the log-likelihood of the tokens that the model predicts at the masked positions.
    "ad-drop": ADDrop,
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="bert-base-uncased", help="an encoder whose tokenizer has a mask token")
parser.add_argument("--train-file", help="a text in each line")
parser.add_argument("--method", choices=METHODS, default="attendout")
parser.add_argument("--epochs", type=float, default=2)
parser.add_argument("--max-length", type=int, default=64)
parser.add_argument("--output-dir", default="runs/pretrained")
options = parser.parse_args()

if options.train_file is None:
    texts = Dataset.from_csv(str(HERE / "tickets_train.csv")).rename_column("message", "text")
else:
    texts = Dataset.from_text(options.train_file)
texts = texts.filter(lambda row: bool(row["text"].strip())).train_test_split(0.1, seed=0)

tokenizer = AutoTokenizer.from_pretrained(options.model)
limits = {"truncation": True, "max_length": min(options.max_length, tokenizer.model_max_length)}
model = AutoModelForMaskedLM.from_pretrained(options.model)  # warns if the model has no trained head


def encode(rows):
    return tokenizer(rows["text"], return_special_tokens_mask=True, **limits)


rows = texts.map(encode, batched=True, remove_columns=texts["train"].column_names)
collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=0)  # other masks in each epoch
trainer = RegularizedTrainer(
    model=model,
    args=TrainingArguments(
        options.output_dir,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        learning_rate=1e-4,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=rows["train"],
    eval_dataset=rows["test"],
    data_collator=collator,
    regularizer=METHODS[options.method](),
)
trainer.train()
print(f"Perplexity of masked tokens in other texts: {math.exp(trainer.evaluate()['eval_loss']):.1f}")

trainer.save_model()
tokenizer.save_pretrained(options.output_dir)

text = texts["test"][0]["text"].split()
text[len(text) // 2] = tokenizer.mask_token
inputs = tokenizer(" ".join(text), return_tensors="pt", **limits).to(model.device)
with torch.no_grad():
    best = trainer.model.eval()(**inputs).logits.argmax(-1)[inputs["input_ids"] == tokenizer.mask_token_id]
print(f"{' '.join(text)!r}: {tokenizer.convert_ids_to_tokens(best.tolist())}")
