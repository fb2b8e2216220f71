"""Mutants of `checks.moe.small_models`."""
