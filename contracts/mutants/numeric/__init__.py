"""The counterexamples about numbers: their parts are torch modules, so they are read only where there is torch.

File names are those of `checks/numeric/`.
"""

from contracts.mutants.numeric import (
    attention,
    dropping,
    experts,
    isolation,
    latent_attention,
    loss,
    mamba,
    mlp,
    prediction,
    rope,
    routing,
    scan,
    sparse_attention,
    streams,
    visibility,
)

__all__ = [
    "attention",
    "dropping",
    "experts",
    "isolation",
    "latent_attention",
    "loss",
    "mamba",
    "mlp",
    "prediction",
    "rope",
    "routing",
    "scan",
    "sparse_attention",
    "streams",
    "visibility",
]
