"""CMP: which two runs compare."""

from contracts.checks.comparison import (  # isort: skip
    run_comparison,  # which two runs compare
)

__all__ = [
    "run_comparison",
]
