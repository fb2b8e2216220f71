"""Frozen values, their arithmetic, and the questions. Standard library only; importable in milliseconds."""
