"""Heads: one file per kind of task, with all that the rest of the library asks of a kind."""
