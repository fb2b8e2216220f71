"""The promises about numbers, in reading order. No file here loads torch when it is imported: `instruments` does, when
a check first uses one of them."""

from contracts.checks.numeric import (  # isort: skip
    attention,  # A: heads, softmax, what a block holds
    latent_attention,  # A with MLA, in both its forms
    rope,  # angles, places, QK norm
    sparse_attention,  # A with DSA: what is selected, and what follows
    visibility,  # who sees whom in A
    mlp,  # E without experts
    routing,  # tokens → experts and gates
    experts,  # tokens to their experts and back
    dropping,  # capacity: who finds no slot
    scan,  # M: what it sees, carries and keeps apart
    mamba,  # M as Mamba-2: its recurrence
    streams,  # residual streams beside each other
    prediction,  # heads that look ahead
    loss,  # what is averaged over what
    isolation,  # what a position of the whole model may see
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
