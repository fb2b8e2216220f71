"""The counterexamples about numbers: their parts are torch modules, so they are read only where there is torch.

File names are those of `checks/numeric/`.
"""

from contracts.mutants.numeric import (
    accumulation,
    attention,
    dropping,
    experts,
    gradients,
    isolation,
    latent_attention,
    ledger,
    loss,
    mamba,
    mlp,
    model,
    optimizer_table,
    prediction,
    rope,
    routing,
    scan,
    schedule,
    sparse_attention,
    streams,
    updates,
    visibility,
)

__all__ = [
    "accumulation",
    "attention",
    "dropping",
    "experts",
    "gradients",
    "isolation",
    "latent_attention",
    "ledger",
    "loss",
    "mamba",
    "mlp",
    "model",
    "optimizer_table",
    "prediction",
    "rope",
    "routing",
    "scan",
    "schedule",
    "sparse_attention",
    "streams",
    "updates",
    "visibility",
]
