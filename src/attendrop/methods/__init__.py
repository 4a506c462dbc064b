"""Regularisation methods, one module each."""
