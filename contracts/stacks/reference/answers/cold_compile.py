"""Compile and run one block in a fresh interpreter. The call comes on standard input.

Arguments: module and name of the stack, backend. Prints an `Outcome` as one line of JSON.
"""

import importlib
import sys
from typing import cast

from contracts.spec import Backend, BlockCall, Outcome, codec
from contracts.stacks.reference.answers import blocks as branch
from contracts.stacks.reference.model.compile import compiled
from contracts.stacks.reference.model.parts import Parts


def compile_outcome(parts: Parts, call: BlockCall, backend: Backend) -> Outcome:
    """Compile and run the block forward and backward; the compiler's own words where it fails."""
    held = branch.build_block(call, parts)
    try:
        made = compiled(held, lambda *given: branch.forward_block(held, *given), backend)
        run = branch.run_call(held, made, call, parts)
    except Exception as error:  # whatever the compiler raises is the answer
        return Outcome(worked=False, words=" ".join(f"{type(error).__name__}: {error}".split())[:500])
    return Outcome(worked=True, words="", run=run)


if __name__ == "__main__":
    module, name, backend = sys.argv[1:]
    stack = getattr(importlib.import_module(module), name)()
    told = stack.compile_here(codec.loads(BlockCall, sys.stdin.read()), cast(Backend, backend))
    sys.stdout.write(codec.dumps(told) + "\n")
