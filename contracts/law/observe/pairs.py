"""Two runs that must do the same (OBS-01, OBS-09, OBS-11)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from contracts.contract import contract
from contracts.law.observe._trace import merged_of, none_of
from contracts.observe.merged import Merged
from contracts.spec import NotOffered, Observing

if TYPE_CHECKING:
    from contracts.observe.diff import Comparison


@contract("OBS-01", asks="trace", cases={"spread": ("one-rank", "spread")}, source="F01 F02", slow=True)
def a_spread_run_is_that_of_one_rank(stack: Observing, reference: str, other: str) -> None:
    """From equal weights and rows, a run on several ranks has the outputs, gradients and weights of the run on one
    rank, up to rounding.

    A mean that is taken twice, or a gradient that a rank adds and should not, trains another model.
    """
    one, spread = merged_of(stack, reference), merged_of(stack, other)
    found = _compared(one, spread)
    if found.incomparable:
        raise NotOffered(f"the runs cannot be compared: {found.incomparable}", "case")
    none_of([*map(str, found.differences), *_holding(found)], "no tensor of one run is in the other")


@contract("OBS-09", asks="trace", cases={"resumed": ("whole", "resumed")}, source="F07", slow=True)
def a_resumed_run_goes_on_as_if_it_had_not_ended(stack: Observing, reference: str, other: str) -> None:
    """A resumed run begins with the weights and rows with which the uninterrupted one continues, and has its moments,
    rates and weights in every later step. If forward passes draw random numbers, it has the same random states too.

    What a checkpoint forgets begins anew, and the loss recovers from it.
    """
    resumed, steps = merged_of(stack, other), merged_of(stack, reference).steps
    if steps <= resumed.steps:
        raise NotOffered(f"the whole run has {steps} steps and the resumed one {resumed.steps}: none before it", "case")
    whole = merged_of(stack, reference, steps - resumed.steps)
    wrong = [*_modes(whole, resumed), *_same(whole, resumed), *_states(whole, resumed)]
    none_of(wrong, "not one tensor of the whole run was compared with that of the resumed one")


@contract("OBS-11", asks="trace", cases={"recomputed": ("plain", "recomputed")}, source="F13", slow=True)
def a_recomputed_run_is_the_plain_one(stack: Observing, reference: str, other: str) -> None:
    """A run that is recomputed, compiled, offloaded or otherwise wrapped has the same outputs, in the same dtypes, and
    the same gradients and weights as the plain one, and advances no random state twice.

    Dropout that draws again in the second forward pass trains on gradients of another network. A region that leaves
    autocast computes in another precision.
    """
    plain, wrapped = merged_of(stack, reference), merged_of(stack, other)
    wrong = [*_dtypes(plain, wrapped), *_same(plain, wrapped)]
    none_of(wrong, "not one tensor of the plain run was compared with that of the other")


def _compared(one: Merged, other: Merged) -> Comparison:
    from contracts.observe.diff import compare  # torch, which the law does not need

    return compare(one, other)


def _same(one: Merged, other: Merged) -> Iterator[str]:
    from contracts.observe.diff import COMPILED

    found = _compared(one, other)
    if COMPILED in found.incomparable:
        raise NotOffered(found.incomparable, "case")
    if found.incomparable and not found.nothing:
        yield found.incomparable
    yield from map(str, found.differences)
    yield from _holding(found)


def _holding(found: Comparison) -> Iterator[str]:
    """One empty text for each pair that was compared, if every phase has one."""
    return itertools.repeat("", 0 if found.nothing else sum(found.compared.values()))


def _dtypes(plain: Merged, wrapped: Merged) -> Iterator[str]:
    for step in range(1, min(plain.steps, wrapped.steps) + 1):
        got = wrapped.outputs(step)
        for name, want in plain.outputs(step).items():
            if name in got and got[name].dtypes != want.dtypes:
                yield (
                    f"step {step}: the output of {name} is {' and '.join(got[name].dtypes)}, and "
                    f"{' and '.join(want.dtypes)} in the plain run"
                )


def _modes(whole: Merged, resumed: Merged) -> Iterator[str]:
    """A mode decides whether dropout draws, and so stands in front of the random states."""
    for step in range(1, resumed.steps + 1):
        want, got = ({name for _, line in each.lines("modes", step) for name in line["evaluating"]}
                     for each in (whole, resumed))  # fmt: skip
        for more, mode, other in ((got - want, "evaluation", "training"), (want - got, "training", "evaluation")):
            if more:
                yield (
                    f"step {step}: {len(more)} modules are in {mode} mode, such as {min(more)}, and in {other} mode in "
                    "the whole run"
                )


def _states(whole: Merged, resumed: Merged) -> Iterator[str]:
    """What only bits show: random states and moments, where both runs have the same ranks."""
    if whole.trace.world != resumed.trace.world:
        return
    steps = range(1, resumed.steps + 1)
    draws = any(line["drawn"] for run in (whole, resumed) for step in steps for _, line in run.lines("drawn", step))
    for step in steps:
        for kind, fields, words in (
            ("input", ("microbatch",), "the random state before microbatch {0}"),
            ("moment", ("name", "moment"), "the moment {1} of {0}"),
        ):
            if kind == "input" and not draws:
                continue  # nothing that is computed depends on it
            bits = "random" if kind == "input" else "bits"
            want = {(rank.rank, *(line[each] for each in fields)): line.get(bits)
                    for rank, line in whole.lines(kind, step)}  # fmt: skip
            for rank, line in resumed.lines(kind, step):
                at = tuple(line[each] for each in fields)
                if want.get((rank.rank, *at), line.get(bits)) != line.get(bits):
                    yield f"step {step}: {words.format(*at)} differs from the whole run's on rank {rank.rank}"
