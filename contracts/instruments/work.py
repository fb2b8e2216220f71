"""How much of a step this process computes: the multiply-adds of its matrix products, counted as they are dispatched,
and the elements that its optimizer updates.

Only what this process runs eagerly is seen: not a compiled graph, and not a stack in another process.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch._subclasses import FakeTensor  # what DTensor and compilers try operators on, from 2.0 to 2.13
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode  # as torch's own counter uses it, from 2.4 to 2.13
from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

ROOTS = frozenset({"sqrt", "sqrt_", "_foreach_sqrt", "_foreach_sqrt_", "_fused_adam_", "_fused_adamw_"})
"""What Adam asks of each element that it updates, once a step."""


ATTENTION = "_scaled_dot_product_"
BATCHED = frozenset({"bmm", "baddbmm"})


@dataclass
class Work:
    """Floating-point operations of matrix products, by operator, and the elements that Adam updated."""

    products: Counter[str] = field(default_factory=Counter)
    updated: int = 0

    @property
    def operations(self) -> int:
        return self.products.total()

    @property
    def scores(self) -> int:
        """Those of two activations, as in attention: batches of matrices, and torch's own kernels."""
        return sum(count for name, count in self.products.items() if name in BATCHED or "attention" in name)


@contextmanager
def counted() -> Iterator[Work]:
    """Count inside. Of a DTensor the product of this rank's parts counts, not that of the whole tensors."""
    work = Work()
    with _Counts(work):
        yield work


class _Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    def __init__(self, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.work = work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it comes back here with its local tensors
        out = func(*args, **(kwargs or {}))
        if any(issubclass(each, FakeTensor) for each in types):
            return out  # DTensor learns the shape of a result: nothing is computed
        packet = func._overloadpacket
        name, formula = packet.__name__, flop_registry.get(packet)
        if name.startswith(ATTENTION):
            self.work.products[name] += _of_attention(name.endswith("backward"), args)
        elif name == "convolution_backward":
            self.work.products[name] += _of_convolved(*args)
        elif formula is not None:
            self.work.products[name] += int(formula(*args, **(kwargs or {}), out_val=out))
        elif name in ROOTS:
            self.work.updated += sum(each.numel() for each in (args[0] if isinstance(args[0], list) else args[:1]))
        return out


def _of_attention(backward: bool, args: Any) -> int:
    """Every head of a query counts, also where several share a key: torch 2.11's counter takes no such shapes, and no
    counter of torch knows the kernel of CPUs."""
    *grad, query, key, value = (each.shape for each in args[: 3 + backward])
    shapes = [*grad, query, *((*query[:2], *each[2:]) for each in (key, value))]
    return int((sdpa_backward_flop_count if backward else sdpa_flop_count)(*shapes))


def _of_convolved(grad: Any, inputs: Any, weight: Any, *rest: Any) -> int:
    """A gradient costs what the output did. If each channel is convolved by itself, as before a scan, torch's counter
    takes it with all others: in a hybrid that was more than all else."""
    transposed, gradients = rest[4], rest[-1][:2]
    return int(sum(gradients)) * int(conv_flop_count(inputs.shape, weight.shape, grad.shape, transposed))
