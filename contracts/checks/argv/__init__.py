"""ARGV: recipe → the words of a command, and back."""

from contracts.checks.argv import (  # isort: skip
    command,  # recipe → the words of a command
    overrides,  # single fields changed by text
    parsing,  # what the launcher reads out of the words
)

__all__ = [
    "command",
    "overrides",
    "parsing",
]
