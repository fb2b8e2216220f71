"""ARGV: recipe → the words of a command, and back."""

from contracts.checks.argv import (  # isort: skip
    command,  # recipe → the words of a command
    overrides,  # single fields changed from the command line
    parsing,  # what the launcher's parser reads in the words
)

__all__ = [
    "command",
    "overrides",
    "parsing",
]
