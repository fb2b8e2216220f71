"""The counterexamples, a folder a family, under the file names of the checks that they must fail.

Those that are torch modules are entered by `contracts.mutants.tensors`, where there is torch.
"""

from contracts.mutants import (  # isort: skip
    pattern,
    names,
    recipe,
    argv,
    environment,
    topology,
    preflight,
    manifest,
    install,
    storage,
    memory,
    receipts,
    comparison,
    goodput,
    kernels,
    observe,
    gate,
)

__all__ = [
    "argv",
    "comparison",
    "environment",
    "gate",
    "goodput",
    "install",
    "kernels",
    "manifest",
    "memory",
    "names",
    "observe",
    "pattern",
    "preflight",
    "receipts",
    "recipe",
    "storage",
    "topology",
]
