"""Baselines without fine-tuning, on the rows of a run and scored like a run."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.attention.hooks import forked_rng
from attendrop.errors import AttendropError, check_choice
from attendrop.pruning.pruned_model import without_report
from attendrop.runs import run_folder
from attendrop.runs.config import AS_TRAINED, RunConfig
from attendrop.runs.data import DECIDED, ResolvedRun, cached, digest_of_model, fingerprint, resolve_run, steps
from attendrop.runs.inference import BaselineModel, fit_tf_idf, frozen_features, tf_idf
from attendrop.runs.model_card import CARD, baseline_card
from attendrop.runs.model_loading import load_config, load_for, load_tokenizer
from attendrop.runs.run_trainer import scored_run, set_scores, silence, training_rows
from attendrop.studies import BASELINES, FROZEN, MAJORITY, SETFIT, TFIDF
from attendrop.support.files import write_text
from attendrop.support.models import compute_device
from attendrop.tasks.base import Task, encode
from attendrop.tasks.class_names import unlabelled_decisions
from attendrop.tasks.metrics import PREDICTIONS, compute_scores, write_predictions
from attendrop.tasks.splits import GROUP, given_groups
from attendrop.tasks.tokenization import columns_of, document_means, of_documents, save_tokenizer
from attendrop.tasks.types.base import Array
from attendrop.tasks.types.linear_models import self_trained
from attendrop.tasks.types.model_classes import FIRST_TOKEN, is_encoder

logger = logging.getLogger(__name__)


def run_baseline(config: RunConfig, name: str, *, keep_model: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Score a baseline, write ``metrics.json`` in ``config.output_dir``, and return it; that of a finished run, too.

    It is fitted on the training and the selection rows of a fine-tuning run with this configuration, since it has no
    epoch to choose. Its selection score is that of a fit on the training rows only.

    - ``majority``: the constant answer, the most common class or the mean.
    - ``tfidf``: TF-IDF of words and pairs of words, and of 2 to 5 characters within words, of each text, with a linear
      model.
    - ``frozen``: the mean of the tokens of the model as it is, two texts read as a pair, with a linear model; see
      :func:`attendrop.runs.inference.frozen_features`.
    - ``setfit``: the same, after the contrastive stage of SetFit (Tunstall et al., 2022) on the training rows, by its
      package and with its authors' settings; it reads the same number of texts as fine-tuning by the recipe. For single
      texts only.

    The linear model is the head's, a logistic or a ridge regression with a strength from cross-validation
    (:mod:`attendrop.tasks.types.linear_models`).

    Args:
        config: Options of the run; those of its method and of the optimization are not used.
        name: Name of the baseline.
        keep_model: Also write the model, which `attendrop predict` and `evaluate` read
            (:mod:`attendrop.runs.inference`).
        overwrite: Replace the run in the folder when this one is complete.

    Raises:
        AttendropError: The baseline is unknown or not defined for this kind of task, the data are invalid, or the
            folder holds something else.
    """
    check_choice("baseline", name, BASELINES)
    start = time.monotonic()
    config = replace(config, method="finetune", options={})
    with run_folder.run_folder(config, resume=not overwrite, overwrite=overwrite, baseline=name) as place:
        if not overwrite and (finished := run_folder.read_metrics(place)) is not None:
            run_folder.put_in_place(place, Path(config.output_dir))
            return finished
        run = resolve_run(config)
        if name not in (found := defined_for(run.task)):
            what = f"{run.task.type.kind} tasks such as {run.task.name}"
            defined = f"choose from {', '.join(found)}" if found else "leave it out"
            raise AttendropError(f"Baseline {name!r} is not defined for {what}; {defined}.")
        rows = fingerprint(run.parts)
        if overwrite:
            run_folder.set_aside(place)
        run_folder.check_unchanged(place, config, rows)
        decided = {each: getattr(run.config, each) for each in DECIDED}
        run_folder.begin_run(place, config, rows, baseline=name, decided=decided)
        # Fit and score it.
        if name == MAJORITY:  # whose answer says what the data have most of
            run = replace(run, parts=replace(run.parts.real, unlabelled=None, unlabelled_numbers={}))
        parts, baseline, selection_score = run.parts, _Baseline(run, name), None
        own, real = parts.train, parts.real.train
        if parts.selection is not None and run.config.protocol != "paper":
            own, real = (concatenate_datasets([rows, parts.selection]) for rows in (own, real))
        before = time.monotonic()
        model, predict, decision = baseline.fit(own)
        seconds = time.monotonic() - before
        scores = {
            part: set_scores(run, part, predict(rows), baseline.references(rows), train=real)
            for part, rows in parts.report.items()
        }
        if parts.selection is not None:
            outputs = baseline.fit(parts.train)[1](parts.selection)
            selection_score = compute_scores(run.task, outputs, baseline.references(parts.selection))[run.task.metric]
        metrics = scored_run(run, name, {}, scores, training_rows(own, parts), selection_score=selection_score)
        if "unlabelled" in metrics["data"]:
            metrics["data"]["unlabelled"] |= decision
            logger.info("%s", *unlabelled_decisions([(name, decision)]))
        metrics["train_seconds"] = round(seconds, 3)
        metrics["total_seconds"] = round(time.monotonic() - start, 3)
        if keep_model:
            own = load_config(run.config.model)
            run.task.type.configure(own)
            setattr(own, AS_TRAINED, run.given.read_by(run.task.text_columns))
            model.save(place, own)
            write_text(place / CARD, baseline_card(metrics, run.task.type))
        if "dev" in scores and scores["dev"]["predictions"] is not None:
            write_predictions(place / PREDICTIONS, scores["dev"]["predictions"])
        run_folder.finish_run(place, Path(config.output_dir), metrics)
    return metrics


def defined_for(task: Task) -> tuple[str, ...]:
    """Return the names of the baselines that are defined for a task."""
    return tuple(name for name in task.type.baselines if name != SETFIT or len(task.text_columns) == 1)


class _Baseline:
    """One baseline on the data of a run, fitted on different rows."""

    def __init__(self, run: ResolvedRun, name: str) -> None:
        self.run, self.name, self.task_type = run, name, run.task.type
        self.tokenizer = load_tokenizer(run.config.model, run.task)
        self._columns = cache(lambda rows: columns_of(encode(rows, run.task, self.tokenizer, run.config.max_length)))
        # Loading the frozen encoder is not part of a fit, whose time is measured.
        self._frozen = self.load_encoder() if name == FROZEN else None

    def references(self, rows: Dataset) -> Array:
        return self.task_type.references(self._columns(rows))

    def fit(self, train: Dataset) -> tuple[BaselineModel, Callable[[Dataset], Array], Mapping[str, Any]]:
        """Fit the baseline: the linear model of the head, or a constant where all rows are of one class.

        Returns it, its outputs of rows, and whether unlabelled texts are used, see :func:`self_trained`.
        """
        config, task_type, unlabelled = self.run.config, self.task_type, self.run.parts.unlabelled
        found, parts = None, dict[str, Any]()
        if self.name == TFIDF:
            vectorizers = fit_tf_idf(task_type.texts(train))
            parts = {"tokenizer": self.tokenizer, "vectorizers": vectorizers}

            def features(rows: Dataset, *, share: bool = False) -> Array:
                return tf_idf(vectorizers, task_type.texts(rows))

        elif self.name in (FROZEN, SETFIT):
            encoder, tokenizer, features = self._frozen or self.load_encoder()
            parts = {"encoder": encoder, "tokenizer": tokenizer}
            if self.name == SETFIT:
                tune_on_pairs(encoder, tokenizer, task_type.texts(train), task_type.strata_of(train), config)
        columns, decision = self._columns(train), {"used": False}
        if parts:
            own, targets = features(train), list(of_documents(columns["labels"][:], columns))
            how: dict[str, Any] = {"balanced": config.class_weights is not None}
            how["groups"] = given_groups(train) if GROUP in train.column_names else None
            found = task_type.fit_linear(own, targets, **how)
        if found is None:
            references = self.references(train)
            constant = task_type.constant_answer(references, references[:1])
            if constant is None:
                raise AttendropError(
                    f"Tasks of the kind {self.run.task.type.kind} have no constant answer, which a baseline gives that "
                    "cannot be fitted; leave it out."
                )
            answer = np.atleast_1d(np.asarray(constant[1][0], dtype=float))  # of the first row
            answer = answer[:1] if answer.ndim == 2 else answer  # which may have one for each word
            model = BaselineModel(self.name, task_type, self.tokenizer, answer)
            return model, lambda rows: model.constant(columns_of(rows)), decision
        if unlabelled is not None:
            names = [index < 0 for index in train["index"][:]]
            found, decision = self_trained(found, own, targets, features(unlabelled), never_held_out=names, **how)
        fitted = BaselineModel(self.name, task_type, **parts, bias=found.bias, weight=found.weight)
        # The rows that are only scored are the same for all seeds. What a fit takes is measured, so it shares nothing.
        return fitted, lambda rows: fitted.linear(features(rows, share=True)), decision

    def load_encoder(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Callable[..., Array]]:
        """Return an encoder, its tokenizer, and the function that computes its features of rows, of each text once."""
        config, task = self.run.config, self.run.task
        size, device = config.eval_batch_size, str(compute_device(config.device))
        model, tokenizer = load_for(config.model, task)[:2]
        known: dict[tuple[str, ...], Array] = {}

        def features(rows: Dataset, *, share: bool = False) -> Array:
            texts = task.type.texts(rows)
            if not known.keys() >= set(texts):
                first = {text: row for row, text in reversed(list(enumerate(texts)))}
                encoded = encode(rows.select(first.values()), task, tokenizer, config.max_length)[:]

                def compute() -> Array:
                    found = frozen_features(model, tokenizer, task.type, encoded, size, config.device)
                    return document_means(found, encoded)

                key = lambda: [digest_of_model(model.base_model), encoded, size, device]  # noqa: E731
                kind = "frozen features"
                found = cached(key, compute, lambda vectors: vectors.nbytes, kind=kind) if share else compute()
                known.update(zip(first, found, strict=True))
            return np.stack([known[text] for text in texts])

        return model, tokenizer, features


def tune_on_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[tuple[str, ...]],
    labels: Sequence[int],
    config: RunConfig,
) -> None:
    """Train an encoder on pairs of texts, with the package setfit and its authors' settings.

    Pairs of the same class and of different classes come equally often (``sampling_strategy="oversampling"``); the
    cosine of the means of their tokens is trained towards 1 or 0; batches of 16 pairs, learning rate 2e-5. The global
    random generators are not used.

    Raises:
        AttendropError: The package is missing, the model is not an encoder, rows have two texts, or there are no two
            rows of a class.
    """
    if not is_encoder(model.config):
        raise AttendropError(f"SetFit is for encoders, which {type(model).__name__} is not.")
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
    pairs = 16  # in a step, as in its authors' settings
    max_steps = steps(len(labels), pairs) // 2  # as many texts as fine-tuning reads
    encoder: Any = model.base_model
    setfit.logging.set_verbosity_warning()
    with tempfile.TemporaryDirectory() as folder, forked_rng(model):
        encoder.save_pretrained(folder)
        save_tokenizer(tokenizer, Path(folder))
        with without_report():
            words = Transformer(folder, max_seq_length=config.max_length)
        mode = "cls" if getattr(encoder.config, FIRST_TOKEN, False) else "mean"
        pooling = Pooling(words.get_embedding_dimension(), pooling_mode=mode)
        body = SentenceTransformer(modules=[words, pooling], device=str(compute_device(config.device)))
        arguments = setfit.TrainingArguments(
            output_dir=str(Path(folder) / "run"),
            batch_size=pairs,
            max_steps=max_steps,
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
    logger.info("SetFit's contrastive stage: %d steps of %d pairs.", max_steps, pairs)
