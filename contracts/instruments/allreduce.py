"""An all-reduce measurement with a time limit, before a run and over its ranks: what bandwidth has the fabric?

    torchrun --standalone --nproc_per_node=8 -m contracts.instruments.allreduce --floor 350

Bandwidths by the definitions of nccl-tests (doc/PERFORMANCE.md): algbw = bytes / seconds, and for an all-reduce
busbw = algbw · 2(n − 1)/n, the bandwidth of the slowest link, which does not depend on the number of ranks. GB is
10⁹ bytes. The first rounds, which build rings and buffers, are dropped; the result is the median of the others on the
slowest rank. The sums are checked too: a fabric that is fast and wrong is not fit.

Exit code 0 when the floor is reached, 1 when it is not or a sum is wrong, 2 for wrong arguments.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from contracts.instruments.ranks import backend_of, device, here, torch_distributed

WARMUPS = 3


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The result of one measurement.

    Args:
        ranks: size of the world.
        backend: nccl on GPUs, gloo on CPUs.
        message: bytes that each rank contributes.
        seconds: of each measured round, on its slowest rank, in order.
        right: whether every element of the last sum was exact on every rank.
    """

    ranks: int
    backend: str
    message: int
    seconds: tuple[float, ...]
    right: bool

    @property
    def algbw(self) -> float:
        """GB/s of the median round."""
        return self.message / statistics.median(self.seconds) / 1e9

    @property
    def busbw(self) -> float:
        return self.algbw * 2 * (self.ranks - 1) / self.ranks


def reasons(measured: Pass, floor: float) -> tuple[str, ...]:
    """Every reason against a launch; `floor` is the required bus bandwidth in GB/s."""
    found = []
    if measured.ranks < 2:
        found.append(f"ranks = {measured.ranks}: one rank reduces nothing; start it under torchrun")
    if not measured.right:
        found.append("sum = wrong: a rank holds another sum than the others; drain the node")
    if not measured.busbw >= floor:
        found.append(f"busbw = {measured.busbw:.3g} GB/s: the floor is {floor:g}; look at PREF-01 and PREF-04 first")
    return tuple(found)


def measure(*, message: int, rounds: int, timeout_s: float) -> Pass:
    """Join torchrun's world and all-reduce `message` bytes, `WARMUPS` + `rounds` times.

    No rank waits longer than `timeout_s` for the others.
    """
    torch, dist = torch_distributed()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(here().local_rank)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout_s))
    try:
        return reduce_over(dist.group.WORLD, message=message, rounds=rounds)
    finally:
        dist.destroy_process_group()


def reduce_over(group: Any, *, message: int, rounds: int, offset: float = 0.0) -> Pass:
    """Measure over the ranks of a process group, whose timeout bounds how long they wait for each other.

    Args:
        offset: added to the last element that this rank contributes; an injected fault.

    Raises:
        RuntimeError: torch's own, on a rank whose peers were late.
    """
    torch, dist = torch_distributed()
    where = device()
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    source_N = torch.full((max(1, message // 4),), float(rank + 1), device=where)  # N float32 elements
    source_N[-1] += offset
    kept_R = torch.zeros(rounds, dtype=torch.float64, device=where)  # R rounds, in seconds
    summed_N = source_N
    for at in range(-WARMUPS, rounds):
        summed_N = source_N.clone()
        dist.barrier(group=group)
        _settle(torch, where)
        started = time.perf_counter()
        dist.all_reduce(summed_N, group=group)
        _settle(torch, where)
        if at >= 0:
            kept_R[at] = time.perf_counter() - started
    dist.all_reduce(kept_R, op=dist.ReduceOp.MAX, group=group)  # a step waits for the slowest rank
    wrong = torch.tensor([float((summed_N != ranks * (ranks + 1) / 2).any())], device=where)
    dist.all_reduce(wrong, op=dist.ReduceOp.MAX, group=group)
    return Pass(
        ranks=ranks,
        backend=backend_of(where.type),
        message=source_N.numel() * source_N.element_size(),
        seconds=tuple(float(each) for each in kept_R.tolist()),
        right=not wrong.item(),
    )


def _settle(torch: Any, where: Any) -> None:
    """Wait until the GPU's queue is empty; a CPU has none."""
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m contracts.instruments.allreduce", description="PREF-03")
    parser.add_argument("--floor", type=float, required=True, help="bus bandwidth that must be reached, GB/s")
    parser.add_argument("--mib", type=int, default=256, help="message of a rank, MiB (default 256)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds that are kept (default 10)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a rank waits for the others (default 60)")
    asked = parser.parse_args(arguments)
    if not (0 < asked.floor < float("inf") and 1 <= asked.mib <= 16384 and 1 <= asked.rounds <= 1000):
        parser.error("floor must be above 0, mib 1 … 16384, rounds 1 … 1000: the pass is bounded")
    if "RANK" not in os.environ:
        parser.error("RANK is not set: start it under torchrun, one process a GPU")
    try:
        measured = measure(message=asked.mib * 2**20, rounds=asked.rounds, timeout_s=asked.timeout)
    except RuntimeError as error:  # a rank that did not join, or died
        line = (str(error).splitlines() or [type(error).__name__])[0]
        sys.stdout.write(json.dumps({"rank": os.environ["RANK"], "against": [f"pass = unfinished: {line}"]}) + "\n")
        return 1
    found = reasons(measured, asked.floor)
    if os.environ["RANK"] == "0":
        body = asdict(measured) | {"algbw": measured.algbw, "busbw": measured.busbw, "floor": asked.floor}
        sys.stdout.write(json.dumps(body | {"against": found}) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
