"""Self-pruning: layers whose attention is constant, chosen, made fast, saved and exported."""

from attendrop.pruning.choose import prune
from attendrop.pruning.export import export_onnx, export_torch
from attendrop.pruning.model import PrunedModel, load

__all__ = ["PrunedModel", "export_onnx", "export_torch", "load", "prune"]
