"""Bytes of tensors on a device while code runs: counted by the allocator on CUDA, by torch's profiler on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Bytes at the end of one measurement and their peak in it, relative to the creation of the meter."""

    held: int
    peak: int
    reserved: int


class Meter:
    """Counts bytes from its creation, in consecutive measurements."""

    def __init__(self, device: str) -> None:
        self.cuda = torch.device(device).type == "cuda"
        self.held = 0
        if self.cuda:
            _take_workspaces(device)
            torch.cuda.empty_cache()
            self.before, self.reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def during(self, run: Callable[[], object]) -> Seen:
        return self._on_cuda(run) if self.cuda else self._on_a_cpu(run)

    def _on_cuda(self, run: Callable[[], object]) -> Seen:
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        reserved = torch.cuda.max_memory_reserved() - self.reserved
        return Seen(held=held - self.before, peak=peak - self.before, reserved=reserved)

    def _on_a_cpu(self, run: Callable[[], object]) -> Seen:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            run()
        held, peak = self.held, self.held
        for change in _changes(found):
            held += change
            peak = max(peak, held)
        self.held = held
        return Seen(held=held, peak=peak, reserved=peak)


def _take_workspaces(device: str) -> None:
    """Multiply forward and backward. cuBLAS has a workspace for each thread that multiplies (32 MiB on SM90), which the
    allocator counts from the first product on; autograd's thread has one of its own. No step holds them.
    """
    for dtype in (torch.float32, torch.bfloat16):
        factor = torch.ones(64, 64, device=device, dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(factor, factor, factor[0]).sum().backward()  # type: ignore[no-untyped-call]  # torch's


def _changes(found: profile) -> list[int]:
    """Bytes allocated (positive) and freed (negative), in time order.

    `profiler.kineto_results.events()`, private, torch 2.1 to 2.13: the public tables add these up by operator.
    """
    results = found.profiler.kineto_results if found.profiler is not None else None
    events = [] if results is None else [each for each in results.events() if each.name() == "[memory]"]
    events.sort(key=lambda each: each.start_ns())
    return [each.nbytes() for each in events]  # type: ignore[attr-defined]  # its stub lacks it
