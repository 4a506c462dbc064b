"""How much time training saves by leaving out padding: ``python benchmarks/padding.py MODEL [ROUNDS]``, for NOTES.md.

Steps of 16 random training rows, each with and without padding, one after the other, on one thread: forward and
backward pass, clipping and AdamW. Needs ``ATTENDROP_DATA``.
"""

import os
import random
import statistics
import sys
import time
from contextlib import closing, nullcontext

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attendrop.attention.padding import leave_out_padding
from attendrop.tasks.base import encode
from attendrop.tasks.registry import get_task, load_task

TASKS = ("cola", "mrpc", "rte")


def main(path: str, rounds: int = 15) -> None:
    torch.set_num_threads(1)
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForSequenceClassification.from_pretrained(path)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-5, fused=True)
    for name in TASKS:
        data = load_task(name, data_dir=os.environ["ATTENDROP_DATA"], splits=("train",)).splits["train"]
        chance, ratios, shares = random.Random(0), list[float](), list[float]()
        rows = encode(data, get_task(name), tokenizer, 128)
        for number in range(rounds + 1):
            drawn = [rows[chance.randrange(len(rows))] for _ in range(16)]
            batch = tokenizer.pad([{"input_ids": row["input_ids"]} for row in drawn], return_tensors="pt")
            seconds = {}
            for left_out in (False, True) if number % 2 else (True, False):
                with closing(leave_out_padding(model)) if left_out else nullcontext():
                    start = time.perf_counter()
                    model(**batch, labels=torch.arange(16) % 2).loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    seconds[left_out] = time.perf_counter() - start
            if number:  # the first has the start of the optimizer
                ratios.append(seconds[False] / seconds[True])
                shares.append(batch["attention_mask"].float().mean().item())
        low, median, high = statistics.quantiles(ratios, n=4)
        print(f"{name}: {statistics.mean(shares):.2f} tokens; {median:.2f} times as fast ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
