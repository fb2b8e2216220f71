"""The gated delta rule: its definition, its state, and what a chunk may change.

Two rows, three heads of four keys by five values; keys are about one long, so that the state does not grow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from contracts.contract import contract
from contracts.instruments import fixtures, numerics, oracles
from contracts.law._support.late import Tensor, torch
from contracts.law._support.scan_calls import PACKED, Lengths
from contracts.spec import BFLOAT16, FLOAT32_SCAN, FLOAT64, FLOAT64_SCAN, DeltaCall, DeltaRule, DeltaRun, Element

HEADS, KEYS, VALUES = 3, 4, 5
GIVEN = ("q", "k", "v", "g", "beta")
PAPER = "arXiv 2412.06464 eq. 10"


@dataclass(frozen=True, kw_only=True)
class Case:
    """The inputs of a call, drawn from names.

    Args:
        lengths: of the documents in each row.
        state: whether a state before the first token is given.
        decay: by which the drawn log decays, about -1, are multiplied.
        beta: what every beta is set to, in place of drawn ones.
        length: of queries and keys, about.
    """

    lengths: Lengths = ((21,), (21,))
    state: bool = False
    chunk: int | None = None
    unit_keys: bool = False
    decay: float = 1.0
    beta: float | None = None
    length: float = 1.0
    dtype: Element = "float64"

    @property
    def tokens(self) -> int:
        return sum(self.lengths[0])


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The tensors of a case in float64, rounded to its dtype."""

    tensors: Mapping[str, Tensor]
    dy: Tensor
    dstate: Tensor
    documents: Tensor


def drawn(case: Case) -> Inputs:
    rows, shape = len(case.lengths), (len(case.lengths), case.tokens, HEADS)
    found = {name: fixtures.normal(name, (*shape, KEYS), scale=case.length * KEYS**-0.5) for name in "qk"}
    found["v"] = fixtures.normal("v", (*shape, VALUES))
    found["g"] = -case.decay * torch.nn.functional.softplus(fixtures.normal("g", shape))
    found["beta"] = torch.sigmoid(fixtures.normal("beta", shape))
    if case.beta is not None:
        found["beta"] = torch.full(shape, case.beta, dtype=torch.float64)
    whole = (rows, HEADS, KEYS, VALUES)
    if case.state:
        found["state"] = fixtures.normal("state", whole)
    return Inputs(
        tensors={name: each.to(_dtype(case, name)).double() for name, each in found.items()},
        dy=fixtures.normal("dy", (*shape, VALUES)),
        dstate=fixtures.normal("dstate", whole),
        documents=fixtures.documents(case.lengths),
    )


def _dtype(case: Case, name: str) -> Any:
    wide = case.dtype == "bfloat16" and name in ("g", "state", "dstate")
    return torch.float32 if wide else getattr(torch, case.dtype)


def run(stack: DeltaRule, case: Case, inputs: Inputs, *, backward: bool = True) -> DeltaRun:
    """The answer of the stack; document numbers are given if a row has several documents."""
    held = {**inputs.tensors, "dy": inputs.dy, "dstate": inputs.dstate}
    arrays = {name: numerics.array(each.to(_dtype(case, name))) for name, each in held.items()}
    several = any(len(row) > 1 for row in case.lengths)
    return stack.run_delta_rule(
        DeltaCall(
            tensors={name: arrays[name] for name in inputs.tensors},
            dy=arrays["dy"] if backward else None,
            dstate=arrays["dstate"] if backward else None,
            unit_keys=case.unit_keys,
            documents=numerics.array(inputs.documents) if several else None,
            chunk=case.chunk,
        )
    )


def part(inputs: Inputs, tokens: slice, state: Tensor | None = None, row: int | None = None) -> Inputs:
    """Some tokens, of every row or of one, with this state before them or none."""
    rows = slice(None) if row is None else slice(row, row + 1)
    found = {name: each[rows, tokens] for name, each in inputs.tensors.items() if name != "state"}
    return Inputs(
        tensors=found if state is None else found | {"state": state},
        dy=inputs.dy[rows, tokens],
        dstate=inputs.dstate[rows],
        documents=inputs.documents[rows, tokens],
    )


DEFINED = {
    "plain": Case(),
    "chunks-of-eight": Case(chunk=8),
    "packed-with-state": Case(lengths=PACKED, state=True, chunk=8),
    "one-token": Case(lengths=((1,), (1,)), state=True),
    "unit-keys": Case(unit_keys=True, state=True, length=0.01),
    "sharp-decay": Case(decay=200.0, chunk=16, state=True),
    "nothing-fades": Case(decay=0.0, beta=1.0, chunk=8, state=True),
    "nothing-is-written": Case(beta=0.0, chunk=8, state=True),
    "float32": Case(lengths=((11, 10), (21,)), dtype="float32", state=True, chunk=8),
}


@contract("BLK-10a", asks="run_delta_rule", cases=DEFINED, source=PAPER)
def the_delta_rule_is_its_recurrence(stack: DeltaRule, case: Case) -> None:
    """The gated delta rule has the output, the last state and every gradient of its recurrence, one token at a time:
    the gradients with respect to q, k, v, the log decay, beta and the initial state, of a loss on the outputs and on
    the last state.
    """
    inputs = drawn(case)
    leaves = {name: each.clone().requires_grad_() for name, each in inputs.tensors.items()}
    y, state = oracles.delta_rule.gated_delta_rule(leaves, inputs.documents, unit_keys=case.unit_keys)
    objective = (y * inputs.dy).sum() + (state * inputs.dstate).sum()
    gradients = dict(zip(leaves, torch.autograd.grad(objective, list(leaves.values())), strict=True))
    got = run(stack, case, inputs)
    close, closely = (FLOAT64, FLOAT64_SCAN) if case.dtype == "float64" else (FLOAT32_SCAN, FLOAT32_SCAN)
    words = numerics.difference("y", got.y, y.detach(), close)
    words = words or numerics.difference("the last state", got.state, state.detach(), close)
    words = words or numerics.gradient_differences("the gradient of", got.gradients, gradients, closely)
    assert not words, words


CHUNKS = {"plain": Case(), "packed": Case(lengths=PACKED, state=True)}


@contract("BLK-10b", asks="run_delta_rule", cases=CHUNKS, source="arXiv 2412.06464 §3.3")
def a_chunk_changes_nothing(stack: DeltaRule, case: Case) -> None:
    """Output, last state and gradients of the gated delta rule do not depend on the chunk size: they equal those in
    chunks of one token, whether or not the chunk divides the sequence.
    """
    inputs = drawn(case)
    one = run(stack, replace(case, chunk=1), inputs)
    for chunk in (5, 16, 64):
        other = run(stack, replace(case, chunk=chunk), inputs)
        words = numerics.difference(f"y in chunks of {chunk}", other.y, one.y, FLOAT64)
        words = words or numerics.difference(f"the state in chunks of {chunk}", other.state, one.state, FLOAT64)
        words = words or numerics.differences(
            f"in chunks of {chunk} the gradient of", other.gradients, one.gradients, FLOAT64_SCAN
        )
        assert not words, f"{words} (in chunks of one)"


HALVES = {
    "inside-a-chunk": (Case(chunk=8), 13),
    "after-one-token": (Case(state=True, chunk=8), 1),
    "inside-a-document": (Case(lengths=((9, 12), (17, 4)), chunk=8), 10),
}


@contract("BLK-10c", asks="run_delta_rule", cases=HALVES, source=PAPER)
def the_delta_rule_passes_its_state(stack: DeltaRule, case: Case, at: int) -> None:
    """The gated delta rule over a sequence in two calls, the second from the state that the first returns, equals one
    call.
    """
    inputs = drawn(case)
    whole = run(stack, case, inputs, backward=False)
    before = run(stack, case, part(inputs, slice(0, at), inputs.tensors.get("state")), backward=False)
    after = run(stack, case, part(inputs, slice(at, None), numerics.tensor(before.state)), backward=False)
    halves = torch.cat([numerics.tensor(each.y) for each in (before, after)], dim=1)
    words = numerics.difference(f"y in two halves, cut at {at},", halves, whole.y, FLOAT64)
    words = words or numerics.difference("the state after two halves", after.state, whole.state, FLOAT64)
    assert not words, words


APART = {"packed": Case(lengths=PACKED, chunk=8), "packed-in-one-chunk": Case(lengths=PACKED, chunk=64)}


@contract("BLK-10d", asks="run_delta_rule", cases=APART, source="F06")
def the_delta_rule_begins_anew_in_each_document(stack: DeltaRule, case: Case) -> None:
    """In the gated delta rule a packed document has the same output, gradients and last state as in a row of
    its own.
    """
    inputs = drawn(case)
    inputs = replace(inputs, dstate=0 * inputs.dstate)
    whole = run(stack, case, inputs)
    for row, lengths in enumerate(case.lengths):
        ends = torch.tensor(lengths).cumsum(0).tolist()
        alone = [
            run(stack, replace(case, lengths=((length,),)), part(inputs, slice(end - length, end), row=row))
            for length, end in zip(lengths, ends, strict=True)
        ]
        want = {name: torch.cat([numerics.tensor(each.gradients[name]) for each in alone], dim=1) for name in GIVEN}
        have = {name: numerics.tensor(whole.gradients[name])[row : row + 1] for name in GIVEN}
        y = torch.cat([numerics.tensor(each.y) for each in alone], dim=1)
        words = numerics.difference(f"y of row {row}", numerics.tensor(whole.y)[row : row + 1], y, FLOAT64)
        words = words or numerics.differences(
            f"in row {row} the gradient of", numerics.arrays(have), numerics.arrays(want), FLOAT64_SCAN
        )
        last = numerics.tensor(whole.state)[row : row + 1]
        words = words or numerics.difference(f"the state after row {row}", last, alone[-1].state, FLOAT64)
        assert not words, f"{words} (each document in a row of its own)"


CAUSAL = {"inside-a-chunk": (Case(state=True, chunk=8), 13), "at-the-edge-of-a-chunk": (Case(chunk=8), 8)}


@contract("BLK-10e", asks="run_delta_rule", cases=CAUSAL, source="naming: causal")
def the_delta_rule_sees_nothing_of_the_future(stack: DeltaRule, case: Case, at: int) -> None:
    """In the gated delta rule a token changes no earlier output, and a loss on earlier outputs gives it no gradient:
    both are exactly 0. It does change its own output.
    """
    inputs = drawn(case)
    other = {name: each.clone() for name, each in inputs.tensors.items()}
    for name in GIVEN:
        other[name][:, at:] = inputs.tensors[name][:, at:].flip(0)
    one, two = (
        numerics.tensor(run(stack, case, replace(inputs, tensors=each), backward=False).y)
        for each in (inputs.tensors, other)
    )
    changed = (one != two).flatten(2).any(-1).any(0)
    assert bool(changed[at]), f"token {at} does not change its own output"
    first = int(torch.nonzero(changed)[0])
    assert first >= at, f"tokens from {at} on change the output at token {first}"
    early = replace(inputs, dy=inputs.dy.clone(), dstate=0 * inputs.dstate)
    early.dy[:, at:] = 0
    found = numerics.tensors(run(stack, case, early).gradients)
    assert bool(found["v"][:, :at].any()), f"a loss on tokens before {at} has no gradient by v"
    for name in GIVEN:
        reached = torch.nonzero(found[name][:, at:].flatten(2).any(-1))
        assert not len(reached), f"a loss on tokens before {at} has a gradient by {name} at {at + int(reached[0][1])}"


WIDE = {"whole": Case(lengths=((96,), (96,)), dtype="bfloat16", state=True, decay=0.05)}


@contract("BLK-10f", asks="run_delta_rule", cases=WIDE, source="arXiv 2412.06464")
def the_state_of_the_delta_rule_is_float32(stack: DeltaRule, case: Case) -> None:
    """With bfloat16 activations the gated delta rule sums its decays and keeps its state in float32: the last state
    equals the recurrence over the same numbers within float32's rounding, and the output within bfloat16's.
    """
    inputs = drawn(case)
    y, state = oracles.delta_rule.gated_delta_rule(inputs.tensors, inputs.documents)
    got = run(stack, case, inputs, backward=False)
    assert got.state.dtype == "float32", f"the state is {got.state.dtype} under bfloat16 activations"
    assert got.y.dtype == "bfloat16", f"y is {got.y.dtype} under bfloat16 activations"
    words = numerics.difference("the last state", got.state, state, FLOAT32_SCAN)
    words = words or numerics.difference("y", got.y, y, BFLOAT16)
    assert not words, words


KEPT = {"in-chunks": Case(unit_keys=True, decay=0.0, beta=1.0, chunk=8, state=True)}


@contract("BLK-10g", asks="run_delta_rule", cases=KEPT, source="arXiv 2412.06464 §2.2: the delta rule overwrites")
def what_was_written_last_is_read_back(stack: DeltaRule, case: Case) -> None:
    """With beta 1, no decay and unit keys, a query that equals its token's key reads that token's value, divided by the
    square root of the number of keys: the value that the key held before is gone.
    """
    inputs = drawn(case)
    q = inputs.tensors["k"] * 1e4  # so long that the 1e-6 under the root of its norm does not count
    tensors = {**inputs.tensors, "k": q, "q": q}
    got = run(stack, case, replace(inputs, tensors=tensors), backward=False)
    words = numerics.difference("y", got.y, inputs.tensors["v"] * KEYS**-0.5, FLOAT64)
    assert not words, f"{words} (v / sqrt({KEYS}))"
