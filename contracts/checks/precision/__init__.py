"""PREC: what is in FP8 and what is not."""

from contracts.checks.precision import (  # isort: skip
    fp8_scope,  # what is in FP8 and what is not
    fp8_products,  # products of FP8 factors
    delayed_scaling,  # delayed scaling: its rings and scales
    fp8_widths,  # widths that FP8 takes
    transformer_engine,  # transformer Engine's layer and the stack's own: which one ran, and that the numbers agree
)

__all__ = [
    "delayed_scaling",
    "fp8_products",
    "fp8_scope",
    "fp8_widths",
    "transformer_engine",
]
