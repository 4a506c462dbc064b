"""Regularisation methods, one module per method."""
