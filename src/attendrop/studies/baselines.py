"""Baselines without fine-tuning, on the rows of a run and scored as a run is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.argument_checks import check_choice
from attendrop.errors import AttendropError
from attendrop.files.output_files import write_json
from attendrop.model_support.devices import compute_device
from attendrop.runs.config import RunConfig
from attendrop.runs.data import fingerprint
from attendrop.runs.model_loading import load_model_and_tokenizer, load_preprocessor
from attendrop.runs.prediction_passes import frozen_features
from attendrop.runs.resolved_run import ResolvedRun, resolve_run
from attendrop.runs.run_folder import METRICS, begin_run, check_data, read_metrics, results, run_folder
from attendrop.runs.run_metrics import ROWS_KEPT, shifted_scores, versions
from attendrop.runs.shared_results import digest_of_model, shared
from attendrop.studies.units import BASELINES, FROZEN, SETFIT
from attendrop.tasks.base import Task
from attendrop.tasks.heads.base import Array
from attendrop.tasks.long_texts import document_means
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.row_scores import PREDICTIONS, row_scores, write_predictions
from attendrop.tasks.tokenization import columns_of, encode

# Outputs for rows, such as logits ``(rows, classes)``.
Predict = Callable[[Dataset], Array]
Features = Callable[[Dataset], Array]


def run_baseline(config: RunConfig, name: str) -> dict[str, Any]:
    """Score a baseline, and write ``metrics.json`` in ``config.output_dir``; a finished one is returned.

    It is fitted on the training and the selection rows of a fine-tuning with this configuration: it has no epoch to
    choose. Its selection score is that of a fit on the training rows only.

    - ``majority``: the constant answer, the most common class or the mean.
    - ``tfidf``: TF-IDF of words and pairs of words, and of 2 to 5 characters within words, of each text, with a linear
      model.
    - ``frozen``: the mean of the tokens of the model as it is, two texts read as a pair, with a linear model; see
      :func:`attendrop.runs.prediction_passes.frozen_features`.
    - ``setfit``: the same, after the contrastive stage of SetFit (Tunstall et al., 2022) on the training rows, by its
      package and with its authors' settings; it reads as many texts as a fine-tuning by the recipe. Of single texts.

    The linear model is the head's, a logistic or a ridge regression with a strength from cross-validation
    (:mod:`attendrop.tasks.heads.sequence`).

    Args:
        config: Options of the run; those of its method and of the optimization are not used.
        name: Name of the baseline.

    Returns:
        The content of ``metrics.json``, in the format of a run's.

    Raises:
        AttendropError: The baseline is unknown or not defined for this kind of task, the data are invalid, or the
            folder holds something else.
    """
    check_choice("baseline", name, BASELINES)
    start = time.monotonic()
    config = replace(config, method="finetune", options={})
    with run_folder(config, resume=True, overwrite=False, baseline=name) as place:
        if (finished := read_metrics(place)) is not None:
            return finished
        run = resolve_run(config)
        _check_defined(name, run.task)
        rows = fingerprint(run.parts)
        check_data(place, rows)
        begin_run(place, config, rows, baseline=name)
        metrics, predictions = _metrics(run, name)
        metrics["total_seconds"] = round(time.monotonic() - start, 3)
        with results(place) as files:
            write_json(files / METRICS, metrics)
            if predictions is not None:
                write_predictions(files / PREDICTIONS, predictions)
    return metrics


def defined_for(task: Task) -> tuple[str, ...]:
    """Return the names of the baselines that are defined for a task."""
    return tuple(name for name in task.head.baselines if name != SETFIT or len(task.text_columns) == 1)


def _check_defined(name: str, task: Task) -> None:
    if name not in (found := defined_for(task)):
        defined = f"choose from {', '.join(found)}" if found else "leave it out"
        raise AttendropError(f"Baseline {name!r} is not defined for {task.kind} tasks such as {task.name}; {defined}.")


def _metrics(run: ResolvedRun, name: str) -> tuple[dict[str, Any], list[Any] | None]:
    config, task, parts = run.config, run.task, run.parts
    fits = _Fits(run, name)
    selects_on_dev = config.protocol == "paper"
    own = parts.train
    if not selects_on_dev and parts.selection is not None:
        own = concatenate_datasets([parts.train, parts.selection])
    start = time.monotonic()
    predict = fits.named(own)
    seconds = time.monotonic() - start
    outputs = {part: predict(rows) for part, rows in parts.report.items()}
    scores = {part: fits.scores(outputs[part], rows) for part, rows in parts.report.items()}
    dev = parts.report.get("dev")
    by_row = {
        part: row_scores(task, outputs[part], fits.references(parts.report[part]), parts.report[part])
        for part in ROWS_KEPT
        if part in outputs
    }
    selection_score = None
    if parts.selection is not None:
        selection_score = fits.scores(fits.named(parts.train)(parts.selection), parts.selection)[task.metric]
    metrics = {
        "task": task.name,
        "model": config.model,
        "method": name,
        "options": {},
        "seed": config.seed,
        "protocol": config.protocol,
        "metric": task.metric,
        "selection_score": selection_score,
        "score": scores["dev"][task.metric] if "dev" in scores else None,
        "all_scores": scores,
        "row_scores": None if (of_dev := by_row.get("dev")) is None else of_dev.as_dict(),
        "shifted": shifted_scores(scores["shifted"][task.metric], by_row["shifted"]) if "shifted" in scores else None,
        "predicted": {part: task.head.predicted_counts(found) for part, found in outputs.items()},
        "train_seconds": round(seconds, 3),
        "data": {
            "source": run.data.source,
            "text_columns": list(task.text_columns),
            "classes": list(task.label_names),
            "selected_on": None,
            "rows": {"train": len(own)} | {part: len(rows) for part, rows in parts.report.items()},
        },
        "config": run.given.as_dict(),
        "output_dir": config.output_dir,
        "versions": versions(),
    }
    return metrics, None if dev is None else task.head.decode(task.head.checked(outputs["dev"]))


class _Fits:
    """Fits of a run's baselines on training rows, as its model reads them; each returns what predicts other rows."""

    def __init__(self, run: ResolvedRun, name: str) -> None:
        self.run = run
        self.head = run.task.head
        self.named = getattr(self, name)
        preprocessor = load_preprocessor(run.config.model, run.task)
        self._columns = cache(lambda rows: columns_of(encode(rows, run.task, preprocessor, run.config.max_length)))
        if name == FROZEN:  # loading it is not part of a fit, whose time is measured
            self._frozen_features = self._features_of(*load_model_and_tokenizer(run.config.model, run.task))

    def targets(self, rows: Dataset) -> list[Any]:
        """Return the target of each row: where rows are read in several windows, that of the first one."""
        columns = self._columns(rows)
        firsts = {number: place for place, number in reversed(list(enumerate(self.head.row_numbers(columns))))}
        labels = columns["labels"][:]
        return [labels[place] for place in sorted(firsts.values())]

    def references(self, rows: Dataset) -> Array:
        return self.head.references(self._columns(rows))

    def scores(self, outputs: Array, rows: Dataset) -> dict[str, float]:
        return compute_scores(self.run.task, outputs, self.references(rows))

    def majority(self, train: Dataset) -> Predict:
        references = self.references(train)

        def predict(rows: Dataset) -> Array:
            found = self.head.constant_answer(references, self.references(rows))
            if found is None:
                raise AttendropError(
                    f"Tasks of the kind {self.run.task.kind} have no constant answer, which a baseline gives that "
                    "cannot be fitted; leave it out."
                )
            return found[1]

        return predict

    def tfidf(self, train: Dataset) -> Predict:
        def columns(rows: Dataset) -> list[Sequence[str]]:
            return list(zip(*self.head.texts(rows), strict=True))

        counted = (
            {"token_pattern": r"\w+", "ngram_range": (1, 2)},
            {"analyzer": "char_wb", "ngram_range": (2, 5)},
        )
        counters = [
            (place, TfidfVectorizer(sublinear_tf=True, **options).fit(texts))
            for place, texts in enumerate(columns(train))
            for options in counted
        ]

        def features(rows: Dataset) -> Array:
            texts = columns(rows)
            found: Array = sparse.hstack([each.transform(texts[place]) for place, each in counters]).tocsr()
            return found

        return self._linear(train, features, features)

    def frozen(self, train: Dataset) -> Predict:
        # The rows that are only scored are the same for all seeds. What a fit takes is measured, so it shares nothing.
        return self._linear(train, self._frozen_features, partial(self._frozen_features, share=True))

    def setfit(self, train: Dataset) -> Predict:
        from attendrop.runs.head_start import tune_contrastively  # loads sentence-transformers

        config = self.run.config
        model, tokenizer = load_model_and_tokenizer(config.model, self.run.task)
        tune_contrastively(model, tokenizer, self.head.texts(train), self.head.strata_of(train), config)
        features = self._features_of(model, tokenizer)
        return self._linear(train, features, partial(features, share=True))

    def _features_of(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Callable[..., Array]:
        """Return the function that computes features of rows by an encoder, of each text once."""
        config, task = self.run.config, self.run.task
        known: dict[tuple[str, ...], Array] = {}

        def new_features(rows: Dataset, *, share: bool) -> Array:
            encoded = encode(rows, task, tokenizer, config.max_length)[:]
            size, device = config.eval_batch_size, str(compute_device(config.device))

            def compute() -> Array:
                found = frozen_features(model, tokenizer, task.head, encoded, size, config.device)
                return document_means(found, encoded)

            if not share:
                return compute()
            key = lambda: [digest_of_model(model.base_model), encoded, size, device]  # noqa: E731
            return shared(key, compute, lambda vectors: vectors.nbytes, kind="frozen features")

        def features(rows: Dataset, *, share: bool = False) -> Array:
            texts = task.head.texts(rows)
            if not known.keys() >= set(texts):
                first = {text: row for row, text in reversed(list(enumerate(texts)))}
                known.update(zip(first, new_features(rows.select(first.values()), share=share), strict=True))
            return np.stack([known[text] for text in texts])

        return features

    def _linear(self, train: Dataset, features: Features, features_to_score: Features) -> Predict:
        """Fit the linear model of the head; where there is none, because all rows are of one class, it is constant."""
        balanced = self.run.config.class_weights is not None
        found = self.head.fit_linear(features(train), self.targets(train), balanced=balanced)
        return self.majority(train) if found is None else lambda rows: found.outputs(features_to_score(rows))
