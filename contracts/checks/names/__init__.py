"""NAME: presets, aliases, labels, modes, hosts."""

from contracts.checks.names import (  # isort: skip
    presets,  # presets, aliases, labels
    modes_and_hosts,  # what the name of a mode, a degree or a host means
)

__all__ = [
    "modes_and_hosts",
    "presets",
]
