"""The law, in reading order: the table of contents. A new subject is a file here and a line below."""

from contracts.checks import (  # isort: skip
    pattern,
    names,
    recipe,
    launch,
    environment,
    topology,
    groups,
    gate,
    unwritten,
)

__all__ = ["environment", "gate", "groups", "launch", "names", "pattern", "recipe", "topology", "unwritten"]
