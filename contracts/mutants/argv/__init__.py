"""Mutants of ARGV, under the file names of `contracts/checks/argv`."""

from contracts.mutants.argv import (  # isort: skip
    command,
    overrides,
    parsing,
)

__all__ = [
    "command",
    "overrides",
    "parsing",
]
