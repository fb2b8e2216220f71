"""Mutants of PAT, under the file names of `contracts/checks/pattern`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""

from contracts.mutants.pattern import (  # isort: skip
    layers,
    hybrid_syntax,
    pipeline_stages,
)

__all__ = [
    "hybrid_syntax",
    "layers",
    "pipeline_stages",
]
