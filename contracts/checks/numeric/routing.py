"""The router: which experts a token goes to, and with which gate."""

from __future__ import annotations

from dataclasses import replace
from math import log

from contracts import instruments
from contracts.checks.numeric import _moe
from contracts.checks.numeric._moe import SIGMOID, SOFTMAX
from contracts.contract import contract
from contracts.spec.blocks import Blocks
from contracts.spec.recipe import Moe
from contracts.spec.tolerance import FLOAT32, FLOAT64

PAPERS = "arXiv 1701.06538; arXiv 2412.19437"

DRAWN = {  # experts, sequences, tokens of each
    "softmax-3-of-12": (SOFTMAX, 2, 7),
    "sigmoid-3-of-12-with-bias": (SIGMOID, 3, 5),
    "sigmoid-without-bias": (replace(SIGMOID, selection_bias=False), 2, 7),
    "sigmoid-1-of-12": (replace(SIGMOID, top_k=1), 2, 9),
    "softmax-5-of-17": (replace(SOFTMAX, experts=17, top_k=5), 2, 6),
    "full": (replace(SOFTMAX, capacity_factor=0.5), 2, 7),
    "300-experts": (replace(SIGMOID, experts=300, top_k=4, expert_hidden=3), 2, 3),
}


@contract("MOE-01a", asks="run_block", cases=DRAWN, source=PAPERS)
def a_token_goes_to_its_k_best_experts(stack: Blocks, moe: Moe, batch: int, length: int) -> None:
    """Each token goes to exactly k distinct experts: those of the largest score, the selection bias added to it."""
    call = _moe.drawn(_moe.with_moe(moe), batch, length)
    got = _moe.rows(stack.run_block(replace(call, dy=None)).seen["experts"])
    want = _moe.expected(call).routed.experts_BTK.tolist()
    for b, t in ((b, t) for b in range(batch) for t in range(length)):
        went = sorted(got[b][t])
        assert len(set(went)) == moe.top_k, f"token ({b}, {t}) goes to experts {went}, not to {moe.top_k} distinct ones"
        assert went == want[b][t], f"token ({b}, {t}) goes to experts {went}, its best are {want[b][t]}"


# Ten tokens of the last case ask for few experts: most of 40 have none, the last among them.
COUNTED = DRAWN | {"40-experts-for-10-tokens": (replace(SIGMOID, experts=40, top_k=2), 2, 5)}


@contract("MOE-01b", asks="run_block", cases=COUNTED, source=PAPERS)
def every_assignment_is_counted(stack: Blocks, moe: Moe, batch: int, length: int) -> None:
    """`counts` holds for each expert how many tokens asked for it: all k slots, dropped ones too, zeros included.

    What balances the load reads these counts; a histogram without its last expert or without its zeros misleads it.
    """
    call = _moe.drawn(_moe.with_moe(moe), batch, length, seed=4)
    seen = stack.run_block(replace(call, dy=None)).seen
    asked = instruments.numerics.tensor(seen["experts"]).flatten().tolist()
    counts = instruments.numerics.tensor(seen["counts"]).tolist()
    assert len(counts) == moe.experts, f"counts has {len(counts)} entries for {moe.experts} experts"
    for expert, count in enumerate(counts):
        tokens = asked.count(expert)
        assert count == tokens, f"expert {expert} is counted {count} times, {tokens} assignments name it"
    total = batch * length * moe.top_k
    assert sum(counts) == total, f"counts add up to {sum(counts)}, tokens times top-k is {total}"


THREE = replace(SOFTMAX, shared_hidden=0)
ONE = replace(SIGMOID, top_k=1, selection_bias=False, shared_hidden=0)
_PLAIN = replace(SIGMOID, selection_bias=False, route_scale=1.0)

# moe, logits of some experts, logit of the others, selection bias of some experts, gates. Sigmoids of ln 3, 0, -ln 3
# are 3/4, 1/2, 1/4: together 3/2.
GATES = {
    "softmax": (THREE, {4: 0.0, 9: log(2), 11: log(5)}, -9.0, {}, {4: 1 / 8, 9: 2 / 8, 11: 5 / 8}),
    "softmax-scaled": (
        replace(THREE, route_scale=2.0), {4: 0.0, 9: log(2), 11: log(5)}, -1.0, {}, {4: 1 / 4, 9: 1 / 2, 11: 5 / 4},
    ),
    "softmax-far-from-0": (THREE, {10: 1000.0, 2: 1000 + log(3), 0: 1000.0}, 0.0, {}, {10: 0.2, 2: 0.6, 0: 0.2}),
    "sigmoid": (_PLAIN, {0: 0.0, 7: log(3), 10: -log(3)}, -30.0, {}, {0: 1 / 3, 7: 1 / 2, 10: 1 / 6}),
    "sigmoid-scaled": (SIGMOID, {0: 0.0, 7: log(3), 10: -log(3)}, -30.0, {}, {0: 5 / 6, 7: 5 / 4, 10: 5 / 12}),
    "sigmoid-faint": (_PLAIN, {0: -20.0, 7: -20.0, 10: -20.0}, -40.0, {}, {0: 1 / 3, 7: 1 / 3, 10: 1 / 3}),
    "sigmoid-alone": (replace(ONE, route_scale=1.0), {6: log(3)}, -2.0, {}, {6: 3 / 4}),
    "sigmoid-alone-scaled": (ONE, {6: log(3)}, -2.0, {}, {6: 15 / 8}),
    # Without the bias experts 1, 3 and one of the others would be chosen; 1 has the best score of all.
    "bias": (
        replace(SIGMOID, route_scale=1.0),
        {1: 5.0, 3: log(3), 5: 0.0, 8: -log(3)}, 0.5, {1: -4.0, 5: 0.7, 8: 1.5, 3: 0.2}, {3: 1 / 2, 5: 1 / 3, 8: 1 / 6},
    ),
}  # fmt: skip


@contract("MOE-01c", asks="run_block", cases=GATES, source="Megatron-Core; arXiv 2412.19437, eq. 12-16")
def gates_are_the_declared_ones(
    stack: Blocks, moe: Moe, some: dict[int, float], other: float, bias: dict[int, float], gates: dict[int, float]
) -> None:
    """A slot's gate is that of the slot's expert: normalised scores of the chosen, times route_scale, without the bias.

    Softmax is taken over the chosen logits. A lone sigmoid is its own gate: over its own sum it would be 1, and the
    router would have no gradient.
    """
    logits = [some.get(expert, other) for expert in range(moe.experts)]
    turned = [logits[-n:] + logits[:-n] if not bias else logits for n in range(6)]  # token n: every expert's number + n
    call = _moe.labelled(
        moe, [turned[:3], turned[3:]], bias=[bias.get(expert, 0.0) for expert in range(moe.experts)]
    )  # fmt: skip
    seen = stack.run_block(call).seen
    experts, got = _moe.rows(seen["experts"]), _moe.rows(seen["gates"])
    for n in range(6):
        token = dict(zip(experts[n // 3][n % 3], got[n // 3][n % 3], strict=True))
        for expert, gate in gates.items():
            number = expert if bias else (expert + n) % moe.experts
            assert number in token, f"token {n} goes to experts {sorted(token)}, and not to {number}"
            found = token[number]
            assert abs(found - gate) <= 1e-12 * gate, f"expert {number} of token {n} has gate {found}, expected {gate}"


SHIFTS = {"up": (SIGMOID, 3.0), "down": (replace(SIGMOID, top_k=4, route_scale=1.0), -7.0)}


@contract("MOE-01d", asks="run_block", cases=SHIFTS, source="arXiv 2408.15664, section 3")
def the_selection_bias_only_selects(stack: Blocks, moe: Moe, shift: float) -> None:
    """One number added to every selection bias changes nothing at all, and the bias has no gradient.

    In the gates a bias would change the output and the objective; with a gradient the optimizer would move it as well.
    """
    call = _moe.drawn(_moe.with_moe(moe), 2, 7)
    name, numerics = "mixer.router.bias", instruments.numerics
    shifted = numerics.array(numerics.tensor(call.weights[name]) + shift)
    one, other = stack.run_block(call), stack.run_block(replace(call, weights={**call.weights, name: shifted}))
    assert name not in one.gradients, f"{name} has a gradient; what balances the load moves it, and nothing else"
    words = numerics.apart("y", other.y, one.y, FLOAT64)
    words = words or numerics.named_apart("loss", other.losses, one.losses, FLOAT64)
    words = words or numerics.named_apart("gradient of", other.gradients, one.gradients, FLOAT64)
    assert not words, f"with {shift:+g} on every selection bias {words}"


# Logits of six experts, from where and in which steps; bfloat16 has steps of 0.0625 above 10 and of 0.0039 above 0.5.
# Rising, falling and mixed: no order in which ties are broken chooses the best three of every token.
CLOSE = {
    "softmax": (replace(SOFTMAX, shared_hidden=0), 10.0, 5e-3),
    "sigmoid": (replace(SIGMOID, shared_hidden=0, route_scale=1.0), 0.5, 3e-4),
}
_RANKS = ((0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 0, 5, 1, 4, 2))


@contract("MOE-01e", asks="run_block", cases=CLOSE, source="Megatron-Core: --moe-router-dtype fp32")
def the_router_is_float32_under_bfloat16(stack: Blocks, moe: Moe, least: float, step: float) -> None:
    """Under bfloat16 logits, scores and gates are float32: close scores choose the same experts as exact ones."""
    logits = [[[least + step * rank for rank in ranks] + [-5.0] * 6 for ranks in _RANKS]] * 2
    call = _moe.labelled(moe, logits, dtype="bfloat16")
    seen, want = stack.run_block(call).seen, _moe.expected(call).routed
    experts = instruments.numerics.tensor(seen["experts"])
    for n, ranks in enumerate(_RANKS * 2):
        best, went = sorted(ranks.index(rank) for rank in (5, 4, 3)), sorted(experts.flatten(0, 1)[n].tolist())
        assert went == best, f"token {n} goes to experts {went}, its best are {best}: their scores were rounded"
    order = experts.argsort(-1)
    gates = instruments.numerics.tensor(seen["gates"]).gather(-1, order)
    words = instruments.numerics.apart("gates under bfloat16", gates, want.gates_BTK, FLOAT32)
    assert not words, words


ALONE = {
    "softmax": (replace(SOFTMAX, aux_loss=0.0, z_loss=0.0), 2, 7),
    "sigmoid-with-bias": (replace(SIGMOID, aux_loss=0.0, z_loss=0.0), 3, 5),
    "sigmoid-1-of-12": (replace(ONE, aux_loss=0.0, z_loss=0.0), 2, 9),
}


@contract("MOE-01f", asks="run_block", cases=ALONE, source=PAPERS)
def the_router_learns_from_the_model(stack: Blocks, moe: Moe, batch: int, length: int) -> None:
    """Without auxiliary losses the router's gradient is that of the gates in the output.

    A router that only the balance loss reaches still trains, and every loss curve looks as it should.
    """
    call = _moe.drawn(_moe.with_moe(moe), batch, length)
    name = "mixer.router.weight"
    got = {key: grad for key, grad in stack.run_block(call).gradients.items() if key == name}
    words = instruments.numerics.named_apart("gradient of", got, {name: _moe.expected(call).gradients[name]}, FLOAT64)
    assert not words, words
