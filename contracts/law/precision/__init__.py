"""PREC: what runs in FP8 and what does not."""
