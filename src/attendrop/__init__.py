"""Fine-tune pre-trained transformers on small data without overfitting, by regularising attention."""

from importlib.metadata import PackageNotFoundError, version

from attendrop import methods
from attendrop.errors import AttendropError
from attendrop.methods import *  # noqa: F403 (the methods: their names stand in the registry alone)
from attendrop.pruning import PrunedModel, export_onnx, export_torch, load, prune
from attendrop.regularize import Regularization, regularize
from attendrop.trainer import RegularizedTrainer

__all__ = [
    "AttendropError",
    "PrunedModel",
    "Regularization",
    "RegularizedTrainer",
    "export_onnx",
    "export_torch",
    "load",
    "prune",
    "regularize",
]
__all__ += methods.__all__

try:
    __version__ = version("attendrop")
except PackageNotFoundError:  # running from a source tree that was not installed
    __version__ = "0.0.0"
