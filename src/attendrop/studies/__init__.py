"""Studies: many runs over tasks, methods and seeds, on worker processes or on many machines, and what they say."""
