"""Components shared by several methods."""
