"""rankproof: the conformance suite that gates merges to hybrid LLM training stacks.

The public words of a stack under test, and of a project's own tests. This package imports `contracts`, which has the
suite, only when one of them is asked for: a repository may have a package `contracts` of its own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contracts.observe.entry import observing
    from contracts.spec import NotOffered, Party, Refused, Stack, refuse
    from rankproof.pytest_plugin import parametrize_with_contracts

__all__ = ["NotOffered", "Party", "Refused", "Stack", "observing", "parametrize_with_contracts", "refuse"]

_PLACES = {
    "observing": "contracts.observe.entry",
    "parametrize_with_contracts": "rankproof.pytest_plugin",
    **dict.fromkeys(("NotOffered", "Party", "Refused", "Stack", "refuse"), "contracts.spec"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _PLACES[name].startswith("contracts."):
        from rankproof import suite

        suite.load()
    return getattr(importlib.import_module(_PLACES[name]), name)
