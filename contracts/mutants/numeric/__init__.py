"""The counterexamples about numbers: their parts are torch modules, so they are read only where there is torch.

File names are those of `checks/numeric/`.
"""

from contracts.mutants.numeric import prediction, routing, streams

__all__ = ["prediction", "routing", "streams"]
