"""Tasks: data, encoding, metrics and predictions."""
