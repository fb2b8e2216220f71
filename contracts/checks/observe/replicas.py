"""What ranks have in common, and what they must not (OBS-02, OBS-06, OBS-10, OBS-12)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from contracts.checks.observe._trace import RUN, none_of, observed
from contracts.contract import contract
from contracts.observe.merged import Merged
from contracts.spec.errors import NotOffered
from contracts.spec.observing import Observing

KINDS = {
    "weight": "the weight {}", "gradient": "the gradient of {}", "updated": "the updated weight {}",
    "moment": "the moment {}",
}  # fmt: skip


@contract("OBS-02", asks="trace", cases=RUN, source="F02 F14", slow=True)
def replicas_are_equal_to_the_bit(stack: Observing) -> None:
    """Ranks that hold the same part of a weight, of a reduced gradient or of a moment hold the same bits of it, before
    and after every step.

    Replicas drift apart without a word: the loss is a mean over them.
    """
    merged = _of_several_ranks(stack)
    none_of(_unlike(merged))


def _unlike(merged: Merged) -> Iterator[str]:
    for step in range(1, merged.steps + 2):
        for kind, words in KINDS.items():
            for name, whole in merged.tensors(kind, step).items():
                for first, second in whole.unlike[:1]:
                    yield f"step {step}: {words.format(name)} has other bits on rank {second} than on rank {first}"


@contract("OBS-06", asks="trace", cases=RUN, source="F05", slow=True)
def data_parallel_ranks_consume_different_rows(stack: Observing) -> None:
    """No two data-parallel ranks consume the same microbatch.

    A sampler that does not know its rank trains every rank on the same rows. The loss falls, more slowly.
    """
    merged = _of_data_ranks(stack)
    none_of(_repeated(merged))


def _repeated(merged: Merged) -> Iterator[str]:
    for step in range(1, merged.steps + 1):
        of: dict[tuple[int, ...], int] = {}
        for rank, line in merged.lines("input", step):
            rows = tuple(sorted(line["rows"]))
            first = of.setdefault(rows, rank.rank)
            if rows and rank.rank in merged.data_ranks and first != rank.rank:
                yield f"step {step}: ranks {first} and {rank.rank} consume the same {len(rows)} rows"


@contract("OBS-10", asks="trace", cases=RUN, source="F04", slow=True)
def members_of_a_group_issue_the_same_collectives(stack: Observing) -> None:
    """The members of a group issue the same collectives in the same order, with the same shapes, dtypes and reductions.

    gloo and NCCL accept a maximum on one rank for a sum on another, and compute something.
    """
    merged = _of_several_ranks(stack)
    if not any(merged.lines("collectives", step) for step in range(merged.steps + 1)):
        raise NotOffered("the trace has no collective", "case")
    none_of(_diverging(merged))


def _diverging(merged: Merged) -> Iterator[str]:
    present = {rank.rank for rank in merged.trace.ranks}
    for step in range(merged.steps + 1):
        groups: dict[str, dict[int, list[str]]] = {}
        for rank, line in merged.lines("collectives", step):
            groups.setdefault(line["group"], {})[rank.rank] = line["said"]
        for group, said in groups.items():
            members = [each for each in map(int, group.split("-")) if each in present]
            for first, second in itertools.pairwise(members):
                one, other = said.get(first, []), said.get(second, [])
                for at, (its, others) in enumerate(itertools.zip_longest(one, other, fillvalue="none")):
                    if its != others:
                        yield (
                            f"step {step}: collective {at} over ranks {members} is {its} on rank {first} and {others} "
                            f"on rank {second}"
                        )
                        break


@contract("OBS-12", asks="trace", cases=RUN, source="F14", slow=True)
def random_numbers_of_a_forward_pass_differ_between_data_parallel_ranks(stack: Observing) -> None:
    """Where a forward pass draws random numbers, as dropout does, data-parallel ranks have different random states.

    One seed on all ranks drops the same units of every rank's rows.
    """
    merged = _of_data_ranks(stack)
    drawn = {(rank.rank, step, line["microbatch"]) for step in range(1, merged.steps + 1)
             for rank, line in merged.lines("drawn", step) if line["drawn"]}  # fmt: skip
    if not drawn:
        raise NotOffered("no forward pass draws random numbers", "case")
    wrong = []
    for step in range(1, merged.steps + 1):
        states: dict[tuple[int, str], int] = {}
        for rank, line in merged.lines("input", step):
            if rank.rank in merged.data_ranks and (rank.rank, step, line["microbatch"]) in drawn:
                first = states.setdefault((line["microbatch"], line["random"]), rank.rank)
                if first != rank.rank:
                    wrong.append(
                        f"step {step}: the forward passes of ranks {first} and {rank.rank} draw the same random numbers"
                    )
    none_of(wrong)


def _of_several_ranks(stack: Observing) -> Merged:
    merged = observed(stack)
    if merged.trace.world < 2:
        raise NotOffered("the run has one rank", "case")
    return merged


def _of_data_ranks(stack: Observing) -> Merged:
    merged = observed(stack)
    if len(merged.data_ranks) < 2:
        raise NotOffered("neither DDP nor FSDP2 said which ranks share a batch", "case")
    return merged
