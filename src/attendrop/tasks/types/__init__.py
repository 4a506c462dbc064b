"""Kinds of tasks, with everything that is specific to each."""
