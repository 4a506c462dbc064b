"""Finished runs: loading of their options, data and model."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.pruning.selection import Array, Predictions
from attendrop.runs.baseline_models import is_baseline
from attendrop.runs.config import RunConfig
from attendrop.runs.data import fingerprint
from attendrop.runs.model_loading import load_model_and_tokenizer
from attendrop.runs.prediction_passes import predict_outputs
from attendrop.runs.resolved_run import ResolvedRun, resolve_run
from attendrop.runs.run_folder import METRICS, RUN, check_whole, keeps_model, read_metrics, read_run
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.tokenization import columns_of, encode


@dataclass(frozen=True)
class FinishedRun(ResolvedRun):
    """Finished run, with its options; their data folder and device are the current ones.

    Attributes:
        metrics: Content of its ``metrics.json``.
        model: The model, on the CPU.
        tokenizer: The model's tokenizer.
    """

    metrics: dict[str, Any]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def chosen_on(self) -> str | None:
        """Name of the held-out set on which choices are made; None if there is none."""
        if self.parts.selection is not None and self.config.protocol != "paper" and not self.config.refit:
            return "selection"
        return "dev" if "dev" in self.parts.report else None

    @cached_property
    def sets(self) -> dict[str, Dataset]:
        """Return the encoded rows on which models are scored, by name."""
        held_out = {"selection": self.parts.selection} if self.chosen_on == "selection" else {}
        return {name: self.encoded(part) for name, part in (held_out | self.parts.report).items() if part is not None}

    def check_held_out(self) -> None:
        """Raise AttendropError if the run has no labelled rows that its model was not trained on."""
        if self.chosen_on is None:
            run_dir = self.config.output_dir
            raise AttendropError(
                f"The run in '{run_dir}' has no labelled rows that it was not trained on. Train it again with some: "
                f"attendrop train --config {shlex.quote(f'{run_dir}/run.yaml')} --eval-file FILE --output-dir FOLDER, "
                "or with --selection-fraction 0.1 --no-refit in place of the file, which holds out rows."
            )

    def encoded(self, rows: Dataset) -> Dataset:
        """Tokenize rows as the run did."""
        return encode(rows, self.task, self.tokenizer, self.config.max_length)

    def batches(self, rows: Dataset, size: int) -> list[dict[str, Any]]:
        """Collate encoded rows into batches, in their order."""
        collate = self.task.head.collator(self.tokenizer)
        read = [name for name in (*self.tokenizer.model_input_names, "labels") if name in rows.column_names]
        listed = rows.select_columns(read).to_list()
        return [dict(collate(listed[i : i + size])) for i in range(0, len(listed), size)]

    def outputs(self, name: str, model: PreTrainedModel | None = None) -> Array:
        """Compute the outputs of the run's model, or of another one, for one of the sets, in its order."""
        rows, config = self.sets[name].to_dict(), self.config
        return predict_outputs(
            model or self.model, self.tokenizer, self.task.head, rows, config.eval_batch_size, config.device
        )

    def labels(self, name: str) -> Array:
        """Return the references of a set."""
        return self.task.head.references(columns_of(self.sets[name]))

    def predictions(self, name: str, outputs: Array) -> Predictions:
        """Make predictions for one of the sets from outputs, scored by the task's metric."""
        decisive = replace(self.task, other_metrics=())
        return Predictions(
            self.labels(name),
            outputs,
            lambda labels, outputs: compute_scores(decisive, outputs, labels)[decisive.metric],
            self.task.head.num_classes,
            self.task.head.metrics[self.task.metric].span,
        )


def load_finished_run(run_dir: str, *, data_dir: str | None = None, device: str = "auto") -> FinishedRun:
    """Load a run with its rows and model; raises AttendropError if it is not finished, or its data changed."""
    run, metrics = read_finished(run_dir)
    check_keeps_model(run_dir)
    changed = {"device": device} | ({"data_dir": data_dir} if data_dir is not None else {})
    config = RunConfig(**(run["config"] | changed), output_dir=run_dir)
    resolved = resolve_run(config, run.get("decided"))
    if fingerprint(resolved.parts) != run["data_sha256"]:
        raise AttendropError(
            f"The data changed since the run in '{run_dir}': its selection split cannot be reproduced."
        )
    return FinishedRun(resolved.config, config, resolved.data, resolved.parts, metrics, *load_run_model(run_dir))


def read_finished(run_dir: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read ``run.json`` and ``metrics.json``; raises AttendropError if the folder holds no finished run."""
    run, metrics = read_run(Path(run_dir)), read_metrics(Path(run_dir))
    if run is None or metrics is None:
        inner = _run_inside(Path(run_dir))
        hint = "name the folder of one." if inner is None else f"did you mean '{inner}'?"
        raise AttendropError(f"'{run_dir}' holds no finished run; {hint}")
    return run, metrics


def check_keeps_model(run_dir: str) -> None:
    """Raise AttendropError if a run kept its scores, and not its model, or lost a file of it."""
    if not keeps_model(run_dir) and not is_baseline(run_dir):
        check_whole(Path(run_dir))
        raise AttendropError(
            f"The run in '{run_dir}' kept no model, only its scores; train one with `attendrop train --config "
            f"{shlex.quote(f'{run_dir}/run.yaml')}`."
        )


def load_run_model(run_dir: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model in a run's folder, on the CPU, and its tokenizer."""
    return load_model_and_tokenizer(str(Path(run_dir).absolute()), None)


def _run_inside(folder: Path) -> Path | None:
    """Return the first finished run in a folder, such as the kept one of a comparison."""
    return next((path.parent for path in sorted(folder.glob(f"*/{METRICS}"))), None)


def check_finished(run_dir: str) -> None:
    """Raise AttendropError if there is no such folder, or no finished run or other model in it, but runs below it."""
    folder = Path(run_dir)
    if not folder.is_dir():
        raise AttendropError(f"There is no run folder '{run_dir}'.")
    if not any((folder / name).exists() for name in (RUN, "config.json")) and (inner := _run_inside(folder)):
        raise AttendropError(f"'{run_dir}' holds no model; did you mean '{inner}'?")
    if read_run(folder) is not None and read_metrics(folder) is None:
        raise AttendropError(f"The run in '{run_dir}' is not finished; `attendrop train` with --resume finishes it.")
