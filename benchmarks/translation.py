"""Translation from Turkish to English with a small untrained Marian, for docs/tasks.md.

    python benchmarks/translation.py [--data FOLDER] [--steps 300] [--output runs/translation]

The model has a vocabulary of byte pairs of the training pairs, shared by both languages, and random weights. It is
trained on the 3,000 pairs of newstest2016 and scored on the 1,001 of newsdev2016, once for each method: one seed. So
the scores are low, and show that the methods run, not which is better.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from attendrop import cli

METHODS = {
    "plain": ["--method", "finetune"],
    "AD-DROP in the encoder": ["--method", "ad-drop", "--set", "layers=encoder", "--set", "cross_tuning=false"],
    "AttendOut": ["--method", "attendout"],
}


def save_marian(folder: Path, files: list[Path], *, vocabulary: int = 2000, size: int = 128, layers: int = 2) -> None:
    """Save a random Marian and the tokenizer of its files.

    Args:
        folder: Folder of the model.
        files: Text files of both languages.
        vocabulary: Number of tokens.
        size: Width of the model.
        layers: Layers of the encoder, and of the decoder.
    """
    tokens = Tokenizer(models.BPE(unk_token="<unk>"))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    tokens.train([str(file) for file in files], trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special))
    tokens.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=128,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    config = hf.MarianConfig(
        vocab_size=len(tokenizer), d_model=size, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=4 * size, decoder_ffn_dim=4 * size,
        max_position_embeddings=128, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None,
        scale_embedding=True, init_std=0.08,
    )  # fmt: skip
    torch.manual_seed(0)
    hf.MarianMTModel(config).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ATTENDROP_DATA", ".")) / "wmt16" / "tr-en")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", type=Path, default=Path("runs/translation"))
    parser.add_argument("--only", choices=METHODS)
    options = parser.parse_args()
    train, dev = ([options.data / f"{name}.{of}" for of in ("tr", "en")] for name in ("newstest2016", "newsdev2016"))
    save_marian(options.output / "marian", train)
    for name, method in METHODS.items() if options.only is None else [(options.only, METHODS[options.only])]:
        run = options.output / name.split()[0]
        before = time.process_time()
        cli.main([
            "train", "--train-file", ",".join(map(str, train)), "--eval-file", ",".join(map(str, dev)),
            "--model", str(options.output / "marian"), "--output-dir", str(run), "--overwrite",
            "--max-steps", str(options.steps), "--batch-size", "32", "--learning-rate", "2e-3", "--max-length", "64",
            "--task-set", "max_new_tokens=64", "--device", "cpu", *method,
        ])  # fmt: skip
        found = json.loads((run / "metrics.json").read_text())
        scores = ", ".join(f"{metric} {value:.4f}" for metric, value in found["all_scores"]["dev"].items())
        print(f"{name}: {scores}; {time.process_time() - before:.0f} s of CPU time")


if __name__ == "__main__":
    main()
