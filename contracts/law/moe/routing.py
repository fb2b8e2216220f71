"""The router: which experts a token goes to, how often each expert is chosen, and in which precision."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import PLAIN, PLAIN_SIGMOID
from contracts.spec import FLOAT32, FLOAT64, BlockCall, Blocks, Moe, Tolerance, chosen

PAPERS = "arXiv 1701.06538; arXiv 2412.19437"

DRAWN = {  # experts, sequences, tokens of each
    "softmax-3-of-12": (PLAIN, 2, 7),
    "sigmoid-3-of-12-with-bias": (PLAIN_SIGMOID, 3, 5),
    "sigmoid-without-bias": (replace(PLAIN_SIGMOID, selection_bias=False), 2, 7),
    "sigmoid-1-of-12": (replace(PLAIN_SIGMOID, top_k=1), 2, 9),
    "softmax-5-of-17": (replace(PLAIN, experts=17, top_k=5), 2, 6),
    "groups": (replace(PLAIN_SIGMOID, top_k=4, groups=(4, 2)), 3, 7),
    "one-group-of-three": (replace(PLAIN_SIGMOID, top_k=2, groups=(3, 1)), 2, 7),
    "full": (replace(PLAIN, capacity_factor=0.5), 2, 7),
    "300-experts": (replace(PLAIN_SIGMOID, experts=300, top_k=4, expert_hidden=3), 2, 3),
}


@contract("MOE-01a", asks="run_block", cases=DRAWN, source=PAPERS)
def a_token_goes_to_its_k_best_experts(stack: Blocks, moe: Moe, batch: int, length: int) -> None:
    """Each token goes to exactly k distinct experts: those with the largest scores once the selection bias is added."""
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), batch, length)
    got = expert_calls.rows(stack.run_block(replace(call, dy=None)).seen["experts"])
    want = expert_calls.oracle_answer(call).routed.experts_BTK.tolist()
    for b, t in ((b, t) for b in range(batch) for t in range(length)):
        went = sorted(got[b][t])
        assert len(set(went)) == moe.top_k, f"token ({b}, {t}) goes to experts {went}, not to {moe.top_k} distinct ones"
        assert went == want[b][t], f"token ({b}, {t}) goes to experts {went}, its best are {want[b][t]}"


# Ten tokens of the last case ask for few experts: most of 40 have none, the last among them.
COUNTED = DRAWN | {"40-experts-for-10-tokens": (replace(PLAIN_SIGMOID, experts=40, top_k=2), 2, 5)}


@contract("MOE-01b", asks="run_block", cases=COUNTED, source=PAPERS)
def every_assignment_is_counted(stack: Blocks, moe: Moe, batch: int, length: int) -> None:
    """`counts` holds the number of assignments of each expert: all k slots of every token, dropped assignments
    included, and zero for an idle expert.

    The rule that balances the load reads these counts; a histogram without its last expert or without its zeros
    misleads it.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), batch, length, seed=4)
    seen = stack.run_block(replace(call, dy=None)).seen
    asked = numerics.tensor(seen["experts"]).flatten().tolist()
    counts = numerics.tensor(seen["counts"]).tolist()
    assert len(counts) == moe.experts, f"counts has {len(counts)} entries for {moe.experts} experts"
    for expert, count in enumerate(counts):
        tokens = asked.count(expert)
        assert count == tokens, f"expert {expert} is counted {count} times, {tokens} assignments name it"
    total = batch * length * moe.top_k
    assert sum(counts) == total, f"counts add up to {sum(counts)}, tokens times top-k is {total}"


TIED = {
    "softmax": (PLAIN, 2, 5),
    "sigmoid": (PLAIN_SIGMOID, 2, 5),
    "one-of-twelve": (replace(PLAIN_SIGMOID, top_k=1), 2, 5),
    "every-expert": (replace(PLAIN, top_k=12), 2, 3),
    "a-single-expert": (replace(PLAIN, experts=1, top_k=1), 2, 3),
}


@contract("MOE-01g", asks="run_block", cases=TIED, source=PAPERS)
def tied_scores_choose_k_experts(stack: Blocks, moe: Moe, batch: int, length: int) -> None:
    """If all scores of a token are equal, it goes to k distinct experts, whichever they are, with equal gates.

    So it is with padding, with a router that starts at zero, with a single expert, or with as many as are chosen. A
    choice by a threshold, or by a mask of whatever equals the maximum, takes more experts than k, or one of them k
    times. All experts have the same weights here, so that the output does not depend on the choice.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), batch, length)
    weights = numerics.tensors(call.weights)
    weights["mixer.router.weight"].zero_()
    for name in ("w1", "w2", "w3"):
        weights[f"mixer.experts.{name}"][:] = weights[f"mixer.experts.{name}"][:1].clone()
    call = replace(call, weights=numerics.arrays(weights), dy=None)
    run = stack.run_block(call)
    for went in (each for row in expert_calls.rows(run.seen["experts"]) for each in row):
        distinct = sorted(set(went))
        assert len(went) == len(distinct) == moe.top_k, f"a token goes to {sorted(went)}, expected {moe.top_k} experts"
    total = int(numerics.tensor(run.seen["counts"]).sum())
    assert total == batch * length * moe.top_k, f"counts add up to {total}, expected {batch * length * moe.top_k}"
    words = numerics.difference("y", run.y, expert_calls.oracle_answer(call).routed.y_BTD, FLOAT64)
    assert not words, words


# Logits of six experts, from where and in which steps; bfloat16 has steps of 0.0625 above 10 and of 0.0039 above 0.5.
# Rising, falling and mixed: no order in which ties are broken chooses the best of every token. Last, their ranks.
CLOSE = {
    "softmax": (replace(PLAIN, shared_hidden=0), 10.0, 5e-3, ((5, 4, 3),) * 3),
    "sigmoid": (replace(PLAIN_SIGMOID, shared_hidden=0, route_scale=1.0), 0.5, 3e-4, ((5, 4, 3),) * 3),
    # The first six are two groups: of the last token the first group has 5 and 3, the second 4 and 2.
    "groups": (
        replace(PLAIN_SIGMOID, shared_hidden=0, route_scale=1.0, top_k=2, groups=(4, 1)), 0.5, 3e-4,
        ((5, 4), (5, 4), (5, 3)),
    ),
}  # fmt: skip
_RANKS = ((0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 0, 5, 1, 4, 2))


_STORED = Tolerance(name="stored in bfloat16", bound=2**-8, why="one rounding; gates of float32 scores are off by 2^-7")


@contract(
    "MOE-01e", asks="run_block", cases=CLOSE, source="Megatron-Core: --moe-router-dtype fp32",
    conventions=("softmax-router", "sigmoid-router"),
)  # fmt: skip
def the_router_is_float32_under_bfloat16(
    stack: Blocks, moe: Moe, least: float, step: float, chosen_ranks: tuple[tuple[int, ...], ...]
) -> None:
    """Under bfloat16, router logits, scores and gates are computed in float32: close scores select the same experts as
    exact arithmetic does.

    A stack may declare that it holds the router's weight in bfloat16, or that its logits have the dtype of the
    activations. The close scores are then equal: any of them may be chosen, and none has a larger gate than another.
    """
    choice = chosen(stack, f"{moe.score}-router")
    logits = [[[least + step * rank for rank in ranks] + [-5.0] * 6 for ranks in _RANKS]] * 2
    call = expert_calls.labelled_call(moe, logits, dtype="bfloat16")
    seen = stack.run_block(call).seen
    want = expert_calls.oracle_answer(call if choice == "float32" else _rounded(call)).routed
    experts = numerics.tensor(seen["experts"])
    for n, ranks in enumerate(_RANKS * 2):
        best = sorted(ranks.index(rank) for rank in chosen_ranks[n % len(_RANKS)])
        went = sorted(experts.flatten(0, 1)[n].tolist())
        if choice == "float32":
            assert went == best, f"token {n} goes to experts {went}, its best are {best}: their scores were rounded"
        assert went[-1] < len(ranks), f"token {n} goes to experts {went}, its best are among the first {len(ranks)}"
    order = experts.argsort(-1)
    gates = numerics.tensor(seen["gates"]).gather(-1, order)
    allowed = _STORED if choice == "activations" else FLOAT32
    words = numerics.difference("gates under bfloat16", gates, want.gates_BTK, allowed)
    assert not words, words


def _rounded(call: BlockCall) -> BlockCall:
    """The call with the router's weight as bfloat16 holds it."""
    name = "mixer.router.weight"
    held = numerics.tensor(call.weights[name]).bfloat16().float()
    return replace(call, weights={**call.weights, name: numerics.array(held)})
