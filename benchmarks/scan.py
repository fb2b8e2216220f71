"""The scan of Mamba-2 (SSD): our chunks in eager and compiled, and mamba-ssm's kernel.

2 sequences of 4096 tokens, 56 heads of 64 in 8 groups, 64 states: NAM56R's own. Bytes are those that any scan must
move forward: its inputs once and its output once.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks._measure import Row, timed, tried
from contracts.spec import Mamba
from contracts.stacks.reference.model.blocks.chunked_scan import chunked_scan
from contracts.stacks.reference.model.blocks.common import packing

CHUNK = 64
Inputs = dict[str, Tensor]
Scan = Callable[[Inputs], Tensor]
Make = Callable[[Scan, Inputs], Callable[[], None]]


def measured(device: str, small: bool) -> Iterator[tuple[str, Row]]:
    """A table's title and a row of it, as it is measured."""
    mamba, shape = (Mamba(heads=4, head_dim=16, state=16, groups=2), (2, 100)) if small else (Mamba(), (2, 4096))
    wait = 0.2 if small else 2.0
    inputs = _inputs(mamba, shape, device)
    moved = float(sum(each.numel() * 4 for each in inputs.values()) + inputs["x"].numel() * 4)
    pack = packing(inputs["x"])

    def ours(inputs: Inputs) -> Tensor:
        dt, per = inputs["dt"], mamba.heads // mamba.groups
        b, c = (inputs[name].repeat_interleave(per, dim=2) for name in ("B", "C"))
        return chunked_scan(dt[..., None] * inputs["x"], dt * inputs["A"], b, c, pack, None, CHUNK)[0]

    for title, make, counted in (("scan, forward", _forward, moved), ("scan, forward and backward", _both, None)):

        def row(name: str, scan: Callable[[], Scan], make: Make = make, counted: float | None = counted) -> Row:
            return tried(name, lambda: timed(name, make(scan(), inputs), bytes=counted, seconds=wait))

        yield title, row("reference, eager", lambda: ours)
        yield title, row("reference, compiled", lambda: torch.compile(ours))
        yield title, row("mamba-ssm", _mamba_ssm)


def _inputs(mamba: Mamba, shape: tuple[int, int], device: str) -> Inputs:
    grouped = (*shape, mamba.groups, mamba.state)
    return {
        "x": torch.randn(*shape, mamba.heads, mamba.head_dim, device=device),
        "dt": F.softplus(torch.randn(*shape, mamba.heads, device=device) - 3),
        "A": -torch.rand(mamba.heads, device=device) * 15 - 1,
        "B": torch.randn(grouped, device=device),
        "C": torch.randn(grouped, device=device),
    }


def _forward(scan: Scan, inputs: Inputs) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            scan(inputs)

    return run


def _both(scan: Scan, inputs: Inputs) -> Callable[[], None]:
    leaves = {name: each.clone().requires_grad_() for name, each in inputs.items()}
    dy = torch.randn_like(inputs["x"])

    def run() -> None:
        torch.autograd.grad(scan(leaves), list(leaves.values()), dy)

    return run


def _mamba_ssm() -> Scan:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    def scan(inputs: Inputs) -> Tensor:
        y: Tensor = mamba_chunk_scan_combined(
            inputs["x"], inputs["dt"], inputs["A"], inputs["B"], inputs["C"], chunk_size=CHUNK
        )
        return y

    return scan
