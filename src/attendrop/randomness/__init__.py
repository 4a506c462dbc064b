"""Random numbers that depend only on seed, step, layer and position, and the regions they sample from."""
