"""What the ranks of a true-size world send each other: the same collectives in a group, and paired pipeline messages.
Likewise of a small transformer, whose experts get equally many tokens.

Each rank is dry-run by itself, and the results are compared. One rank of each class is enough: ranks that differ in
some coordinate, the first, the last, and each stage.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, dropwhile
from math import prod

from contracts.contract import contract
from contracts.law._support.full_size import (
    BESIDE_EP,
    BESIDE_TP,
    DENSE,
    LANES,
    LETTERS,
    PAIRS,
    Lane,
    Stack,
    dry_run_step,
)
from contracts.law._support.multi_rank_run import own_axis
from contracts.spec import Group, Recipe, Rehearsal, Routing, Sent, rung_of

# rank = 2 pp + tp
PIPELINE = Lane(
    execution=replace(own_axis(4, pp=2, tp=2, sp=True), microbatches=2), shard=(0,), expert_shard=(0,), tp=(0, 1)
)
INTERLEAVED = replace(PIPELINE, execution=replace(PIPELINE.execution, schedule="interleaved"))

HALVES, QUARTERS = replace(DENSE, pattern="AE|AE"), replace(DENSE, pattern="AE|AE|AE|AE", depth=8)
CLASSES: dict[str, tuple[Recipe, Lane, Group]] = {
    "dp8": (LETTERS, LANES["dp8"], (0, 7)),
    "dp8@dense": (DENSE, LANES["dp8"], (0, 7)),
    "tp2-sp-ep2-fsdp2": (LETTERS, LANES["tp2-sp-ep2-fsdp2"], (0, 1, 2, 4)),
    "tp2-sp-fsdp4": (LETTERS, BESIDE_TP["tp2-sp-fsdp4"], (0, 2, 6)),
    "tp2-sp-fsdp4@dense": (DENSE, BESIDE_TP["tp2-sp-fsdp4"], (0, 2, 6)),
    "borrowed-ep4-fsdp8": (LETTERS, BESIDE_EP["borrowed-ep4-fsdp8"], (0, 1, 3, 4, 7)),
    "borrowed-ep4-fsdp8@pairs": (PAIRS, BESIDE_EP["borrowed-ep4-fsdp8"], (0, 1, 3, 4, 7)),
    "pp2-tp2-sp": (LETTERS, PIPELINE, (0, 1, 2, 3)),
    "pp2-tp2-sp@dense": (HALVES, PIPELINE, (0, 1, 2, 3)),
}


MANY = tuple(range(512))
FSDP512 = Lane(execution=own_axis(512, fsdp=True), shard=MANY, expert_shard=MANY)
CLASSES_OF_MANY: dict[str, tuple[Recipe, Lane, Group]] = {
    "fsdp512": (LETTERS, FSDP512, (0, 255, 511)),
    "fsdp512@dense": (DENSE, FSDP512, (0, 255, 511)),
    "hsdp-8x8": (
        LETTERS,
        Lane(
            execution=own_axis(64, fsdp=True, replicas=8), shard=tuple(range(8)), expert_shard=tuple(range(8)),
            copies=tuple(range(0, 64, 8)),
        ),
        (0, 7, 8, 56, 63),
    ),
    "tp2-sp-ep2-fsdp2": (LETTERS, LANES["tp2-sp-ep2-fsdp2"], tuple(range(8))),
    "borrowed-tp2-sp-ep4-fsdp4": (LETTERS, LANES["borrowed-tp2-sp-ep4-fsdp4"], tuple(range(8))),
    "interleaved": (LETTERS, INTERLEAVED, (0, 1, 2, 3)),
    "interleaved@dense": (QUARTERS, INTERLEAVED, (0, 1, 2, 3)),
}  # fmt: skip


@contract("TRAF-01a", asks="rehearse", cases=CLASSES, needs=(), source="modal F04")
@contract("TRAF-01b", asks="rehearse", cases=CLASSES_OF_MANY, needs=(), source="modal F04", slow=True)
def every_class_of_ranks_issues_the_same(stack: Stack, recipe: Recipe, lane: Lane, ranks: Group) -> None:
    """At true size with every token routed to the first experts, and in a small transformer with even routing, the
    members of a group issue the same collectives in the same order, with the same shapes, dtypes and reductions. In an
    all-to-all each receives as much as the other sends.

    Each of these hangs 512 cards, and only one class of ranks does it: a rank without rows skips the exchange, one rank
    logs something, the shard of one rank is empty.
    """
    found = {rank: dry_run_step(stack, recipe, lane, rank, _routing(recipe)) for rank in ranks}
    for one, other in combinations(ranks, 2):
        for members in found[one].groups:
            if other in members:
                _issue_the_same(found, one, other, members)


STAGED = {"pp2-tp2-sp": (LETTERS, PIPELINE), "pp2-tp2-sp@dense": (HALVES, PIPELINE)}
CHUNKED = {"interleaved": (LETTERS, INTERLEAVED), "interleaved@dense": (QUARTERS, INTERLEAVED)}


@contract("TRAF-02c", asks="rehearse", cases=STAGED, needs=(), source="bringup F20")
@contract("TRAF-02d", asks="rehearse", cases=CHUNKED, needs=(), source="bringup F20", slow=True)
def messages_of_a_true_size_pipeline_pair_up(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """At true size and in a small transformer, each pipeline stage receives what its neighbour sends, in the same order
    and shape: one microbatch of the residual stream in each direction, in 16 bits, sharded over TP under sequence
    parallel. Single numbers may come first, to open a connection; they pair up too.
    """
    world = range(lane.execution.world)
    found = {rank: dry_run_step(stack, recipe, lane, rank, _routing(recipe)) for rank in world}
    stream: set[str] = set()
    for rank, mine in found.items():
        peers = {each.peer for each in mine.issued if each.op in ("send", "receive")}
        assert peers, f"rank {rank} has no messages"
        for peer in peers:
            assert peer is not None, f"rank {rank} has a message with nobody"
            sends = [each for each in mine.issued if (each.op, each.peer) == ("send", peer)]
            sent = [_form(each) for each in sends]
            taken = [_form(each) for each in found[peer].issued if (each.op, each.peer) == ("receive", rank)]
            words = f"rank {rank} sends rank {peer} {_counted(sent)}; rank {peer} receives {_counted(taken)}"
            assert sent == taken, words
            # torch 2.11 opens a connection by a single number, ahead of the first microbatch
            stream |= {_form(each) for each in dropwhile(lambda each: prod(each.shapes[0]) == 1, sends)}
    tokens = recipe.seq_length // len(lane.tp)
    whole = {f"{tokens}x{recipe.hidden} bfloat16"}
    assert stream == whole, f"stages send {', '.join(sorted(stream))}, expected {', '.join(whole)}"


def _issue_the_same(found: dict[int, Rehearsal], one: int, other: int, members: Group) -> None:
    """Compare two members of a group, collective by collective."""
    mine, theirs = (list(_over(found[rank], members)) for rank in (one, other))
    for index, (left, right) in enumerate(zip(mine, theirs, strict=False)):
        here, there = _shown(left), _shown(right)
        where = f"collective {index} over {_group(members)}"
        assert here == there, f"{where} is {here} on rank {one} and {there} on rank {other}"
        if left.sent and right.received:
            sends, takes = left.sent[members.index(other)], right.received[members.index(one)]
            assert sends == takes, f"{where}: rank {one} sends {sends} rows to rank {other}, which expects {takes}"
    words = f"rank {one} issues {len(mine)} collectives over {_group(members)}, rank {other} {len(theirs)}"
    assert len(mine) == len(theirs), words


def _over(found: Rehearsal, members: Group) -> Iterator[Sent]:
    for each in found.issued:
        if found.groups[each.group] == members and each.op not in ("send", "receive"):
            yield each


def _shown(each: Sent) -> str:
    shapes = [shape[1:] if each.sent else shape for shape in each.shapes]
    forms = ", ".join(
        f"{'x'.join(map(str, shape)) or 1} {dtype}" for shape, dtype in zip(shapes, each.dtypes, strict=True)
    )
    return f"{each.op}{f'({each.reduce})' if each.reduce else ''} {'rows of ' if each.sent else ''}{forms}"


def _group(members: Group) -> str:
    return str(list(members)) if len(members) <= 8 else f"[{members[0]}, {members[1]}, … {members[-1]}]"


def _form(each: Sent) -> str:
    """Without dims of one: a microbatch is one sequence, and stacks put its dim in another place."""
    return f"{'x'.join(str(size) for size in each.shapes[0] if size > 1) or 1} {each.dtypes[0]}"


def _routing(recipe: Recipe) -> Routing:
    """Few routers of other stacks can be told to crowd."""
    return "balanced" if rung_of(recipe) and recipe.moe is not None else "crowded"


def _counted(forms: list[str]) -> str:
    return f"{len(forms)} messages of {', '.join(sorted(set(forms)))}" if forms else "nothing"
