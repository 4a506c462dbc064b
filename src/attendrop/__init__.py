"""Fine-tune pre-trained transformers on small data without overfitting, by regularising attention."""

from importlib.metadata import PackageNotFoundError, version

from attendrop.errors import AttendropError
from attendrop.methods import ADDrop, AttendOut, AttentionLayerDrop, FineTune, Method, Scheduler, register_method
from attendrop.pruning import PrunedModel, export_onnx, export_torch, load, prune
from attendrop.regularize import Regularization, regularize
from attendrop.trainer import RegularizedTrainer

__all__ = [
    "ADDrop",
    "AttendOut",
    "AttendropError",
    "AttentionLayerDrop",
    "FineTune",
    "Method",
    "PrunedModel",
    "Regularization",
    "RegularizedTrainer",
    "Scheduler",
    "export_onnx",
    "export_torch",
    "load",
    "prune",
    "register_method",
    "regularize",
]

try:
    __version__ = version("attendrop")
except PackageNotFoundError:  # running from a source tree that was not installed
    __version__ = "0.0.0"
