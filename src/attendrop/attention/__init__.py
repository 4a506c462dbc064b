"""Attention layers of transformers models: finding them, and changing what they compute."""
