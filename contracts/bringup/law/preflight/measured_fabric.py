"""The fabric under load, as the ranks of a running job measure it.

Bandwidths follow nccl-tests (doc/PERFORMANCE.md): algbw = bytes / seconds, and for an all-reduce over n ranks busbw =
algbw · 2(n − 1)/n. The owner of a GPU fabric sets its floor. Gloo on CPUs has no floor: there a pass shows only that
the measurement sums correctly and ends, and nothing about a fabric.
"""

import math
import statistics
import time

from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.spec import FabricPass, Upset, World

PATIENCE_S = 60.0


QUIET_S, SLACK_S = 0.75, 3.0  # what a machine may add to a time limit: at first, and again where that is too little


# bytes per rank, rounds kept, ranks, busbw / algbw computed by hand
PASSES = {
    "1-mib-on-2": (2**20, 5, 2, 1.0),
    "3-mib-on-3": (3 * 2**20, 3, 3, 4 / 3),
    "1-mib-on-4": (2**20, 5, 4, 1.5),
    "one-element-on-4": (4, 7, 4, 1.5),
    "16-mib-on-8": (2**24, 3, 8, 1.75),
}


@contract("PREF-03", asks="fabric_pass", cases=PASSES, source="playbook; nccl-tests", tier="dist")
def a_pass_measures_the_fabric(stack: World, message: int, rounds: int, world: int, factor: float) -> None:
    """One bounded all-reduce pass over the world returns correct sums, keeps the requested number of rounds, reports
    both bandwidths of its median round, and reaches the floor that is set for the fabric.

    A GPU fabric without a floor is a violation: a figure that is compared with nothing gates nothing. Gloo has no
    floor, so its pass only has to be correct, positive and finite.
    """
    found = stack.fabric_pass(message, rounds, PATIENCE_S, Upset())
    assert found.right, f"a pass without an injected fault gave a wrong sum or did not end on rank {here().rank}"
    assert found.ranks == world, f"the pass went over {found.ranks} ranks, the world has {world}"
    assert found.message == message, f"each rank contributed {found.message} bytes, asked for {message}"
    kept = len(found.seconds)
    assert kept == rounds, f"{kept} rounds were kept, asked for {rounds}"
    positive = all(math.isfinite(each) and each > 0 for each in found.seconds)
    assert positive, f"a round took no time, or no finite one: {found.seconds}"
    _bandwidths(found, factor)
    if found.backend == "nccl":
        assert found.floor is not None, "no floor is set for this fabric"
        assert found.busbw >= found.floor, f"busbw is {found.busbw:.4g} GB/s, the floor is {found.floor:g}"


def _bandwidths(found: FabricPass, factor: float) -> None:
    algbw = found.message / statistics.median(found.seconds) / 1e9
    assert math.isclose(found.algbw, algbw, rel_tol=1e-6), f"algbw is {found.algbw:.6g} GB/s, expected {algbw:.6g}"
    ratio = found.busbw / found.algbw
    wrong = f"busbw / algbw is {ratio:.4f} over {found.ranks} ranks, expected {factor:.4f}"
    assert math.isclose(ratio, factor, rel_tol=1e-6), wrong


FAULTY = {"on-the-last-of-2": (1, 2), "on-the-first-of-4": (0, 4), "on-rank-2-of-4": (2, 4), "on-rank-5-of-8": (5, 8)}


@contract("PREF-03b", asks="fabric_pass", cases=FAULTY, source="playbook", tier="dist")
def a_wrong_sum_is_seen_by_every_rank(stack: World, faulty: int, world: int) -> None:
    """When one rank contributes an altered last element, no rank of the world reports a correct pass.

    A fabric that is fast and wrong is not fit. A rank that never checks its sum would report it as fit.
    """
    upset = Upset(offset=1.0 if here().rank == faulty else 0.0)
    found = stack.fabric_pass(4096, 3, PATIENCE_S, upset)
    assert not found.right, (
        f"rank {here().rank} of {world} accepts the sum, though rank {faulty} contributed another last element"
    )


LATE = {"rank-0-of-3": (0, 0.5, 3), "one-of-2": (1, 0.5, 2), "the-last-of-4": (3, 0.5, 4), "one-of-8": (6, 0.5, 8)}


@contract("PREF-03c", asks="fabric_pass", cases=LATE, source="playbook", tier="dist")
def a_pass_is_bounded(stack: World, absent: int, timeout_s: float, world: int) -> None:
    """If one rank stays away, the all-reduce pass ends on the other ranks within its time limit, and none of them
    reports it as correct.

    A preflight that can hang is one more way to lose the node.
    """
    for slack_s in (QUIET_S, SLACK_S):
        too_long_s = timeout_s + slack_s + 0.5  # a rank that waits for it exceeds the limit
        away_s = too_long_s if here().rank == absent else 0.0
        started = time.monotonic()
        found = stack.fabric_pass(4096, 3, timeout_s, Upset(late_s=away_s))
        waited = time.monotonic() - started - away_s
        if max(gathered(waited)) < timeout_s + slack_s:
            break
    assert waited < timeout_s + slack_s, (
        f"rank {here().rank} of {world} waited {waited:.1f} s, the limit is {timeout_s:g} s: it did not return within "
        f"{slack_s:g} s more, the allowance for a busy machine"
    )
    assert not found.right, f"rank {here().rank} accepts the sum of a pass that rank {absent} did not join"


def _pass(*seconds: float, ranks: int = 8, right: bool = True, floor: float | None = 350.0) -> FabricPass:
    """2³⁰ bytes over NCCL, with the bandwidths of the median round."""
    middle = statistics.median(seconds) if seconds else math.inf
    algbw = 2**30 / middle / 1e9
    return FabricPass(
        ranks=ranks, backend="nccl", message=2**30, seconds=seconds, algbw=algbw, busbw=algbw * 2 * (ranks - 1) / ranks,
        right=right, floor=floor,
    )  # fmt: skip


# 1.073741824 GB in 5.368 ms are 200.03 GB/s, over eight ranks a bus bandwidth of 350.05; in 5.370 ms it is 349.91.
JUDGED: dict[str, tuple[FabricPass, bool, str]] = {  # pass, fit, a word that a reason must hold
    "reaches-the-floor": (_pass(0.005368), True, ""),
    "just-below-the-floor": (_pass(0.005370), False, "350"),
    "one-slow-round-of-three": (_pass(0.005, 0.1, 0.0051), True, ""),
    "slow-but-for-one-round": (_pass(0.1, 0.001, 0.1), False, "350"),
    "fast-and-wrong": (_pass(0.001, right=False), False, "sum"),
    "did-not-finish": (_pass(right=False), False, "unfinished"),
    "one-rank": (_pass(0.001, ranks=1), False, "rank"),
    "no-floor-set": (_pass(0.001, floor=None), False, "floor"),
}


@contract("PREF-03a", asks="fabric_reasons", cases=JUDGED, source="playbook; nccl-tests")
def a_fabric_is_fit_by_its_floor_and_its_sums(stack: World, measured: FabricPass, fit: bool, named: str) -> None:
    """A measured all-reduce pass is accepted exactly if it finished over several ranks with correct sums and its median
    round reaches the floor that is set. Otherwise the reasons name what is wrong.
    """
    found = stack.fabric_reasons(measured)
    said = "; ".join(found)
    if fit:
        assert not found, f"a fit pass ({measured.busbw:.2f} GB/s, floor {measured.floor}) is refused: {said}"
        return
    assert found, f"a pass of {measured.busbw:.2f} GB/s, floor {measured.floor}, right {measured.right} is called fit"
    assert named in said, f"no reason names {named}: {said}"
