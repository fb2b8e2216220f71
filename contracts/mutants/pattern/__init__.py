"""Mutants of PAT, under the file names of `contracts/checks/pattern`.

`contracts.mutants.tensors` reads those that need torch.
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
