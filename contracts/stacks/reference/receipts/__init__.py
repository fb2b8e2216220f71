"""Receipts of runs: written, read, compared."""
