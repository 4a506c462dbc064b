"""Contrastive stage of SetFit (Tunstall et al., 2022): an encoder learns which texts are of the same class."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.attention.isolation import forked_rng
from attendrop.devices import compute_device
from attendrop.errors import AttendropError
from attendrop.runs.callbacks import silence
from attendrop.runs.config import RunConfig
from attendrop.runs.model_loading import without_report
from attendrop.runs.small_data_recipe import contrastive_steps
from attendrop.tasks.heads.model_classes import is_encoder

# Pairs in a step, as its authors have it.
BATCH_SIZE = 16
logger = logging.getLogger(__name__)


def tune_contrastively(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[tuple[str, ...]],
    labels: Sequence[int],
    config: RunConfig,
) -> None:
    """Train an encoder on pairs of texts, with the package setfit and its authors' settings.

    Pairs of the same class and of different classes come equally often (``sampling_strategy="oversampling"``); the
    cosine of the means of their tokens is to be 1 or 0; batches of 16 pairs, learning rate 2e-5. No random number is
    taken from the global generators.

    Args:
        model: The model, of which the encoder is changed in place.
        tokenizer: Its tokenizer.
        texts: The text of each row, as a tuple of one.
        labels: The class of each row.
        config: Options of the run: seed, length, device and precision. The number of steps is that of the recipe,
            see :func:`attendrop.runs.small_data_recipe.contrastive_steps`.

    Raises:
        AttendropError: The package is missing, the model is no encoder, rows have two texts, or there are no two rows
            of a class.
    """
    if not is_encoder(model.config):
        raise AttendropError(f"SetFit is for encoders, and {type(model).__name__} is none.")
    if any(len(parts) != 1 for parts in texts):
        raise AttendropError("SetFit is for single texts, and these rows have two.")
    if len(set(labels)) == len(labels) or len(set(labels)) < 2:
        raise AttendropError("SetFit needs two classes or more, and two rows of one of them.")
    try:
        import setfit
        import setfit.logging
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError:
        raise AttendropError("SetFit needs packages of its own; run `pip install 'attendrop[setfit]'`.") from None
    steps = contrastive_steps(len(labels))
    encoder: Any = model.base_model
    setfit.logging.set_verbosity_warning()
    with tempfile.TemporaryDirectory() as folder, forked_rng(model):
        encoder.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with without_report():
            words = Transformer(folder, max_seq_length=config.max_length)
        pooling = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
        body = SentenceTransformer(modules=[words, pooling], device=str(compute_device(config.device)))
        arguments = setfit.TrainingArguments(
            output_dir=str(Path(folder) / "run"),
            batch_size=BATCH_SIZE,
            max_steps=steps,
            seed=config.seed,
            max_length=config.max_length,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            show_progress_bar=False,
        )
        trainer = setfit.Trainer(model=setfit.SetFitModel(model_body=body), args=arguments)
        silence(trainer.st_trainer)
        trainer.st_trainer.args.dataloader_pin_memory = body.device.type == "cuda"
        with torch.autocast(body.device.type, torch.bfloat16, enabled=config.bf16):
            trainer.train_embeddings([text for (text,) in texts], list(labels))
        tuned = words.auto_model.state_dict()  # it may have a pooler that the encoder lacks
    encoder.load_state_dict({name: tuned[name].to(encoder.device) for name in encoder.state_dict()})
    logger.info("SetFit's contrastive stage: %d steps of %d pairs.", steps, BATCH_SIZE)
