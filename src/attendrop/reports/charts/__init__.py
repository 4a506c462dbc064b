"""Figures of finished runs, one file per kind."""
