"""Training with a method, in a custom loop or in ``transformers.Trainer``."""
