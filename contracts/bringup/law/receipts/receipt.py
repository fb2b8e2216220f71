"""What a run leaves behind: the receipt, however the run ended (RCPT)."""

import json
import math
import tempfile
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from contracts.contract import contract
from contracts.law._support.answers import refusal_of
from contracts.law._support.recorded_runs import FACTS, RECEIPT, STEPS
from contracts.spec import Degrees
from contracts.spec.receipt import (
    Backend,
    Ending,
    Evidence,
    Figure,
    LaunchedRun,
    Preflight,
    RankMemory,
    Receipt,
    ReportedStep,
    Source,
)

PLAYBOOK = "playbook: minimum useful operator receipt; provenance before the first import"
MODAL = "modal: receipts are written on every way out"
ABSENT = "(absent)"

# Each part of the receipt of the run above: its path and its value.
PARTS: dict[str, tuple[str, object]] = {
    "revision": ("provenance.source.revision", "3f2c9ab14d"),
    "machine-class": ("provenance.machine", FACTS.provenance.machine),
    "runtime": ("provenance.components", FACTS.provenance.components),
    "preflight": ("preflight", FACTS.preflight),
    "overlay": ("environment.overlay", FACTS.launch.env),
    "removed-variables": ("environment.unset", ("CUDA_DEVICE_MAX_CONNECTIONS",)),
    "degrees-that-ran": ("lane.degrees", Degrees(tp=2, sp=True, ep=2, etp=0)),
    "family": ("lane.family", "nam56r"),
    "regime": ("lane.regime", "fsdp2"),
    "mode": ("lane.mode", "nemo_native"),
    "compile": ("lane.compile", "regional"),
    "overrides": ("lane.overrides", {"optim.lr": "1e-4"}),
    "what-it-gives-up": ("lane.gives_up", ("layer 12 runs another mixer",)),
    "rank-map-and-nics": ("places", FACTS.places),
    "backends": ("backends", FACTS.backends),
    "command": ("command", FACTS.launch.command),
}


@contract("RCPT-01", asks="receipt", cases=PARTS, source=PLAYBOOK)
def a_receipt_says_what_ran(stack: Evidence, part: str, expected: object) -> None:
    """A receipt contains source revision, machine class, runtime, preflight result, environment overlay, effective
    lane, local rank map with NIC affinity, and the requested and actual backend with the reason for a difference.

    Two operators measured different throughput on one configuration because one of them had a stale variable in the
    shell. Neither receipt had the overlay, so the difference was blamed on the machine.
    """
    kept = attrgetter(part)(stack.receipt(FACTS))
    assert kept == expected, f"{part} is {kept}, expected {expected}"


SECTIONS: dict[str, tuple[str, str]] = {  # one override of each section of a recipe
    "data": ("data.path", "/data/shard-7"),
    "tokenizer": ("data.tokenizer", "HuggingFaceTokenizer"),
    "checkpoint": ("checkpoint.save", "/ckpt/run-7"),
    "batch": ("batch.micro", "2"),
    "experts": ("moe.top_k", "2"),
    "degrees": ("degrees.ep", "2"),
    "no-section": ("seed", "7"),
}


@contract("RCPT-01h", asks="receipt", cases=SECTIONS, source="Megatron-Bridge #2514")
def every_override_is_in_the_receipt(stack: Evidence, key: str, value: str) -> None:
    """An override of any section of the recipe, data and checkpoint included, is in the receipt under its full key.

    A list of sections that somebody wrote by hand leaves one out, and two runs over different data look alike.
    """
    given = {"optim.lr": "1e-4", key: value}
    kept = dict(stack.receipt(replace(FACTS, lane=replace(FACTS.lane, overrides=given))).lane.overrides)
    assert kept == given, f"the overrides {given} are in the receipt as {kept}"


WORK_TREES = {
    "dirty": (Source(revision="3f2c9ab14d", dirty=True, changed=("model.py",)),),
    "clean": (Source(revision="3f2c9ab14d", dirty=False),),
    "unknown": (Source(revision=None, dirty=None),),
}


@contract("RCPT-01b", asks="receipt", cases=WORK_TREES, source=PLAYBOOK)
def a_revision_stands_with_its_work_tree(stack: Evidence, source: Source) -> None:
    """A receipt records the state of the work tree with the revision, and never records an unknown state as clean.

    `git rev-parse` by itself names a commit that never ran: the change that made the number was not in it.
    """
    kept = stack.receipt(replace(FACTS, provenance=replace(FACTS.provenance, source=source))).provenance.source
    assert kept.dirty is source.dirty, f"dirty is {kept.dirty}, expected {source.dirty}"
    assert kept == source, f"the source is {kept}, expected {source}"


@contract("RCPT-01c", asks="receipt", cases={"torch": ("torch",), "torch-and-triton": ("torch", "triton")},
          source=PLAYBOOK)  # fmt: skip
def provenance_is_taken_before_the_first_heavy_import(stack: Evidence, *loaded: str) -> None:
    """Provenance collected after a framework was imported is refused.

    A run that dies while importing torch is the one whose machine class and revision matter most. Provenance collected
    later is missing exactly then.
    """
    late = replace(FACTS, provenance=replace(FACTS.provenance, loaded=tuple(loaded)))
    refused = refusal_of(stack.receipt, late)
    for name in loaded:
        assert name in str(refused), f"the refusal does not name {name}: {refused}"


# Steps of 1 s and of 262 144 tokens, of which the first compiles; six of them.
LONG_RUN = tuple(
    ReportedStep(number=number, seconds=1.0 if number else 90.0, tokens=262_144, loss=9.0, grad_norm=1.0)
    for number in range(6)
)

WINDOWS = {  # steps, warm-up, bound → first, last, tokens, seconds, tokens/s
    "two-of-four": (STEPS, 1, 2, (1, 2, 524_288, 8.0), 65_536.0),
    "the-first-of-many": (LONG_RUN, 1, 3, (1, 3, 786_432, 3.0), 262_144.0),
    "longer-warmup": (STEPS, 2, 2, (2, 3, 524_288, 10.0), 52_428.8),
    "fewer-than-the-bound": (STEPS, 3, 20, (3, 3, 262_144, 4.0), 65_536.0),
    "numbered-from-a-resume": (
        tuple(replace(step, number=step.number + 1000) for step in STEPS), 1, 2, (1001, 1002, 524_288, 8.0), 65_536.0
    ),
}  # fmt: skip


@contract("RCPT-01d", asks="receipt", cases=WINDOWS, source=PLAYBOOK)
def the_window_is_the_first_one_after_the_warm_up(
    stack: Evidence, steps: tuple[ReportedStep, ...], warmup: int, bounded: int, expected: tuple[Any, ...], rate: float
) -> None:
    """Throughput is the tokens of the first bounded window of steps, without its warm-up, divided by the seconds of
    that window.

    A compiled lane spends minutes in its first step, which halves the figure if it is counted. The mean of the steps'
    rates is not the rate of the window.
    """
    receipt = stack.receipt(replace(FACTS, steps=steps, warmup=warmup, bounded=bounded))
    window = receipt.window
    assert window is not None, f"there is no window, expected steps {expected[0]} to {expected[1]}"
    kept = (window.first, window.last, window.tokens, window.seconds)
    assert kept == expected, f"the window is {kept} (first, last, tokens, seconds), expected {expected}"
    assert math.isclose(receipt.tokens_per_second or 0.0, rate), (
        f"tokens/s is {receipt.tokens_per_second}, expected {rate}; withheld: {receipt.withheld}"
    )


PEAKS = {  # a rank's peaks in bytes → the largest of each
    "not-on-one-rank": (((0, 88, 97), (5, 91, 96)), (91, 97)),
    "last-rank": (((0, 3, 4), (1, 3, 4), (7, 5, 40)), (5, 40)),
}


@contract("RCPT-01e", asks="receipt", cases=PEAKS, source=PLAYBOOK)
def peak_memory_is_the_worst_rank_allocated_and_reserved(
    stack: Evidence, peaks: tuple[tuple[int, int, int], ...], expected: tuple[int, int]
) -> None:
    """A receipt records peak memory both as allocated and as reserved, each as the maximum over all ranks.

    The gap between the two shows whether expandable_segments works. A single number from rank 0 shows neither the gap
    nor the rank that will run out first.
    """
    memory = tuple(RankMemory(rank=rank, allocated=held, reserved=kept) for rank, held, kept in peaks)
    peak = stack.receipt(replace(FACTS, memory=memory)).peak
    assert peak is not None, "there is no peak"
    kept = (peak.allocated, peak.reserved)
    assert kept == expected, f"the peaks are {kept} (allocated, reserved), expected {expected}"


ALLOCATORS = {  # set by the lane, exported → the name and the value that CUDA obeyed
    "lane-over-alias": (
        {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"},
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    ),
    "alias-only": ({}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"},
                   ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")),
    "lane-over-shell": (
        {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    ),
    "neither": ({}, {"NCCL_DEBUG": "WARN"}, None),
}  # fmt: skip


@contract("RCPT-01f", asks="receipt", cases=ALLOCATORS, source="playbook: which allocator spelling reached CUDA")
def the_allocator_overlay_is_the_one_that_reached_cuda(
    stack: Evidence, lane: dict[str, str], exported: dict[str, str], expected: tuple[str, str] | None
) -> None:
    """A receipt records the allocator setting under the variable name, and with the value, that reached the CUDA
    context.

    The setting has two spellings. With both set, a receipt with the lane's own list does not show which one counted.
    """
    launch = replace(FACTS.launch, env=lane, unset=())
    facts = replace(FACTS, launch=launch, lane=replace(FACTS.lane, inherited=exported))
    kept = stack.receipt(facts).environment.allocator
    assert (None if kept is None else tuple(kept)) == expected, f"the allocator is {kept}, expected {expected}"


@contract("RCPT-01g", asks="receipt",
          cases={"replaced": (Backend(part="attention", requested="flash4", actual="sdpa"),)},
          source="playbook: a backend has a requested and an actual identity, and a reason")  # fmt: skip
def a_replaced_backend_says_why(stack: Evidence, backend: Backend) -> None:
    """If another backend ran than the requested one, the receipt gives the reason or is refused.

    A kernel that cannot run on this card falls back, and the run continues at another speed under the old name.
    """
    refused = refusal_of(stack.receipt, replace(FACTS, backends=(backend,)))
    for word in (backend.requested, backend.actual):
        assert word in str(refused), f"the refusal does not name {word}: {refused}"


ENDINGS: dict[str, tuple[LaunchedRun, Ending]] = {
    "ok": (FACTS, "ok"),
    "failed-in-init": (replace(FACTS, ending="failed", exit_code=1, failure="CUDA error", steps=(), memory=(),
                               backends=()), "failed"),
    "terminated": (replace(FACTS, ending="terminated", exit_code=-15, steps=STEPS[:3]), "terminated"),
    "refused-by-preflight": (replace(FACTS, ending="refused", exit_code=None, steps=(), memory=(), backends=(),
                                     preflight=Preflight(ran=True, findings=FACTS.preflight.findings)), "refused"),
}  # fmt: skip


@contract("RCPT-02", asks=("receipt", "write_receipt", "read_receipt"), cases=ENDINGS, source=MODAL)
def every_ending_leaves_a_whole_receipt(stack: Evidence, facts: LaunchedRun, ending: Ending) -> None:
    """Every run leaves a receipt, however it ends. The receipt reads back unchanged, is refused if truncated anywhere,
    and omits what was not measured instead of recording 0.

    A run that died in its first import left no record. A killed run left half a file, which a collector read as a run
    of zero steps.
    """
    receipt = stack.receipt(facts)
    assert receipt.ending == ending, f"the ending is {receipt.ending!r}, expected {ending!r}"
    if not facts.steps:
        kept = (receipt.window, receipt.witness, receipt.tokens_per_second, receipt.peak)
        assert kept == (None,) * 4, f"a run without steps has window, witness, tokens/s and peak {kept}"
    text = stack.write_receipt(receipt)
    back = stack.read_receipt(text)
    assert back == receipt, f"it reads back as {back}, but {receipt} was written"
    whole = text.rstrip()
    for length in {*range(0, len(whole), 97), len(whole) - 1}:
        refusal_of(stack.read_receipt, whole[:length])


FIGURES: dict[str, tuple[Figure, ...]] = {"nan": ("NaN",), "infinite": ("Infinity",), "minus": ("-Infinity",)}


@contract("RCPT-02a", asks=("receipt", "write_receipt", "read_receipt"), cases=FIGURES, source="F16: NaN is not zero")
def nan_stays_nan(stack: Evidence, figure: Figure) -> None:
    """A loss that was NaN or infinite is written and read back as NaN or infinite, never as 0 or absent.

    JSON has no NaN, so writers put 0 or null in its place, and a run that diverged looks like one that converged.
    """
    steps = (*STEPS[:3], replace(STEPS[3], loss=figure))
    text = stack.write_receipt(stack.receipt(replace(FACTS, steps=steps)))
    json.loads(text, parse_constant=_no_json)
    witness = stack.read_receipt(text).witness
    assert witness is not None, "there is no witness"
    assert witness.last_loss == figure, f"the last loss is {witness.last_loss!r}, expected {figure!r}"
    assert not witness.finite_losses, f"losses are called finite, but the last one is {figure}"


def _no_json(constant: str) -> None:
    raise AssertionError(f"the receipt holds {constant}, which is not JSON")


EDITS: dict[str, tuple[str, object, tuple[str, ...]]] = {  # where, the new value or ABSENT → what the refusal names
    "unknown-field": ("speed", 1, ("speed",)),
    "unknown-field-inside": ("window.median", 1, ("median",)),
    "missing-field": ("lane.regime", ABSENT, ("regime",)),
    "newer-schema": ("schema", "rankproof.receipt/2", ("rankproof.receipt/2",)),
    "no-schema": ("schema", ABSENT, ("schema",)),
    "text-for-a-number": ("peak.reserved", "97", ("reserved", "97")),
    "true-for-a-number": ("peak.allocated", True, ("allocated",)),
}


@contract("RCPT-02b", asks=("write_receipt", "read_receipt"), cases=EDITS, source="F16: versioned schema")
def what_is_not_of_the_schema_is_refused(stack: Evidence, field: str, value: object, words: tuple[str, ...]) -> None:
    """A receipt with another schema version, an unknown or missing field, or a value of the wrong type is refused, and
    the refusal names it.

    A field that a reader skips can change its meaning without anybody noticing.
    """
    body = json.loads(stack.write_receipt(RECEIPT))
    *outer, last = field.split(".")
    inside = body[outer[0]] if outer else body
    if value is ABSENT:
        del inside[last]
    else:
        inside[last] = value
    refused = refusal_of(stack.read_receipt, json.dumps(body))
    for word in words:
        assert word in str(refused), f"the refusal does not name {word}: {refused}"


SUCCESSORS = {
    "shorter": (replace(RECEIPT, ending="failed", window=None, witness=None, tokens_per_second=None, peak=None),),
    "longer": (replace(RECEIPT, command=("trainer", *("--set", "optim.lr=1e-4") * 4000)),),
}


@contract("RCPT-02c", asks=("write_receipt", "read_receipt", "publish_receipt"), cases=SUCCESSORS, source=MODAL)
def a_receipt_replaces_another_whole(stack: Evidence, successor: Receipt) -> None:
    """A receipt replaces an older one atomically: a reader that has the old one open reads it to its end, later readers
    get the new one, and no other file is left in the folder.

    A collector polls while a run writes. If the file is written in place, the collector sees half of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "receipt.json"
        stack.publish_receipt(RECEIPT, str(path))
        first = path.read_text(encoding="utf-8")
        with path.open(encoding="utf-8") as opened:
            stack.publish_receipt(successor, str(path))
            old = opened.read()
        assert old == first, (
            f"a reader that had opened the old receipt reads {old[:40]!r} and {len(old)} of {len(first)} characters"
        )
        new = stack.read_receipt(path.read_text(encoding="utf-8"))
        assert new == successor, f"the receipt in place is {new}, expected {successor}"
        left = sorted(each.name for each in Path(folder).iterdir())
        assert left == ["receipt.json"], f"the folder holds {left}, expected only the receipt"
