"""Heads: one file per kind of task, with everything that is specific to that kind."""
