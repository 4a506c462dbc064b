"""Pruning of attention layers: selection, constant attention, fast models, their files and export."""

from attendrop.pruning.export import export_onnx, export_torch
from attendrop.pruning.pruned_model import PrunedModel, load
from attendrop.pruning.selection import prune

__all__ = ["PrunedModel", "export_onnx", "export_torch", "load", "prune"]
