"""Checkpoints: written whole, found, read back, thrown away in time. `checkpoint.py` is the page to begin with."""
