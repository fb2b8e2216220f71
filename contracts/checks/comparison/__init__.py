"""CMP: which two runs may be compared."""

from contracts.checks.comparison import (  # isort: skip
    run_comparison,  # which two runs may be compared
)

__all__ = [
    "run_comparison",
]
