"""The receipts of a run on several ranks: each rank leaves its own, and each covers all ranks.

One rank is made different on purpose, because equal ranks could swap their receipts unnoticed.
"""

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from contracts.contract import contract
from contracts.instruments import numerics, process_memory, ranks, traffic
from contracts.instruments.ranks import gathered, here
from contracts.law._support.multi_rank_run import nodes_of
from contracts.law._support.recorded_runs import PROVENANCE
from contracts.law._support.saved_states import shared_folder
from contracts.spec import (
    Batch,
    Degrees,
    LeftReceipts,
    Moe,
    NotOffered,
    Optim,
    Recipe,
    Session,
    Strain,
    Training,
    World,
)
from contracts.spec.receipt import Place, Receipt

if TYPE_CHECKING:
    from contracts.instruments.traffic import Collective

STEPS, LATE_S = 3, 1.5
IGNORED = -100
MIB = 2**20
MORE, AT_LEAST = 512 * MIB, 384 * MIB
"""By how much the strained rank's peak is made to exceed every other's; a short run takes far less than the rest."""

# Widths of whole rows of 16 bytes in bfloat16, so that a grouped kernel can run where there is one.
RECIPE = Recipe(
    name="told", family="test", pattern="AE", depth=2, hidden=32, ffn_hidden=64, heads=4, kv_groups=2, seq_length=20,
    vocab=64, moe=Moe(experts=12, top_k=3, expert_hidden=32, shared_hidden=16, aux_loss=0.5),
    batch=Batch(micro=2, total=8),
    optim=Optim(lr=1e-3, min_lr=1e-4, warmup=1, steps=STEPS), dtype="bf16",
)  # fmt: skip

ALIKE = ("window", "peak", "backends")
"""What the ranks' receipts have in common: what they say of the run."""

RUNS = {  # the degrees, the rank that is different, and the world
    "the-second-of-dp2": (Degrees(), 1, 2),
    "the-first-of-tp2": (Degrees(tp=2, sp=True), 0, 2),
}


class TrainsInAWorld(World, Training, Protocol):
    """Who is asked."""


@contract("RCPT-01a", asks=("run_receipts", "samples", "sample", "train"), cases=RUNS,
          source="playbook: minimum useful operator receipt", tier="dist")  # fmt: skip
def the_receipts_of_a_run_are_about_all_its_ranks(
    stack: TrainsInAWorld, degrees: Degrees, unlike: int, world: int
) -> None:
    """On several ranks, window, peaks, rank map and backend identity cover all ranks, and no rank overwrites another
    rank's receipt. The first loss is the language model's, and a microbatch has `batch.micro` sequences.

    Rank 0's own peak is not the highest one, its clock stops before the slowest rank's, and its kernel is not the one
    that another rank fell back to.
    """
    mine = replace(PROVENANCE, machine=replace(PROVENANCE.machine, host=f"box-{here().rank}@lab"))
    most = max(gathered(_peak()))
    strain = Strain(held=most - _now() + MORE, late_s=LATE_S, lacks="torch-grouped")
    with shared_folder() as folder:
        with traffic.recorded() as sent:
            left = stack.run_receipts(
                RECIPE, degrees, STEPS, str(folder), mine, strain if here().rank == unlike else Strain()
            )
        places = gathered([here().node, here().local_rank])  # no rank asserts before all ranks have gathered
        others = gathered({part: str(getattr(receipt, part)) for part in ALIKE} if (receipt := _own(left)) else {})
    assert receipt is not None, f"rank {here().rank} left {left.own}, and the folder holds {sorted(left.kept)}"
    host, kept = f"box-{here().rank}@lab", receipt.provenance.machine.host
    assert kept == host, f"the receipt that rank {here().rank} left on {host} is of {kept}"
    _places(receipt, [local for node, local in places if node == here().node])
    _peaks(receipt, most, unlike)
    _window(receipt, _labels(stack), unlike)
    _backends(receipt, unlike)
    _loss(receipt, stack)
    if degrees.sp:
        _microbatches(sent)
    for part in ALIKE:
        for rank, said in enumerate(others):
            assert said[part] == others[0][part], f"{part} of rank 0 is {others[0][part]}, of rank {rank} {said[part]}"


HALF = replace(RECIPE, name="told-in-half", dtype="fp16", optim=replace(RECIPE.optim, lr=1e4, min_lr=1e4))
"""Its first step leaves weights with which every later one overflows."""
SCALED = {"dp2": (Degrees(), 2), "tp2": (Degrees(tp=2, sp=True), 2)}


@contract(
    "RCPT-04c",
    asks=("run_receipts", "train"),
    cases=SCALED,
    source="playbook: minimum useful operator receipt",
    tier="dist",
)
def a_step_that_was_left_out_is_told(stack: TrainsInAWorld, degrees: Degrees, world: int) -> None:
    """Under float16 a receipt counts the steps that overflowed as skipped, and gives no throughput.

    A trainer that reports each step as taken has the speed of a run that computes and learns nothing.
    """
    with shared_folder() as folder:
        left = stack.run_receipts(HALF, degrees, STEPS, str(folder), PROVENANCE, Strain())
    gathered("left")
    receipt, steps = _own(left), stack.train(Session(recipe=HALF, steps=STEPS)).steps
    lost = [step.number for step in steps if not math.isfinite(step.grad_norm)]
    if not 0 < len(lost) < STEPS:
        raise NotOffered(f"of {STEPS} steps those overflow: {lost}, expected some of them", "case")
    assert receipt is not None, f"rank {here().rank} left {left.own}, and the folder holds {sorted(left.kept)}"
    assert receipt.witness is not None, f"the receipt of rank {here().rank} has no witness"
    told = (receipt.witness.steps, receipt.witness.skipped)
    want = (STEPS - len(lost), len(lost))
    assert told == want, f"rank {here().rank} reports {told[0]} steps and {told[1]} skipped ones, expected {want}"
    rate = receipt.tokens_per_second
    assert rate is None, f"rank {here().rank} reports {rate} tokens per second, and steps {lost} overflowed"


@contract("RCPT-01i", asks="run_receipts", cases={"two-nodes": (1, 2), "two-of-two": (2, 4)}, tier="dist",
          source="playbook: minimum useful operator receipt")  # fmt: skip
def each_node_hears_its_own_ranks(stack: World, size: int, world: int) -> None:
    """On several nodes, the launcher of the first hears each step once and no other hears one; each hears the place
    and the peak of every rank of its node, and of no other.

    The first rank of a node is not the first of the run: a launcher on each node counts the run's tokens again.
    """
    with shared_folder() as folder, nodes_of(size):
        left = stack.run_receipts(replace(RECIPE, dtype="fp32"), Degrees(), STEPS, str(folder), PROVENANCE, Strain())
        node = here().node
    heard: dict[int, dict[str, list[int]]] = {}
    for number, lines in gathered([node, left.lines]):
        told = [*(json.loads(line) for line in lines)]
        key = {"step": "number", "place": "local_rank", "memory": "rank"}
        heard[number] = {kind: sorted(each[kind][at] for each in told if kind in each) for kind, at in key.items()}
    if not any(each for kinds in heard.values() for each in kinds.values()):
        raise NotOffered("writes nothing for a launcher", "stack")
    for number, kinds in heard.items():
        own = range(number * size, (number + 1) * size)
        want = {"step": [] if number else [*range(1, STEPS + 1)], "place": [*range(size)], "memory": [*own]}
        for kind, expected in want.items():
            assert kinds[kind] == expected, f"node {number} hears of {kind} {kinds[kind]}, expected {expected}"


def _own(left: LeftReceipts) -> Receipt | None:
    return left.kept.get(left.own)


def _places(receipt: Receipt, expected: list[int]) -> None:
    """The local ranks of this rank's node: torchrun numbers them from 0 on each node."""
    places: tuple[Place, ...] = receipt.places
    found = [place.local_rank for place in places]
    assert found == expected, f"the rank map of rank {here().rank} has local ranks {found}, expected {expected}"


def _peaks(receipt: Receipt, most: int, unlike: int) -> None:
    assert receipt.peak is not None, f"the receipt of rank {here().rank} has no peak"
    for kind, peak in (("allocated", receipt.peak.allocated), ("reserved", receipt.peak.reserved)):
        assert peak >= most + AT_LEAST, (
            f"the {kind} peak of rank {here().rank} is {peak // MIB} MiB, and only rank {unlike} was made to hold "
            f"{MORE // MIB} MiB more than any had held before, {most // MIB} MiB"
        )


def _window(receipt: Receipt, labels: tuple[int, ...], unlike: int) -> None:
    window = receipt.window
    assert window is not None, f"the receipt of rank {here().rank} has no window"
    assert (window.first, window.last) == (2, STEPS), f"the window is {window.first} to {window.last}, expected 2 to 3"
    expected = sum(labels[1:])
    assert window.tokens == expected, (
        f"the window of rank {here().rank} has {window.tokens} tokens, the labels of steps 2 and 3 are {expected}"
    )
    seconds = float(window.seconds)
    assert seconds >= LATE_S, (
        f"the window of rank {here().rank} took {seconds:.2f} s, and rank {unlike} took {LATE_S} s longer than the rest"
    )


def _loss(receipt: Receipt, stack: TrainsInAWorld) -> None:
    want = stack.train(Session(recipe=RECIPE, steps=1)).steps[0].losses["lm"]
    got = math.nan if receipt.witness is None else float(receipt.witness.first_loss or math.nan)
    assert abs(got - want) <= 0.02 * want, f"the first loss of the run is {got:.4g}, the language model's {want:.4g}"


def _microbatches(sent: "list[Collective]") -> None:
    """Under sequence parallel the residual stream of one microbatch at a time goes between ranks: it is scattered or
    summed whole, and gathered from its parts. No weight of the recipe has as many rows as sequences have tokens."""
    moved = [
        math.prod(shape[:-1]) * (len(each.members) if each.op == "all_gather" else 1)
        for each in sent if each.op in ("all_gather", "all_reduce", "reduce_scatter")
        for shape in each.shapes if shape[-1:] == (RECIPE.hidden,)
    ]  # fmt: skip
    got = max((rows for rows in moved if rows % RECIPE.seq_length == 0), default=0)
    want = RECIPE.batch.micro * RECIPE.seq_length
    if not got:
        raise NotOffered("it moves no rows of the hidden width between ranks, which would show a microbatch")
    assert got == want, f"a microbatch has {got} tokens, expected {want}: {RECIPE.batch.micro} sequences"


def _labels(stack: TrainsInAWorld) -> tuple[int, ...]:
    """How many labels the sequences of each step have, wherever they are computed."""
    found = []
    for step in range(1, STEPS + 1):
        sequences = (stack.sample(RECIPE, id).labels for id in stack.samples(RECIPE, step, 0, 1))
        found.append(sum(int((numerics.tensor(each) != IGNORED).sum()) for each in sequences))
    return tuple(found)


def _backends(receipt: Receipt, unlike: int) -> None:
    row = next((row for row in receipt.backends if row.part == "experts"), None)
    assert row is not None, f"the receipt of rank {here().rank} does not say which kernel ran the experts"
    said = f"{row.actual} ({row.reason or 'no reason'})"
    fell = row.actual != row.requested and bool(row.reason)
    assert fell, (
        f"rank {here().rank} says that the experts ran as {said}, and rank {unlike} could not run {row.requested}"
    )
    for word in ("torch-grouped", str(unlike), str(1 - unlike)):
        assert word in row.actual, f"rank {here().rank} says that the experts ran as {said}, which does not name {word}"


def _peak() -> int:
    """The most that this rank has held so far, where it trains."""
    torch, _ = ranks.torch_distributed()
    return int(torch.cuda.max_memory_reserved()) if ranks.device().type == "cuda" else process_memory.peak()


def _now() -> int:
    torch, _ = ranks.torch_distributed()
    return int(torch.cuda.memory_allocated()) if ranks.device().type == "cuda" else process_memory.now()
