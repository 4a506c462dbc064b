"""Pruning of a run's model: which layers, the cost in score, and the gain in size and speed."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback

from attendrop.errors import AttendropError, check_choice, check_least
from attendrop.methods.core.base import LayerRanking
from attendrop.pruning.pruned_model import PrunedModel, mask_layers, prunable_layers
from attendrop.pruning.selection import (
    CONFIDENCE,
    IMPORTANCE,
    Array,
    LayerSelection,
    importance,
    paired_difference,
    parse_selection,
    prune_selected,
    undecided_message,
)
from attendrop.runs.inference import FinishedRun, load_finished_run
from attendrop.runs.model_card import CARD, pruned_card
from attendrop.runs.run_folder import METRICS, RUN, digests, new_folder, read_run
from attendrop.runs.run_trainer import RunTrainer, balanced_loss, scored_run, set_scores, training_arguments
from attendrop.support.files import write_json, write_text
from attendrop.support.models import compute_device, logits_of, to_device
from attendrop.tasks.base import encode
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.tokenization import save_tokenizer, texts_of
from attendrop.wording import counted, counted_rows

# Number and size of the batches on which speed is measured, for how many seconds at least, in rounds of the same work.
_TIMED_BATCHES, _TIMED_ROWS = 8, 8
SECONDS, ROUNDS = 2.0, 5
logger = logging.getLogger(__name__)


def prune_run(
    run_dir: str,
    output_dir: str,
    *,
    layers: str | int = "auto",
    select_by: str = "auto",
    tolerance: float = 0.0,
    recover_epochs: int = 0,
    data_dir: str | None = None,
    device: str = "auto",
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Prune the model of a finished run, and save it with its metrics in another folder.

    Layers are ranked and chosen on the run's selection split, which was not trained on. The folder is created when all
    results are complete, so an interrupted command can be repeated.

    ``layers`` and ``tolerance``, in units of the task's metric, are as for :func:`attendrop.prune`. ``select_by`` ranks
    the layers: "importance" by the loss without each layer's attention, "method" by what the run's method learnt to
    drop, "auto" by the method if its result is significant, or ``layers`` is a threshold on its fractions, otherwise by
    importance. Afterwards it is fine-tuned as the run did, with the pruned layers in place, for ``recover_epochs``.
    ``data_dir`` is the folder of the run's task, if it was moved.

    Returns the run's ``metrics.json`` with the scores of the pruned model, and under ``pruned`` what was done. A
    difference is its ``value`` with the ends, ``low`` and ``high``, of its 95 % interval. Without a pruned layer,
    ``speed`` and the differences of before and after are None, because it is the same model. Raises AttendropError if
    there is no finished run, its data changed, or the model cannot be pruned in this way.
    """
    check_choice("select_by", select_by, ("auto", "importance", "method"))
    selection = parse_selection(layers, tolerance)
    check_least("recover_epochs", recover_epochs, 0)
    with new_folder(Path(output_dir)) as folder:
        run = load_finished_run(run_dir, data_dir=data_dir, device=device)
        run.task.type.refuse("prune")
        if "pruned" in run.metrics:
            raise AttendropError(f"The model in '{run_dir}' is pruned already; prune the run that it came from.")
        if run.chosen_on is None:
            told = f"'{run_dir}' has no labelled rows that it was not trained on; train it again with an --eval-file."
            raise AttendropError(told)
        if recover_epochs and run.config.adapter is not None:
            raise AttendropError(f"'{run_dir}' trained an adapter, and not all weights; omit recover-epochs.")
        run.model.to(compute_device(device))  # type: ignore[arg-type]
        ranking = None if select_by == "importance" else run.method.layer_ranking(run.metrics)
        if select_by == "method" and ranking is None:
            raise AttendropError("The method of the run learnt no ranking of layers; use select-by importance.")
        if ranking is not None and select_by == "auto" and not ranking.significant and selection.threshold is None:
            told = "What the %s learnt cannot be told from noise; layers are ranked by importance, but see --select-by."
            logger.info(told, ranking.ranked_by)
            ranking = None
        light, after, found = _pruned(run, run.chosen_on, selection, ranking, tolerance, recover_epochs, callbacks)
        source = Path(run.config.output_dir)
        light.save_pretrained(folder)
        save_tokenizer(run.tokenizer, folder)
        sizes = [sum(file.stat().st_size for file in place.glob("model*.safetensors")) for place in (source, folder)]
        if run.config.adapter is not None:
            sizes[0] = sum(parameter.nbytes for parameter in run.model.parameters())  # with its model
        found["bytes"] = dict(zip(("before", "after"), sizes, strict=True))
        selection_score = found["selection"]["after"][run.task.metric] if found["selection"] else None
        scores = {
            name: set_scores(run, name, after[name], run.predictions(name, after[name]).labels)
            for name in run.parts.report or run.sets
        }
        scored = scored_run(
            run, run.metrics["method"], run.metrics["options"], scores, {}, selection_score=selection_score
        )
        of_predictions = ("score", "all_scores", "selection_score", "row_scores", "ood", "predicted", "report")
        metrics = run.metrics | {name: scored[name] for name in of_predictions}
        metrics.pop("accept", None)  # that of the whole model
        if found["recover_epochs"] and metrics.get("temperature") is not None:
            logger.warning("The run's probabilities were calibrated; after the fine-tuning they are not.")
            metrics["temperature"] = None
        metrics |= {"output_dir": output_dir, "pruned": found | {"from": run.config.output_dir}}
        write_text(folder / CARD, pruned_card(metrics, run.task.type))
        write_json(folder / RUN, (read_run(source) or {}) | {"files": digests(folder)})
        write_json(folder / METRICS, metrics)
        return metrics


def _pruned(
    run: FinishedRun,
    chosen_on: str,
    selection: LayerSelection,
    ranking: LayerRanking | None,
    tolerance: float,
    recover_epochs: int,
    callbacks: Sequence[TrainerCallback],
) -> tuple[PrunedModel, dict[str, Array], dict[str, Any]]:
    """Prune the model; return it with its outputs for each set, and the ``pruned`` part of the metrics."""
    attention_layers = prunable_layers(run.model)
    labelled = run.sets[chosen_on]
    rows = len(texts_of(labelled))
    selection.check(len(attention_layers))
    chosen = selection.auto or (ranking is None and selection.by_importance(len(attention_layers)))
    if chosen and chosen_on == "dev" and run.config.protocol != "paper":
        logger.warning("The run has no rows held out: layers are chosen on dev, so the score on it is optimistic.")
    if ranking is None:  # a threshold is refused without one
        harm, measure = dict[str, float](), "loss with this layer constant"
        if selection.threshold is None:
            told = "Ranking %d layers by the loss without each, on %d rows of %s."
            logger.info(told, len(attention_layers), rows, chosen_on)
            by_length = labelled.select(np.argsort(labelled["length"], kind="stable"))  # batches with little padding
            losses = importance(run.model, attention_layers, _batches(run, by_length, run.config.eval_batch_size))
            harm = {layer.key: loss for layer, loss in zip(attention_layers, losses, strict=True)}
    else:  # nothing is known of layers that the method did not see
        harm = {layer.key: ranking.drop_fractions.get(layer.key, 0.0) for layer in attention_layers}
        measure = f"fraction that the {ranking.ranked_by} drops"
    if selection.auto:
        logger.info("Scoring with 0 to %d layers pruned, on %d rows of %s.", len(harm), rows, chosen_on)
    in_order = [value if ranking is None else -value for value in harm.values()]
    light, trials = prune_selected(
        run.model,
        selection,
        in_order or None,
        lambda candidate: run.predictions(chosen_on, run.outputs(chosen_on, candidate.model)),
        tolerance,
    )
    before = {name: run.outputs(name) for name in run.sets}
    if recover_epochs and light.layers:
        told = "Fine-tuning for %s with layers %s pruned."
        logger.info(told, counted(recover_epochs, "epoch"), ", ".join(map(str, light.layers)))
        trained_on = (run.on_all_rows() if run.config.refit else run).parts.train
        encoded = encode(trained_on, run.task, run.tokenizer, run.config.max_length)
        masked = mask_layers(run.model, light.layers)  # in the plain form meanwhile
        with tempfile.TemporaryDirectory() as unused:
            own = {"output_dir": unused, "num_train_epochs": recover_epochs, "save_strategy": "no", "report_to": "none"}
            trainer = RunTrainer(
                masked,
                training_arguments(run.config, **own),
                task_type=run.task.type,
                train_dataset=encoded,
                data_collator=run.task.type.collator(run.tokenizer),
                processing_class=run.tokenizer,
                compute_loss_func=None
                if run.config.class_weights is None
                else balanced_loss(encoded["labels"][:], run.task.type.num_classes),
                callbacks=list(callbacks),
            )
            trainer.train()
        light = PrunedModel(masked.eval())
    after = {name: run.outputs(name, light.model) for name in run.sets}
    speed = None
    if light.layers:
        timed = labelled.select(range(min(len(labelled), _TIMED_BATCHES * _TIMED_ROWS)))
        texts, batches = len(texts_of(timed)), _batches(run, timed.remove_columns("labels"), _TIMED_ROWS)
        logger.info("Measuring the speed on %s.", counted_rows(texts, f"rows of {chosen_on}", len(timed)))
        speed = measure_speed(lambda batch: run.model(**batch), lambda batch: light(**batch), batches)
        speed |= {"rows": texts, "windows": len(timed), "batch_size": _TIMED_ROWS, "device": str(run.model.device)}
    scores = {name: change_of_score(run, name, before[name], after[name]) for name in after}
    if not light.layers:
        scores = {name: found | {"difference": None} for name, found in scores.items()}
    return (
        light,
        after,
        {
            "layers": list(light.layers),
            "of": light.num_layers,
            "fast": light.fast,
            "ranked_by": IMPORTANCE if ranking is None else ranking.ranked_by,
            "harm": harm,
            "measure": measure,
            "chosen": chosen,
            "chosen_on": chosen_on,
            "rows": rows,
            "scores": {str(trial.count): trial.score for trial in trials},
            "differences": {str(trial.count): trial.difference.as_dict() for trial in trials[1:]},
            "confidence": CONFIDENCE,
            "unknown": undecided_message(trials, len(light.layers), tolerance),
            "tolerance": tolerance,
            "recover_epochs": recover_epochs if light.layers else 0,
            "selection": scores.pop("selection", None),
            "all_scores": scores,
            "parameters": {"before": run.model.num_parameters(), "after": light.model.num_parameters()},
            "speed": speed,
        },
    )


def _batches(run: FinishedRun, rows: Dataset, size: int) -> list[dict[str, Any]]:
    """Collate encoded rows into batches, in their order, on the model's device."""
    collate = run.task.type.collator(run.tokenizer)
    read = [name for name in (*run.tokenizer.model_input_names, "labels") if name in rows.column_names]
    listed = rows.select_columns(read).to_list()
    return [to_device(collate(listed[i : i + size]), run.model.device) for i in range(0, len(listed), size)]


def change_of_score(run: FinishedRun, name: str, before: Array, after: Array) -> dict[str, Any]:
    """Score outputs before and after for a set, with the difference of its metric."""
    first, second = (run.predictions(name, outputs) for outputs in (before, after))
    return {
        "before": compute_scores(run.task, before, first.labels),
        "after": compute_scores(run.task, after, first.labels),
        "difference": paired_difference(first, second).as_dict(),
    }


def measure_speed(
    before: Callable[[Mapping[str, Any]], Any],
    after: Callable[[Mapping[str, Any]], Any],
    batches: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Time two models on the same batches, in turn, so that other load on the machine affects both.

    Returns how many times faster the second one is: ``median``, ``low`` and ``high`` of several ``rounds``.
    """

    def seconds(run: Callable[[Mapping[str, Any]], Any], batch: Mapping[str, Any]) -> float:
        start = time.perf_counter()
        logits_of(run(batch)).cpu()  # waits for a GPU
        return time.perf_counter() - start

    ratios = []
    with torch.no_grad():
        for batch in batches:  # warm-up, since the first call of a shape may take longer
            seconds(before, batch), seconds(after, batch)
        for _ in range(ROUNDS):
            spent = [0.0, 0.0]
            while sum(spent) < SECONDS / ROUNDS:
                for batch in batches:
                    for number, run in enumerate((before, after)):
                        spent[number] += seconds(run, batch)
            ratios.append(spent[0] / spent[1])
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "rounds": ROUNDS}
