"""Regularisation methods, a module for each method, or for each family of methods that share a shape."""
