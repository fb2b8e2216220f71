"""Answers that fork. In a process that has used CUDA a fork is of no use, so a process without a device gives them."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from contracts.instruments import accelerator
from contracts.spec.interpreter import python
from contracts.stacks.launched import Launched

Answer = TypeVar("Answer", bound=Callable[..., Any])
SERVED = "RANKPROOF_WITHOUT_CUDA"
"""Set in the other process: a stack whose own import uses CUDA would ask for a third."""

FORKING = frozenset({"write_checkpoint", "write_on_ranks", "retire_checkpoints"})
"""Questions that a package answers in a fork. In a fork after CUDA torch's checkpoints fail: a tensor of the CPU too is
asked whether CUDA has pinned it, and no variable of the environment changes that."""


def without_cuda(answer: Answer) -> Answer:
    """An answer of a stack that comes from another process of the same stack once this one has used CUDA."""

    @functools.wraps(answer)
    def asked(self: object, *given: Any, **named: Any) -> Any:
        if not accelerator.used() or SERVED in os.environ:
            return answer(self, *given, **named)
        other = _other(os.getpid(), f"{type(self).__module__}:{type(self).__qualname__}")
        return getattr(other, answer.__name__)(*given, **named)

    return cast(Answer, asked)


def unforked(party: object, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """An answer of a party, from another process if it forks and this one has used CUDA."""
    if name not in FORKING:
        return answer

    def here(_: object, *given: Any, **named: Any) -> Any:
        return answer(*given, **named)

    here.__name__ = name
    return functools.partial(without_cuda(here), party)


@functools.cache
def _other(process: int, stack: str) -> Launched:
    """The stack in a process that sees no device, for one process and not for its forks."""
    command = python("-m", "contracts.stacks.serve", stack)
    return Launched(command, env={accelerator.VISIBLE: "", SERVED: "1", "OMP_NUM_THREADS": "1"}, persistent=True)
