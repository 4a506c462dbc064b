"""Files that are written and read, and what depends on a kind of model, device or optimizer."""
