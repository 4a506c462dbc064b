"""Experiment tracking of a run: TensorBoard, Weights & Biases, Trackio, MLflow."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from transformers import Trainer
from transformers.integrations.integration_utils import TensorBoardCallback

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import TENSORBOARD

# Packages of an integration, any of which suffices; by default, the package of the same name.
_PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX")}


def check_integration(name: str) -> None:
    """Raise AttendropError if the package that ``report_to`` needs is not installed."""
    packages = _PACKAGES.get(name, (name,))
    if name != "none" and not any(importlib.util.find_spec(package) for package in packages):
        raise AttendropError(f"report-to {name} needs the package {packages[0]}; run `pip install {packages[0]}`.")


def keep_in_folder(trainer: Trainer) -> None:
    """Let TensorBoard write into a fixed folder below the run's."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback):
            callback.logging_dir = str(Path(str(trainer.args.output_dir)) / TENSORBOARD)
