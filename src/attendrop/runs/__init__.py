"""Training runs: from options to a model with its scores, and the use of its model."""
