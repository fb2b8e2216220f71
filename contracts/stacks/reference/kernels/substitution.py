"""Replaces kernels in a built block by those of other packages, and records which kernel runs at each site.

S rows · I inputs · O outputs · E experts
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.spec import Kernel, Recipe, Seam, Site
from contracts.stacks.reference.kernels import mamba_ssm, transformer_engine
from contracts.stacks.reference.model.blocks import (
    M2RNN,
    Attention,
    Experts,
    LatentAttention,
    Linear,
    Mamba2,
    Mamba3,
    Mlp,
)

_Call = TypeVar("_Call", bound=Callable[..., Any])


def substitute_kernels(block: nn.Module, recipe: Recipe, seams: tuple[Seam, ...]) -> dict[Site, Kernel]:
    """Put the selected kernels into a block. Returns what ran at each site; filled while the block runs."""
    ran: dict[Site, Kernel] = {}
    actual = {seam.site: seam.actual for seam in seams}
    for module in block.modules():
        if isinstance(module, (Attention, LatentAttention)):
            _matrices(module, "attention", actual, recipe, ran)
        elif isinstance(module, Mlp):
            _matrices(module, "mlp", actual, recipe, ran)
        elif isinstance(module, Experts):
            _experts(module, actual, recipe, ran)
        elif isinstance(module, Mamba2):
            foreign = mamba_ssm.scan(module) if actual.get("scan") == "mamba-ssm" else None
            _exchange(module, "scan", foreign, ran, "scan", "mamba-ssm")
        elif isinstance(module, Mamba3):
            _exchange(module, "scan", None, ran, "scan", "native")
        elif isinstance(module, M2RNN):
            _exchange(module, "recur", None, ran, "recurrence", "native")
    return ran


def _matrices(
    owner: nn.Module, site: Site, actual: Mapping[Site, Kernel], recipe: Recipe, ran: dict[Site, Kernel]
) -> None:
    """The matrices that a module holds itself; an indexer's are its own."""
    for matrix in owner.children():
        if isinstance(matrix, Linear):
            foreign = actual.get(site) == "transformer-engine"
            bridge = transformer_engine.linear(matrix, recipe.fp8) if foreign else None
            _exchange(matrix, "forward", bridge, ran, site, "transformer-engine")


def _experts(experts: Experts, actual: Mapping[Site, Kernel], recipe: Recipe, ran: dict[Site, Kernel]) -> None:
    chosen = actual.get("experts")
    if chosen == "native":
        setattr(experts, "backend", lambda x_SI: "loop")  # noqa: B010  # nn.Module types its attributes as tensors
    if chosen != "transformer-engine":
        setattr(experts, "matmul", _observed(experts.matmul, ran))  # noqa: B010
        return
    bridges = [(each, transformer_engine.grouped(each, recipe.fp8)) for each in experts.parameters()]

    def matmul(x_SI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
        return next(bridge for each, bridge in bridges if each is weight_EOI)(x_SI, ends_E)

    _exchange(experts, "matmul", matmul, ran, "experts", "transformer-engine")


def _exchange(
    owner: nn.Module, method: str, foreign: Callable[..., Any] | None, ran: dict[Site, Kernel], site: Site, name: Kernel
) -> None:
    """A method noted as it runs: another's where there is one, else the block's own."""
    call = getattr(owner, method) if foreign is None else foreign
    setattr(owner, method, _noted(call, ran, site, "native" if foreign is None else name))


def _noted(call: _Call, ran: dict[Site, Kernel], site: Site, kernel: Kernel) -> _Call:
    @functools.wraps(call)
    def through(*given: Any, **named: Any) -> Any:
        out = call(*given, **named)
        ran[site] = kernel
        return out

    return through  # type: ignore[return-value]  # the same signature


def _observed(matmul: Callable[..., Tensor], ran: dict[Site, Kernel]) -> Callable[..., Tensor]:
    """The experts' product, noted by the operators that it ran and not by what chose them."""

    def through(*given: Any) -> Tensor:
        operators = _Operators()
        with operators:
            out = matmul(*given)
        grouped = torch.ops.aten._grouped_mm in operators.seen
        ran["experts"] = "torch-grouped" if grouped else "native"
        return out

    return through


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Which operators run. `torch.utils._python_dispatch` is the documented place of this class, up to torch 2.13."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.seen: set[Any] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.add(func.overloadpacket)
        return func(*args, **(kwargs or {}))
