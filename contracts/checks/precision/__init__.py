"""PREC: what runs in FP8 and what does not."""

from contracts.checks.precision import (  # isort: skip
    fp8_scope,  # what is in FP8 and what is not
    fp8_products,  # products of FP8 factors
    delayed_scaling,  # delayed scaling: amax histories and scales
    loss_scale,  # float16 under a loss scale
    loss_scale_growth,  # how a loss scale rises
    half_precision_sums,  # what is added up in half precision
    divergence,  # numbers that are not finite, and who is told
    fp8_widths,  # widths that FP8 accepts
    transformer_engine,  # Transformer Engine's layer and the stack's own: which one ran, and whether they agree
)

__all__ = [
    "delayed_scaling",
    "divergence",
    "fp8_products",
    "fp8_scope",
    "fp8_widths",
    "half_precision_sums",
    "loss_scale",
    "loss_scale_growth",
    "transformer_engine",
]
