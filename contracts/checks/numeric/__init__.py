"""The promises about numbers, in reading order. No file here loads torch when it is imported: `instruments` does, when
a check first uses one of them."""

from contracts.checks.numeric import (  # isort: skip
    routing,  # tokens → experts and gates
    experts,  # tokens to their experts and back
    dropping,  # capacity: who finds no slot
    scan,  # M: what it sees, carries and keeps apart
    mamba,  # M as Mamba-2: its recurrence
    streams,  # residual streams beside each other
    prediction,  # heads that look ahead
    loss,  # what is averaged over what
)

__all__ = ["dropping", "experts", "loss", "mamba", "prediction", "routing", "scan", "streams"]
