"""Mutants of NAME, under the file names of `contracts/checks/names`."""

from contracts.mutants.names import (  # isort: skip
    presets,
    modes_and_hosts,
)

__all__ = [
    "modes_and_hosts",
    "presets",
]
