"""Compiles one indexing operation with inductor, in a fresh interpreter.

Some builds of torch (nightlies of spring 2026, pytorch#179418) have both a fallback and a decomposition for
`aten.index_add` in bfloat16 and stop with an error. The error depends on the order in which a process compiles: one
success hides it for the rest of the process. So each operation has a separate interpreter.

Arguments: operation, dtype, and `sabotaged` or `as installed`. Prints an `Outcome` as one line of JSON.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from contracts.instruments import numerics
from contracts.spec import Outcome, codec

ROWS, WIDTH = 8, 4  # above 1, because width 1 triggers another bug in inductor's C++
INDEX = (0, 1, 1, 3, 3, 3, 7, 0)  # with repetitions, and with rows that get nothing


def index_add(x: Tensor, index: Tensor) -> Tensor:
    return x.new_zeros(ROWS, WIDTH).index_add(0, index, x)


def index_select(x: Tensor, index: Tensor) -> Tensor:
    """Its backward pass is an index_add, like that of every gather of tokens."""
    return x.index_select(0, index)


def scatter_add(x: Tensor, index: Tensor) -> Tensor:
    return x.new_zeros(ROWS, WIDTH).scatter_add(0, index[:, None].expand(-1, WIDTH), x)


def index_put(x: Tensor, index: Tensor) -> Tensor:
    return x.new_zeros(ROWS, WIDTH).index_put((index,), x, accumulate=True)


OPERATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_add": index_add, "index_select": index_select, "scatter_add": scatter_add, "index_put": index_put,
}  # fmt: skip


def outcome(operation: str, dtype: torch.dtype) -> Outcome:
    """Forward and backward, compiled and compared with eager; or the compiler's error."""
    function, index = OPERATIONS[operation], torch.tensor(INDEX)
    results = []
    for run in (function, torch.compile(function, backend="inductor")):
        x = (torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) / 7).to(dtype).requires_grad_()
        try:
            y = run(x, index)
            (y.float().square()).sum().backward()  # type: ignore[no-untyped-call]  # torch's
        except Exception as error:  # whatever the compiler raises is the answer
            return Outcome(worked=False, words=" ".join(f"{type(error).__name__}: {error}".split())[:500])
        assert x.grad is not None
        results.append(torch.cat((y.detach().double().flatten(), x.grad.double().flatten())))
    eager, compiled = results
    return Outcome(worked=True, words="", apart=numerics.distances(compiled, eager)["L2"].relative)


def sabotage() -> None:
    """Recreate the bug of the nightlies: make inductor reject a fallback for which a decomposition is registered.

    `torch._inductor.lowering.make_fallback`, private, torch 2.12 to 2.14: `override_decomp` skips the check for a
    decomposition. Without it every build fails like those nightlies.
    """
    import torch._inductor.graph
    import torch._inductor.lowering

    modules: tuple[Any, ...] = (torch._inductor.lowering, torch._inductor.graph)
    whole = modules[0].make_fallback

    def without(*arguments: Any, **named: Any) -> Any:
        return whole(*arguments, **{**named, "override_decomp": False})

    for module in modules:
        module.make_fallback = without


if __name__ == "__main__":
    if sys.argv[3] == "sabotaged":
        sabotage()
    sys.stdout.write(codec.dumps(outcome(sys.argv[1], getattr(torch, sys.argv[2]))) + "\n")
