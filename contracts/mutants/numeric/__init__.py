"""The counterexamples about numbers: their parts are torch modules, so they are read only where there is torch.

File names are those of `checks/numeric/`.
"""

from contracts.mutants.numeric import dropping, experts, loss, mamba, prediction, routing, scan, streams

__all__ = ["dropping", "experts", "loss", "mamba", "prediction", "routing", "scan", "streams"]
