"""Models, data and oracles that tests share."""
