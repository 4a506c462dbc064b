"""Random numbers that depend on the seed, the step, the layer and the position alone, and what they choose from."""
