"""Expert capacity: which assignments find no slot, what becomes of them, and what lies in slots that nobody takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, log

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import (
    CROWD,
    MIXED,
    ROUTED,
    SIGMOID,
    SOFTMAX,
    Activation,
    Routes,
    gates_of,
    routed_call,
)
from contracts.law._support.late import torch
from contracts.law._support.training_run import LETTERS, batches, drawn_weights, run, table
from contracts.spec import BFLOAT16, FLOAT64, BlockRun, Blocks, Moe, NotOffered, Training, chosen, within

Lost = Mapping[tuple[int, int], set[int]]
"""(sequence, token) → the experts that had no slot for it."""
Gates = Sequence[Sequence[Mapping[int, float]]]
"""For each sequence and token, its experts and their gates."""

# The eight tokens of MIXED ask 24 times for twelve experts: the fair share is 2. 11 is asked by tokens 0, 1, 4, 6;
# 10 by 1, 3, 6; 0 by 0, 2, 4; 1 by 0, 5, 7; 2, 3, 5 and 9 twice; 4, 7, 8 once; 6 never.
ONE_SLOT: Lost = {
    (0, 1): {11}, (0, 2): {0}, (0, 3): {10}, (1, 0): {2, 11, 0}, (1, 1): {1, 3}, (1, 2): {10, 11, 9}, (1, 3): {5, 1},
}  # fmt: skip
TWO_SLOTS: Lost = {(1, 0): {11, 0}, (1, 2): {10, 11}, (1, 3): {1}}

SLOTS: dict[str, tuple[float | None, Routes, Lost]] = {  # factor, routes, who loses what
    "half-a-share": (0.5, MIXED, ONE_SLOT),
    "rounded-up": (0.55, MIXED, TWO_SLOTS),  # 1.1 slots are 2
    "a-share": (1.0, MIXED, TWO_SLOTS),
    "share-and-a-half": (1.5, MIXED, {(1, 2): {11}}),
    "more-slots-than-tokens": (100.0, MIXED, {}),
    "none": (None, MIXED, {}),
    "crowd": (1.0, CROWD, {(b, t): {0, 5, 11} for b in (1, 2) for t in range(3)}),  # 27 / 12 are 3 slots
    "one-token": (0.1, (((7, 2, 10),),), {}),
}


@contract("MOE-08a", asks="run_block", cases=SLOTS, source="arXiv 2101.03961, section 2.2; Megatron-Core")
def a_full_expert_drops_the_declared_tokens(stack: Blocks, factor: float | None, routes: Routes, lost: Lost) -> None:
    """Each expert keeps the first ceil(factor · tokens · k / experts) assignments in token order. Every other
    assignment adds nothing to its token, changes none of the token's other gates, and is counted as dropped.

    `counts` still counts every assignment: a balance rule that sees only what was kept takes a full expert for a
    balanced one.
    """
    run = stack.run_block(routed_call(replace(ROUTED, capacity_factor=factor), routes, "float64"))
    gates = [[dict(zip(wanted, gates_of(ROUTED), strict=True)) for wanted in row] for row in routes]
    _are_dropped(run, gates, lost)
    counts = numerics.tensor(run.seen["counts"]).tolist()
    for expert, count in enumerate(counts):
        number = sum(expert in wanted for row in routes for wanted in row)
        assert count == number, f"expert {expert} was asked {number} times, counts says {count}"


def _are_dropped(run: BlockRun, gates: Gates, lost: Lost) -> None:
    """What is lost is reported and adds nothing; what is kept adds the token's label times the gate."""
    experts, dropped, y = (expert_calls.rows(each) for each in (run.seen["experts"], run.seen["dropped"], run.y))
    for b, row in enumerate(gates):
        for t, wanted in enumerate(row):
            gone = {int(expert) for expert, out in zip(experts[b][t], dropped[b][t], strict=True) if out}
            want = lost.get((b, t), set())
            asked = (*wanted,)
            assert gone == want, f"token ({b}, {t}) of experts {asked} loses {sorted(gone)}, expected {sorted(want)}"
            label = 1 + b * len(row) + t
            for expert, gate in wanted.items():
                value, due = y[b][t][expert], 0.0 if expert in want else gate * label
                words = f"expert {expert} gave token ({b}, {t}) {value:.6g}, expected gate x label {due:.6g}"
                assert abs(value - due) <= within(1e-12) * label, words


# Expert 0 is asked with the gates 0.2, 0.75, 0.4, 0.9 and 0.5; 1 with 0.8, 0.1, 0.5 and 0.7; 3 with 0.6 and 0.3.
GRADED: Gates = (
    ({0: 0.2, 1: 0.8}, {0: 0.75, 2: 0.25}, {0: 0.4, 3: 0.6}), ({0: 0.9, 1: 0.1}, {0: 0.5, 1: 0.5}, {1: 0.7, 3: 0.3}),
)  # fmt: skip
LOUD = (9.0, 0.0, 0.0, 3.0, 0.0, 0.0)
"""What is added to a token's logits: it changes no gate."""
BY_GATE: Mapping[str, tuple[Moe, float, Lost]] = {  # router, factor, who loses what
    "one-slot": (ROUTED, 0.3, {
        (0, 0): {0}, (0, 1): {0}, (0, 2): {0}, (1, 0): {1}, (1, 1): {0, 1}, (1, 2): {1, 3},
    }),
    "two-slots": (ROUTED, 0.6, {(0, 0): {0}, (0, 2): {0}, (1, 0): {1}, (1, 1): {0, 1}}),
    "three-slots-sigmoid": (replace(ROUTED, score="sigmoid"), 1.0, {(0, 0): {0}, (0, 2): {0}, (1, 0): {1}}),
    "enough-slots": (ROUTED, 2.0, {}),
}  # fmt: skip


@contract(
    "MOE-08e", asks="run_block", cases=BY_GATE, needs=dict.fromkeys(BY_GATE, ("capacity", "capacity-by-gate")),
    source="Megatron-Core",
)  # fmt: skip
def a_full_expert_keeps_the_greatest_gates(stack: Blocks, moe: Moe, factor: float, lost: Lost) -> None:
    """If the stack drops by gate, each expert keeps the ceil(factor · tokens · k / experts) assignments of the call
    with the greatest gates, whatever their order and whatever their logits.

    A gate is a share of a token's own experts. Dropped by raw logits, loud tokens keep all of theirs.
    """
    moe = replace(moe, experts=4, top_k=2, capacity_factor=factor, drop_policy="probs")
    run = stack.run_block(expert_calls.labelled_call(moe, [*map(_graded, GRADED, (LOUD[:3], LOUD[3:]), (moe, moe))]))
    _are_dropped(run, GRADED, lost)


def _graded(row: Sequence[Mapping[int, float]], louder: Sequence[float], moe: Moe) -> list[list[float]]:
    """Logits that give the tokens of a row these gates, and every other expert next to nothing."""
    if moe.score == "sigmoid":  # the scores are the gates times a number of the token's own
        scores = [{e: gate / (1 + more) for e, gate in each.items()} for each, more in zip(row, louder, strict=True)]
        return [[log(each[e] / (1 - each[e])) if e in each else -30.0 for e in range(moe.experts)] for each in scores]
    return [[20 + more + log(each[e]) if e in each else more - 20 for e in range(moe.experts)]
            for each, more in zip(row, louder, strict=True)]  # fmt: skip


_GROUPS = replace(SIGMOID, top_k=4, groups=(4, 2), aux_loss=0.0)  # MOE-05a has their balance
FULL: dict[str, tuple[Moe, Activation, int, int]] = {
    "softmax": (replace(SOFTMAX, capacity_factor=0.6), "relu2", 2, 7),
    "sigmoid-swiglu": (replace(SIGMOID, capacity_factor=0.9), "swiglu", 3, 5),
    "without-shared": (replace(SIGMOID, capacity_factor=0.4, shared_hidden=0, top_k=4), "relu2", 2, 6),
    "nothing-lost": (replace(SOFTMAX, capacity_factor=12.0), "swiglu", 2, 5),
    "softmax-by-gate": (replace(SOFTMAX, capacity_factor=0.6, drop_policy="probs"), "relu2", 2, 7),
    "sigmoid-by-gate": (replace(SIGMOID, capacity_factor=0.7, drop_policy="probs"), "swiglu", 3, 5),
    "groups": (replace(_GROUPS, capacity_factor=0.6), "relu2", 2, 7),
    "groups-by-gate": (replace(_GROUPS, capacity_factor=0.7, drop_policy="probs"), "swiglu", 3, 5),
}


@contract(
    "MOE-08b", asks="run_block", cases=FULL, source="arXiv 2101.03961, section 2.2; F01", conventions=("balance-over",)
)
def what_is_dropped_has_no_gradient(stack: Blocks, moe: Moe, activation: Activation, batch: int, length: int) -> None:
    """If experts are full, output, losses and gradients match a plain loop that drops the same assignments: no gradient
    flows to or from a dropped one.

    The balance loss still counts dropped assignments, because its gradient is what makes dropping rarer.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, activation), batch, length)
    run = stack.run_block(call)

    def words_of(want: expert_calls.OracleAnswer) -> str:
        words = numerics.difference("y", run.y, want.routed.y_BTD, FLOAT64)
        words = words or numerics.differences(
            "loss", run.losses, expert_calls.reported_losses(call, run, want), FLOAT64
        )
        return words or numerics.gradient_differences("gradient of", run.gradients, want.gradients, FLOAT64)

    words = expert_calls.oracle_difference(call, words_of, over=chosen(stack, "balance-over"))
    assert not words, words


MANY = {"601-tokens": (601, 6.04, 303), "2051-tokens": (2051, 12.0, 2051), "2053-tokens-full": (2053, 11.985, 2051)}


@contract("MOE-08d", asks="run_block", cases=MANY, source="arXiv 2101.03961, section 2.2")
def slots_are_counted_in_whole_numbers(stack: Blocks, tokens: int, factor: float, slots: int) -> None:
    """With many tokens on one expert, slot positions and counts stay exact: the expert keeps as many tokens as it has
    slots, the first ones in token order.

    A floating-point dtype stops counting exactly: bfloat16 at 256, float16 at 2048.
    """
    moe = replace(SIGMOID, top_k=1, shared_hidden=0, expert_hidden=4, capacity_factor=factor)
    call = replace(expert_calls.drawn_call(expert_calls.with_moe(moe), 1, tokens, "float32"), dy=None)
    weights = numerics.tensors(call.weights)
    weights["mixer.router.bias"][7] = 5.0
    seen = stack.run_block(replace(call, weights=numerics.arrays(weights))).seen
    counts = numerics.tensor(seen["counts"]).tolist()
    assert counts[7] == tokens, f"{tokens} tokens asked for expert 7, counts says {counts[7]}"
    kept_N = ~numerics.tensor(seen["dropped"]).flatten()
    assert int(kept_N.sum()) == slots, f"{int(kept_N.sum())} tokens are kept, there are {slots} slots"
    assert bool(kept_N[:slots].all()), f"token {int((~kept_N).nonzero()[0])} is dropped, and {slots} slots are there"


PADDED: dict[str, tuple[float, Routes]] = {"mixed": (0.5, MIXED), "crowd": (0.4, CROWD), "a-share": (1.0, MIXED)}


@contract("MOE-08c", asks="run_block", cases=PADDED, source="torch issues 154557, 193633; F21")
def rows_of_nobody_change_nothing(stack: Blocks, factor: float, routes: Routes) -> None:
    """Under bfloat16, uninitialised rows after the rows of the last expert reach neither outputs nor gradients.

    Grouped kernels leave these rows uninitialised, and 0 · NaN is NaN, so a stack must mask them forward and backward.
    The first step is often spared. The check therefore repeats the call in memory that held NaN before it was freed.
    """
    call = routed_call(replace(ROUTED, capacity_factor=factor), routes, "bfloat16", backward=True)
    want = expert_calls.oracle_answer(call)
    for attempt in (1, 2, 3):
        _foul_free_memory()
        run = stack.run_block(call)
        words = numerics.difference("y", run.y, want.routed.y_BTD, BFLOAT16)
        words = words or numerics.gradient_differences("gradient of", run.gradients, want.gradients, BFLOAT16)
        assert not words, f"call {attempt}: {words}"


def _foul_free_memory() -> None:
    """Write NaN into blocks that the allocator gives out next: a stack in this process is likely to get one of them."""
    fouled = [torch.full((rows, 64), torch.nan, dtype=torch.bfloat16) for rows in range(1, 32) for _ in range(4)]
    del fouled


CAPPED = replace(LETTERS, name="letters-capped", moe=replace(LETTERS.moe or Moe(), capacity_factor=0.7))
TOLD: dict[str, tuple[int, bool]] = {"one-microbatch": (1, False), "five-recomputed": (5, True)}


@contract("MOE-08f", asks=("built", "train"), cases=TOLD, needs=("experts", "capacity", "recurrent"), source="F11")
def a_step_reports_every_assignment_that_it_drops(stack: Training, microbatches: int, recompute: bool) -> None:
    """A step reports as dropped what has no slot in any layer and microbatch, each assignment once.

    Two of its layers route 65 tokens to 3 of 14 experts. Of one microbatch, what an expert is asked for beyond its ten
    slots is dropped; of five, at least what five times their two slots and a half, rounded up, do not hold. A count of
    one layer, or of the last microbatch, makes full experts look nearly empty.
    """
    trained = run(stack, CAPPED, batches(2), weights=drawn_weights(table(stack, CAPPED)), microbatches=microbatches,
                  recompute=recompute)  # fmt: skip
    for step in trained.steps:
        if "dropped" not in step.seen:
            raise NotOffered("a step reports no dropped assignments", "case")
        found = int(numerics.tensor(step.seen["dropped"]))
        counts = {layer: numerics.tensor(step.seen[f"layers.{layer}.counts"]) for layer in (1, 5)}
        slots = microbatches * ceil(0.7 * 65 / microbatches * 3 / 14)
        over = {layer: int((each - slots).clamp(min=0).sum()) for layer, each in counts.items()}
        least, exact = sum(over.values()), microbatches == 1
        assert found == least or (found > least and not exact), (
            f"step {step.number} reports {found} dropped assignments, expected {least}{'' if exact else ' at least'}: "
            f"{over[1]} in layer 1 and {over[5]} in layer 5"
        )
