"""Mamba-2 and Mamba-3, one token at a time."""
