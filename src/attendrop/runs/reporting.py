"""Where a run's figures are sent while it trains: TensorBoard, Weights & Biases, Trackio, MLflow."""

from __future__ import annotations

import importlib.util

from attendrop.errors import AttendropError
from attendrop.validation import check_choice

# What each needs: one of these packages; the first is the one to install.
INTEGRATIONS = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow", "mlflow-skinny"),
}


def check_integration(name: str) -> None:
    """Raise AttendropError if there is no such integration, or its package is not installed."""
    check_choice("report_to", name, (*INTEGRATIONS, "none"))
    if name == "none":
        return
    packages = INTEGRATIONS[name]
    if not any(importlib.util.find_spec(package.partition("-")[0]) for package in packages):
        raise AttendropError(f"report-to {name} needs the package {packages[0]}; run `pip install {packages[0]}`.")
