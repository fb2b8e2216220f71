"""How long something takes on a device, and what the device can do at most. All of a table is measured in one run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.benchmark import Timer

WARM = 3


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement.

    Args:
        seconds: the median of a call. spread: the interquartile range over the median.
        first: seconds of the first call, if it compiles.
        flops, bytes: of a call, counted on paper; None where nobody counted them.
        words: why it was not run.
    """

    name: str
    seconds: float | None = None
    first: float | None = None
    spread: float = 0.0
    flops: float | None = None
    bytes: float | None = None
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What the device was seen to do: FLOP/s of a large bfloat16 product, bytes/s of a large copy (read and write)."""

    flops: float
    bytes: float


def timed(
    name: str, run: Callable[[], Any], *, flops: float | None = None, bytes: float | None = None, seconds: float = 2.0
) -> Row:
    """The median over at least `seconds` of calls, after some to warm up. `Timer` synchronizes with the device."""
    for _ in range(WARM):
        run()
    found = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads()).blocked_autorange(
        min_run_time=seconds
    )
    return Row(name=name, seconds=found.median, spread=found.iqr / found.median, flops=flops, bytes=bytes)


def tried(name: str, make: Callable[[], Row]) -> Row:
    """The result of `make`; if it cannot measure (a package is missing, a kernel refuses), a row that says why."""
    try:
        return make()
    except Exception as error:  # a peer may fail in any way, and the others are still measured
        return Row(
            name=name, words=f"not run: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )


def ceiling(device: str, small: bool) -> Ceiling:
    side = 512 if small else 8192
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = timed("product", lambda: one @ other, seconds=1.0)
    source = torch.empty((1 << 24) if small else (1 << 31), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = timed("copy", lambda: target.copy_(source), seconds=1.0)
    assert product.seconds is not None
    return Ceiling(flops=2 * side**3 / product.seconds, bytes=2 * source.numel() / copy.seconds)


HEADER = """
### {title}

| what | ms | ratio | TFLOP/s | of the product | GB/s | of the copy | first call, s |
|---|---|---|---|---|---|---|---|"""


def line(row: Row, first: float | None, top: Ceiling) -> str:
    """A row of a table as Markdown; `ratio` is the first row's time over its own: above 1 is faster than the first."""
    if row.seconds is None:
        return f"| {row.name} | {row.words} | | | | | | |"
    cells = [row.name, f"{1e3 * row.seconds:.3f} ±{row.spread:.0%}", f"{(first or row.seconds) / row.seconds:.2f}"]
    for done, unit, most in ((row.flops, 1e12, top.flops), (row.bytes, 1e9, top.bytes)):
        rate = None if done is None else done / row.seconds
        cells += ["", ""] if rate is None else [f"{rate / unit:.3g}", f"{rate / most:.1%}"]
    return f"| {' | '.join([*cells, '' if row.first is None else f'{row.first:.1f}'])} |"
