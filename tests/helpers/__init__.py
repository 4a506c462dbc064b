"""Models, data and oracles for several tests."""
