"""Training with a method, in a loop of one's own or in ``transformers.Trainer``."""
