"""Completions of prompts by a small untrained Llama, for docs/tasks.md.

    python benchmarks/completions.py [--data FOLDER] [--steps 200] [--output runs/completions]

The prompts are 1,000 messages of customers of a bank (Banking77), the completions their topics in words. The model has
a vocabulary of byte pairs of these rows and random weights. Its perplexity on 500 rows of the test set, of one seed,
shows that the methods run, not which is better.
"""

import argparse
import csv
import json
import os
import random
import time
from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from attendrop import cli

METHODS = {
    "plain": ["--method", "finetune"],
    "AD-DROP": ["--method", "ad-drop", "--set", "cross_tuning=false"],
    "AttendOut": ["--method", "attendout"],
}


def save_llama(folder: Path, texts: list[str], *, vocabulary: int = 1000, size: int = 128, layers: int = 2) -> None:
    """Save a random Llama and a tokenizer trained on texts."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, special_tokens=["<pad>", "</s>"])
    tokens.train_from_iterator(texts, trainer)
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=size, intermediate_size=4 * size, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=None,
        eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    hf.LlamaForCausalLM(config).save_pretrained(folder)


def write_rows(data: Path, folder: Path) -> list[str]:
    """Write samples of the training and the test rows as prompts and completions; returns the texts to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for name, file, count in (("train", "train.csv", 1000), ("dev", "test.csv", 500)):
        with (data / file).open(encoding="utf-8", newline="") as lines:
            rows = random.Random(0).sample(list(csv.DictReader(lines)), count)
        pairs = [{"prompt": f"{r['text']} Topic:", "completion": " " + r["category"].replace("_", " ")} for r in rows]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        texts = texts or [pair["prompt"] + pair["completion"] for pair in pairs]
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ATTENDROP_DATA", ".")) / "banking77")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("runs/completions"))
    options = parser.parse_args()
    save_llama(options.output / "llama", write_rows(options.data, options.output))
    for name, method in METHODS.items():
        run = options.output / name
        before = time.process_time()
        cli.main([
            "train", "--train-file", str(options.output / "train.jsonl"), "--eval-file",
            str(options.output / "dev.jsonl"), "--text-columns", "prompt", "--label-column", "completion",
            "--label-type", "completion", "--model", str(options.output / "llama"), "--output-dir", str(run),
            "--overwrite", "--max-steps", str(options.steps), "--batch-size", "16", "--learning-rate", "2e-3",
            "--max-length", "96", "--device", "cpu", *method,
        ])  # fmt: skip
        scores = json.loads((run / "metrics.json").read_text())["all_scores"]["dev"]
        print(f"{name}: perplexity {scores['perplexity']:.2f}; {time.process_time() - before:.0f} s of CPU time")


if __name__ == "__main__":
    main()
