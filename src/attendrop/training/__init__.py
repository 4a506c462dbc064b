"""Training with a method: in a loop of one's own, and in ``transformers.Trainer``."""
