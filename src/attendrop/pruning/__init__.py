"""Pruning of attention layers: selection, constant attention, fast models, their files and export."""
