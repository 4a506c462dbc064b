"""Fine-tune a causal language model on prompts with completions, or on chats, by TRL's SFTTrainer.

    python examples/sft.py --model meta-llama/Llama-3.2-1B --lora --output-dir runs/completions
    python examples/sft.py --model Qwen/Qwen2.5-0.5B-Instruct --train-file chats.jsonl --output-dir runs/chats

A file has JSON lines as SFTTrainer reads them, `{"prompt": "Capital of France?", "completion": " Paris"}`, or chats,
`{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}`. The loss is on the
completions, or all messages of a chat, unless `assistant_only_loss=True`. Without a file, the prompts are messages of
customers, and the completions the teams that should answer. It needs TRL, and for --lora PEFT: `pip install trl peft`.

The loss of SFTTrainer builds no logits, so methods that compare predictions, such as R-Drop, are refused. AD-DROP
recorded in the training pass needs no predictions, and no pass of its own.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from attendrop import ADDrop, regularized

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="meta-llama/Llama-3.2-1B")
parser.add_argument("--train-file", help="JSON lines")
parser.add_argument("--lora", action="store_true", help="train an adapter alone")
parser.add_argument("--epochs", type=float, default=2)
parser.add_argument("--max-length", type=int, default=256)
parser.add_argument("--output-dir", default="runs/sft")
options = parser.parse_args()

if options.train_file is None:
    tickets = Dataset.from_csv(str(Path(__file__).parent / "tickets_train.csv"))
    rows = tickets.map(
        lambda row: {"prompt": f"{row['message']}\nTeam:", "completion": f" {row['team']}"},
        remove_columns=tickets.column_names,
    )
else:
    rows = Dataset.from_json(options.train_file)

adapter = None
if options.lora:
    from peft import LoraConfig

    adapter = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")

trainer = regularized(SFTTrainer)(
    model=options.model,
    args=SFTConfig(
        options.output_dir,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        max_length=options.max_length,
        learning_rate=2e-4 if options.lora else 2e-5,
        completion_only_loss="prompt" in rows.column_names,
        logging_steps=4,
        save_strategy="no",
        report_to="none",
        bf16=torch.cuda.is_available(),
    ),
    train_dataset=rows,
    peft_config=adapter,
    regularizer=ADDrop(attribution="recorded", cross_tuning=False),
)
trainer.train()
trainer.save_model()

dropped = [entry["ad_drop/dropped"] for entry in trainer.state.log_history if "ad_drop/dropped" in entry]
print(f"Share of attention positions dropped by AD-DROP: {np.mean(dropped):.3f}")

tokenizer = AutoTokenizer.from_pretrained(options.output_dir)
row = rows[0]
if "prompt" in row:
    inputs = tokenizer(row["prompt"], return_tensors="pt")
else:
    inputs = tokenizer.apply_chat_template(
        row["messages"][:-1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
written = trainer.model.eval().generate(**inputs.to(trainer.model.device), max_new_tokens=16, do_sample=False)
print(f"It completes the first prompt by {tokenizer.decode(written[0, inputs['input_ids'].shape[1] :])!r}.")
