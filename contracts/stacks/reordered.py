"""The reference with products and sums in another order: correct stacks that differ from it only by rounding.

If a contract holds for the reference and not for these, its tolerance depends on one machine's arithmetic.
`--stack contracts.stacks.reordered:Reversed` (and so on) puts them under test, in one process and on several ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from contracts.spec import Session
from contracts.stacks.reference.stack import Reference

if TYPE_CHECKING:
    from contracts.instruments.reorder import Order


COMPUTES = ("block_weights", "built", "initial", "run_block", "run_model", "sample", "samples", "train")
"""The questions whose answers depend on sums. Compiled code is left out, because it has an order of its own."""


def _in(order: Order, name: str) -> Callable[..., Any]:
    """A question's answer, computed in another order."""
    plain = getattr(Reference, name)

    @functools.wraps(plain)
    def answer(self: Reference, *arguments: Any, **named: Any) -> Any:
        from contracts.instruments.reorder import Reordered  # torch, only where numbers are asked for

        sessions = [each for each in (*arguments, *named.values()) if isinstance(each, Session)]
        if any(each.execution.compile != "none" for each in sessions):  # under a mode nothing would be compiled
            return plain(self, *arguments, **named)
        with Reordered(order):
            return plain(self, *arguments, **named)

    return answer


def _reordered(title: str, order: Order) -> type[Reference]:
    body = {"name": f"reference-{order}", "__doc__": f"The reference, its sums {order}.", "__module__": __name__}
    return type(title, (Reference,), body | {name: _in(order, name) for name in COMPUTES})


Reversed = _reordered("Reversed", "reversed")
Blocked = _reordered("Blocked", "blocked")
Pairwise = _reordered("Pairwise", "pairwise")
Unfused = _reordered("Unfused", "unfused")
