"""The promises about numbers, in reading order. No file here loads torch when it is imported: `instruments` does, when
a check first uses one of them."""

from contracts.checks.numeric import (  # isort: skip
    routing,  # tokens → experts and gates
    streams,  # residual streams beside each other
    prediction,  # heads that look ahead
)

__all__ = ["prediction", "routing", "streams"]
