"""Pruning the model of a run: what goes, what it costs in score, and what it gains in size and speed."""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from attendrop.errors import AttendropError
from attendrop.files import write_json
from attendrop.methods import AttendOut, FineTune
from attendrop.pruning.choose import choose, importance, parse_wanted, prune, ranked
from attendrop.pruning.masking import mask_layers, prunable_sites
from attendrop.pruning.model import PrunedModel
from attendrop.rows import to_device
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, divide, encode_parts, fingerprint, load_data
from attendrop.runs.folder import METRICS, RUN, read_metrics, read_run
from attendrop.runs.logits import predict_logits
from attendrop.runs.models import load_model_and_tokenizer
from attendrop.runs.train import on_cpu, silence
from attendrop.sites import Site
from attendrop.tasks import Task, compute_scores
from attendrop.trainer import RegularizedTrainer

# How speed is measured: so many batches of so many rows, so many times each.
_TIMED_BATCHES, _TIMED_ROWS, _ROUNDS = 8, 8, 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Work:
    """A finished run, ready to be pruned: its options, data, model, and how to score one."""

    config: RunConfig
    metrics: dict[str, Any]
    task: Task
    parts: Parts
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    known: dict[tuple[tuple[int, ...], str], dict[str, float]] = field(default_factory=dict)

    @property
    def chosen_on(self) -> str:
        """The name of the set that layers are chosen on."""
        return "dev" if self.parts.selection is None or self.config.protocol == "paper" else "selection"

    @property
    def sets(self) -> dict[str, Dataset]:
        """What models are scored on, by name."""
        selection = {} if self.parts.selection is None else {"selection": self.parts.selection}
        return (selection if self.chosen_on == "selection" else {}) | self.parts.report

    def scores(self, model: PrunedModel, name: str) -> dict[str, float]:
        """All scores of the task on one of the sets; computed once for the same pruned layers."""
        if (model.layers, name) not in self.known:
            rows = _by_length(self.sets[name])
            size, device = self.config.eval_batch_size, self.config.device
            logits = predict_logits(model.model, self.tokenizer, rows.to_dict(), size, device)
            self.known[model.layers, name] = compute_scores(self.task, logits, np.asarray(rows["labels"]))
        return self.known[model.layers, name]

    def batches(self, rows: Dataset, size: int) -> list[dict[str, Any]]:
        """Rows in batches, in their order, on the model's device."""
        collate = DataCollatorWithPadding(self.tokenizer)
        columns = [name for name in rows.column_names if name != "length"]
        listed = rows.select_columns(columns).to_list()
        chunks = [listed[i : i + size] for i in range(0, len(listed), size)]
        return [to_device(collate(chunk), self.model.device) for chunk in chunks]


def prune_run(
    run_dir: str,
    output_dir: str,
    *,
    layers: str | int = "auto",
    tolerance: float = 0.0,
    recover_epochs: int = 0,
    data_dir: str | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Prune the model of a finished run, and leave it, with its figures, in another folder.

    Layers are ranked by what AttendOut's generator drops, if the run trained with its pruning version, else by
    importance; both on rows that were not trained on. They are chosen on the run's selection split.

    Args:
        run_dir: Folder of the run.
        output_dir: A new folder.
        layers: As for :func:`attendrop.prune`.
        tolerance: As for :func:`attendrop.prune`, in units of the task's metric.
        recover_epochs: Fine-tune for so many epochs afterwards, with the pruned layers in place, as the run did.
        data_dir: Where the run's task is now, if not where it was.
        device: ``"auto"`` or ``"cpu"``.

    Returns:
        The run's ``metrics.json`` with the scores of the pruned model, and under ``pruned`` what was done: ``layers``,
        ``of``, ``ranked_by``, ``harm`` of each layer, ``chosen_on``, ``scores`` (by number of pruned layers, with
        ``auto``), ``selection`` and ``all_scores`` before and after, ``parameters``, ``bytes``, ``speed``.

    Raises:
        AttendropError: There is no finished run, its data changed, or the model cannot be pruned in this way.
    """
    wanted = parse_wanted(layers)
    target = Path(output_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AttendropError(f"The output folder '{output_dir}' is not empty; name a new one.")
    if recover_epochs < 0:
        raise AttendropError(f"recover-epochs must be at least 0, not {recover_epochs}.")
    work = _load(run_dir, data_dir, device)
    sites = prunable_sites(work.model)
    metric = work.task.metric
    pi = _pi(work.metrics, sites)
    batches = work.batches(_by_length(work.sets[work.chosen_on]), work.config.eval_batch_size)
    harm = (
        None
        if pi is not None
        else dict(zip([s.key for s in sites], importance(work.model, sites, batches), strict=True))
    )
    scores: dict[int, float] = {}
    if wanted.layers is None and wanted.threshold is None:
        order = ranked(work.model, sites, pi=pi) if pi is not None else _by_harm(harm or {})
        if wanted.count is None:
            light, scores = choose(
                work.model, order, lambda model: work.scores(model, work.chosen_on)[metric], tolerance
            )
        else:
            light = prune(work.model, order[: _checked(wanted.count, len(sites))])
    else:
        light = prune(work.model, layers, pi=pi)
    whole = PrunedModel(mask_layers(work.model, []))
    before = {name: work.scores(whole, name) for name in work.sets}
    if recover_epochs and light.layers:
        light = _recover(work, light.layers, recover_epochs)
        work.known.clear()
    found = _figures(work, light, before)
    found |= {
        "ranked_by": "generator" if pi is not None else "importance",
        "harm": harm if pi is None else dict(pi),
        "chosen_on": work.chosen_on,
        "scores": {str(count): score for count, score in scores.items()},
        "tolerance": tolerance,
        "recover_epochs": recover_epochs if light.layers else 0,
    }
    return _save(work, light, found, run_dir, target)


def _load(run_dir: str, data_dir: str | None, device: str) -> _Work:
    folder = Path(run_dir)
    run, metrics = read_run(folder), read_metrics(folder)
    if run is None or metrics is None:
        raise AttendropError(f"'{run_dir}' holds no finished run; name the folder of one.")
    if "pruned" in metrics:
        raise AttendropError(f"The model in '{run_dir}' is pruned already; prune the run that it came from.")
    changed = {"device": device} | ({"data_dir": data_dir} if data_dir is not None else {})
    config = RunConfig(**(run["config"] | changed), output_dir=run_dir)
    data = load_data(config)
    parts = divide(config, data)
    if fingerprint(parts) != run["data_sha256"]:
        raise AttendropError(
            f"The data changed since the run in '{run_dir}': its selection split cannot be made again."
        )
    if parts.selection is None and "dev" not in parts.report:
        raise AttendropError(f"The run in '{run_dir}' has neither a selection split nor an eval-file to choose on.")
    if parts.selection is None:
        logger.warning("The run has no selection split: layers are chosen on dev, so the score on it flatters.")
    model, tokenizer = load_model_and_tokenizer(str(folder.absolute()), None)
    model.to(torch.device("cpu") if on_cpu(device) else torch.accelerator.current_accelerator())  # type: ignore[arg-type]
    return _Work(config, metrics, data.task, encode_parts(config, data, parts, tokenizer), model, tokenizer)


def _pi(metrics: Mapping[str, Any], sites: Sequence[Site]) -> dict[str, float] | None:
    """What the generator drops of each layer, where it was trained to prune; nothing of layers that it did not see."""
    options = metrics["options"].get(AttendOut.name, metrics["options"])
    if AttendOut.name not in metrics["method"].split("+") or options.get("variant") != "pruning":
        return None
    found = metrics.get("pruning", {}).get("pi")
    return None if found is None else {site.key: found.get(site.key, 0.0) for site in sites}


def _by_length(rows: Dataset) -> Dataset:
    """Rows sorted by length, for batches with little padding."""
    return rows.select(np.argsort(rows["length"], kind="stable"))


def _by_harm(harm: Mapping[str, float]) -> list[int]:
    losses = list(harm.values())
    return sorted(range(len(losses)), key=lambda number: (losses[number], -number))


def _checked(count: int, layers: int) -> int:
    if count > layers:
        raise AttendropError(f"layers={count}: the model has only {layers} layers of attention.")
    return count


def _recover(work: _Work, layers: tuple[int, ...], epochs: int) -> PrunedModel:
    """Fine-tune with constant attention in some layers, which keep the plain form meanwhile."""
    masked = mask_layers(work.model, layers)
    with tempfile.TemporaryDirectory() as unused:
        arguments = TrainingArguments(
            output_dir=unused,
            num_train_epochs=epochs,
            per_device_train_batch_size=work.config.batch_size,
            gradient_accumulation_steps=work.config.gradient_accumulation,
            learning_rate=work.config.learning_rate,
            weight_decay=work.config.weight_decay,
            lr_scheduler_type=work.config.schedule,
            warmup_steps=work.config.warmup,
            train_sampling_strategy="group_by_length",
            save_strategy="no",
            logging_strategy="epoch",
            seed=work.config.seed,
            use_cpu=on_cpu(work.config.device),
            bf16=work.config.bf16,
            fp16=work.config.fp16,
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
            report_to="none",
        )
        trainer = RegularizedTrainer(
            masked,
            arguments,
            regularizer=FineTune(),
            train_dataset=work.parts.train,
            data_collator=DataCollatorWithPadding(work.tokenizer),
            processing_class=work.tokenizer,
        )
        silence(trainer)
        trainer.train()
        return PrunedModel(trainer.accelerator.unwrap_model(trainer.model).eval())


def _figures(work: _Work, light: PrunedModel, before: Mapping[str, dict[str, float]]) -> dict[str, Any]:
    """Scores (those before are given), size and speed, before and after."""
    scores = {name: {"before": before[name], "after": work.scores(light, name)} for name in work.sets}
    both: dict[str, Any] = {"before": work.model, "after": light}
    rows = work.sets[work.chosen_on]
    timed = rows.select(range(min(len(rows), _TIMED_BATCHES * _TIMED_ROWS)))
    batches = work.batches(timed.remove_columns("labels"), _TIMED_ROWS)
    return {
        "layers": list(light.layers),
        "of": light.of,
        "fast": light.fast,
        "selection": scores.pop("selection", None),
        "all_scores": scores,
        "parameters": {when: sum(p.numel() for p in model.parameters()) for when, model in both.items()},
        "speed": speed_ratio(lambda batch: work.model(**batch), lambda batch: light(**batch), batches),
    }


def speed_ratio(
    before: Callable[[dict[str, Any]], Any], after: Callable[[dict[str, Any]], Any], batches: list[dict[str, Any]]
) -> float:
    """How many times faster ``after`` is than ``before``: the median of several rounds, in turn."""

    def seconds(run: Callable[[dict[str, Any]], Any]) -> float:
        start = time.perf_counter()
        for batch in batches:
            found = run(batch)
        found.logits.cpu()  # waits for a GPU
        return time.perf_counter() - start

    with torch.no_grad():
        seconds(before), seconds(after)
        return statistics.median(seconds(before) / seconds(after) for _ in range(_ROUNDS))


def _save(work: _Work, light: PrunedModel, found: dict[str, Any], run_dir: str, target: Path) -> dict[str, Any]:
    target.mkdir(parents=True, exist_ok=True)
    light.save_pretrained(target)
    work.tokenizer.save_pretrained(target)
    before = sum(file.stat().st_size for file in Path(run_dir).glob("model*.safetensors"))
    found["bytes"] = {"before": before, "after": sum(file.stat().st_size for file in target.glob("model*.safetensors"))}
    after = {name: scores["after"] for name, scores in found["all_scores"].items()}
    metric = work.task.metric
    metrics = work.metrics | {
        "score": after["dev"][metric] if "dev" in after else None,
        "all_scores": after,
        "selection_score": found["selection"]["after"][metric] if found["selection"] else None,
        "output_dir": str(target),
        "pruned": found | {"from": run_dir},
    }
    (target / RUN).write_text((Path(run_dir) / RUN).read_text(encoding="utf-8"), encoding="utf-8")
    (target / "README.md").write_text(_card(metrics), encoding="utf-8")
    write_json(target / METRICS, metrics)
    return metrics


def _card(metrics: Mapping[str, Any]) -> str:
    pruned, metric = metrics["pruned"], metrics["metric"]
    selection = [("selection", pruned["selection"])] if pruned["selection"] else []
    rows = [*selection, *pruned["all_scores"].items()]
    scores = "\n".join(
        f"| {name}: {metric} | {both['before'][metric]:.4f} | {both['after'][metric]:.4f} |" for name, both in rows
    )
    title = f"{Path(metrics['model']).name}, {metrics['task']}"
    return f"""---
library_name: attendrop
pipeline_tag: text-classification
tags:
- attendrop
- pruned
---

# {title}, without attention in {len(pruned["layers"])} of {pruned["of"]} layers

Layers {json.dumps(pruned["layers"])} attend equally to all tokens. Pruned from a model trained with
`{metrics["method"]}`, by {pruned["ranked_by"]}, chosen on `{pruned["chosen_on"]}`.

| | before | after |
|---|---|---|
{scores}
| parameters | {pruned["parameters"]["before"]:,} | {pruned["parameters"]["after"]:,} |

Measured speed where it was pruned: {pruned["speed"]:.2f} times that of the whole model.

```python
import attendrop
from transformers import AutoTokenizer

model = attendrop.load(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
```
"""
