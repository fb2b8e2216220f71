"""KRN: which kernel may run where, and which ran."""

from contracts.checks.kernels import (  # isort: skip
    catalogue,  # which kernel may run where
    kernel_selection,  # whose kernel runs at a site, and why
    executed_kernels,  # what ran, compared with what was declared
)

__all__ = [
    "catalogue",
    "executed_kernels",
    "kernel_selection",
]
