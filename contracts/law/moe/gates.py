"""Gates: what an expert's output is multiplied by, and what the router learns from them."""

from dataclasses import replace
from math import exp, log

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import PLAIN, PLAIN_SIGMOID, ROUTED, SIGMOID, Activation
from contracts.law._support.late import Tensor
from contracts.spec import FLOAT64, Blocks, Moe, chosen, within

PAPERS = "arXiv 1701.06538; arXiv 2412.19437"
ONE = replace(PLAIN_SIGMOID, top_k=1, selection_bias=False, shared_hidden=0)
ONE_SOFTMAX = replace(ROUTED, top_k=1)
_UNBIASED = replace(PLAIN_SIGMOID, selection_bias=False, route_scale=1.0)

# moe, logits of some experts, logit of the others, selection bias of some experts, gates. Sigmoids of ln 3, 0, -ln 3
# are 3/4, 1/2, 1/4: together 3/2. One of twelve at ln 33, the others at 0: 33 of 44.
GATES = {
    "softmax": (ROUTED, {4: 0.0, 9: log(2), 11: log(5)}, -9.0, {}, {4: 1 / 8, 9: 2 / 8, 11: 5 / 8}),
    "softmax-scaled": (
        replace(ROUTED, route_scale=2.0), {4: 0.0, 9: log(2), 11: log(5)}, -1.0, {}, {4: 1 / 4, 9: 1 / 2, 11: 5 / 4},
    ),
    "softmax-far-from-0": (ROUTED, {10: 1000.0, 2: 1000 + log(3), 0: 1000.0}, 0.0, {}, {10: 0.2, 2: 0.6, 0: 0.2}),
    "sigmoid": (_UNBIASED, {0: 0.0, 7: log(3), 10: -log(3)}, -30.0, {}, {0: 1 / 3, 7: 1 / 2, 10: 1 / 6}),
    "sigmoid-scaled": (PLAIN_SIGMOID, {0: 0.0, 7: log(3), 10: -log(3)}, -30.0, {}, {0: 5 / 6, 7: 5 / 4, 10: 5 / 12}),
    # Neighbours share two groups of three at most, whose two best add up to more than those of any other.
    "groups-scaled": (
        replace(PLAIN_SIGMOID, top_k=4, groups=(4, 2)),
        {0: 0.0, 1: log(3), 2: -log(3), 3: 0.0}, -30.0, {}, {0: 5 / 8, 1: 15 / 16, 2: 5 / 16, 3: 5 / 8},
    ),
    "sigmoid-faint": (_UNBIASED, {0: -20.0, 7: -20.0, 10: -20.0}, -40.0, {}, {0: 1 / 3, 7: 1 / 3, 10: 1 / 3}),
    "sigmoid-fainter": (_UNBIASED, {0: -60.0, 7: -60.0, 10: -60.0}, -80.0, {}, {0: 1 / 3, 7: 1 / 3, 10: 1 / 3}),
    "sigmoid-far-from-0": (_UNBIASED, {0: 1000.0, 7: 1000.0, 10: 1000.0}, -1000.0, {}, {0: 1 / 3, 7: 1 / 3, 10: 1 / 3}),
    "sigmoid-alone": (replace(ONE, route_scale=1.0), {6: log(3)}, -2.0, {}, {6: 3 / 4}),
    "sigmoid-alone-scaled": (ONE, {6: log(3)}, -2.0, {}, {6: 15 / 8}),
    "softmax-alone": (ONE_SOFTMAX, {6: log(33)}, 0.0, {}, {6: 3 / 4}),
    "softmax-alone-scaled": (replace(ONE_SOFTMAX, route_scale=2.0), {6: log(33)}, 0.0, {}, {6: 3 / 2}),
    # Without the bias experts 1, 3 and one of the others would be chosen; 1 has the best score of all.
    "bias": (
        replace(PLAIN_SIGMOID, route_scale=1.0),
        {1: 5.0, 3: log(3), 5: 0.0, 8: -log(3)}, 0.5, {1: -4.0, 5: 0.7, 8: 1.5, 3: 0.2}, {3: 1 / 2, 5: 1 / 3, 8: 1 / 6},
    ),
}  # fmt: skip


@contract(
    "MOE-01c", asks="run_block", cases=GATES, source="Megatron-Core; arXiv 2412.19437, eq. 12-16",
    conventions=("gate-sum",),
)  # fmt: skip
def gates_are_the_declared_ones(
    stack: Blocks, moe: Moe, some: dict[int, float], other: float, bias: dict[int, float], gates: dict[int, float]
) -> None:
    """A slot's gate is the score of the slot's expert, normalised over the chosen experts, times route_scale, without
    the selection bias.

    Softmax runs over the chosen logits. For k = 1 a sigmoid is its own gate, and a softmax runs over all experts:
    normalised over the one that is chosen either would be 1, and the router would get no gradient. A stack that
    declares 1e-20 in the sum of sigmoids has its gates smaller by that, which shows where every score is faint.
    """
    if chosen(stack, "gate-sum") == "1e-20" and moe.score == "sigmoid" and moe.top_k > 1:
        total = sum(1 / (1 + exp(-some[expert])) for expert in gates)
        gates = {expert: gate * total / (total + 1e-20) for expert, gate in gates.items()}
    logits = [some.get(expert, other) for expert in range(moe.experts)]
    turned = [logits[-n:] + logits[:-n] if not bias else logits for n in range(6)]  # token n: every expert's number + n
    call = expert_calls.labelled_call(
        moe, [turned[:3], turned[3:]], bias=[bias.get(expert, 0.0) for expert in range(moe.experts)]
    )  # fmt: skip
    seen = stack.run_block(call).seen
    experts, got = expert_calls.rows(seen["experts"]), expert_calls.rows(seen["gates"])
    for n in range(6):
        token = dict(zip(experts[n // 3][n % 3], got[n // 3][n % 3], strict=True))
        for expert, gate in gates.items():
            number = expert if bias else (expert + n) % moe.experts
            assert number in token, f"token {n} goes to experts {sorted(token)}, expected {number} among them"
            found = token[number]
            assert abs(found - gate) <= within(1e-12) * gate, (
                f"expert {number} of token {n} has gate {found}, expected {gate}"
            )


SHIFTS = {
    "up": (SIGMOID, 3.0, "swiglu"),
    "down": (replace(SIGMOID, top_k=4, route_scale=1.0), -7.0, "swiglu"),
    "without-losses": (PLAIN_SIGMOID, 3.0, "swiglu"),
    "groups-down": (replace(PLAIN_SIGMOID, top_k=4, groups=(4, 2)), -7.0, "swiglu"),
    "groups-down-relu2": (replace(PLAIN_SIGMOID, top_k=4, groups=(4, 2)), -7.0, "relu2"),
}


@contract("MOE-01d", asks="run_block", cases=SHIFTS, source="arXiv 2408.15664, section 3")
def the_selection_bias_only_selects(stack: Blocks, moe: Moe, shift: float, activation: Activation) -> None:
    """Adding one number to every selection bias changes no output, loss or gradient, and the bias itself gets no
    gradient.

    A bias in the gates would change the output and the objective. A bias with a gradient would also be moved by the
    optimizer.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, activation), 2, 7)
    name = "mixer.router.bias"
    shifted = numerics.array(numerics.tensor(call.weights[name]) + shift)
    one, other = stack.run_block(call), stack.run_block(replace(call, weights={**call.weights, name: shifted}))
    assert name not in one.gradients, f"{name} has a gradient; only the rule that balances the load may move it"
    words = numerics.difference("y", other.y, one.y, FLOAT64)
    words = words or numerics.differences("loss", other.losses, one.losses, FLOAT64)
    words = words or numerics.gradient_differences("gradient of", other.gradients, one.gradients, FLOAT64)
    assert not words, f"with {shift:+g} on every selection bias {words}"


ALONE = {
    "softmax": (PLAIN, 2, 7),
    "sigmoid-with-bias": (PLAIN_SIGMOID, 3, 5),
    "sigmoid-1-of-12": (ONE, 2, 9),
    "softmax-1-of-12": (ONE_SOFTMAX, 2, 9),
}


@contract("MOE-01f", asks="run_block", cases=ALONE, source=PAPERS)
def the_router_learns_from_the_model(stack: Blocks, moe: Moe, batch: int, length: int) -> None:
    """Without auxiliary losses, the router's gradient is the gradient of the gates in the output.

    A router that only the balance loss reaches still trains, and every loss curve looks normal.
    """
    call = expert_calls.drawn_call(expert_calls.with_moe(moe, "swiglu"), batch, length)
    name = "mixer.router.weight"
    got = {key: grad for key, grad in stack.run_block(call).gradients.items() if key == name}
    words = numerics.gradient_differences(
        "gradient of", got, {name: expert_calls.oracle_answer(call).gradients[name]}, FLOAT64
    )
    assert not words, words


UNSCORED = {
    "sigmoid": (replace(PLAIN_SIGMOID, selection_bias=False),),
    "with-bias": (PLAIN_SIGMOID,),
    "one-of-twelve": (replace(PLAIN_SIGMOID, top_k=1),),
    "with-losses": (SIGMOID,),
}


@contract("MOE-01h", asks="run_block", cases=UNSCORED, source="sglang#31017")
def scores_of_0_poison_nothing(stack: Blocks, moe: Moe) -> None:
    """If every expert's score of a token is 0, because a sigmoid underflows, the token goes to k distinct experts, and
    its gates, the output, the losses and every gradient are finite.

    Divided by their sum, scores of 0 are 0 / 0: NaN in the token's row, and one step later in every weight. Which gates
    such a token gets is left open; together they are no more than route_scale.
    """
    faint, plain = [-2000.0] * moe.experts, [float(expert) for expert in range(moe.experts)]
    run = stack.run_block(
        expert_calls.labelled_call(moe, [[faint, plain, faint], [plain, faint, plain]], backward=True)
    )
    for went in (each for row in expert_calls.rows(run.seen["experts"]) for each in row):
        assert len(went) == len(set(went)) == moe.top_k, f"a token goes to {sorted(went)}, expected {moe.top_k} experts"
    gates = numerics.tensor(run.seen["gates"]).flatten(0, 1)
    for n, row in enumerate(gates.tolist()):
        legal = all(0 <= gate <= moe.route_scale for gate in row) and sum(row) <= moe.route_scale * (1 + within(1e-9))
        assert legal, f"the gates of token {n} are {row}, expected numbers from 0 to {moe.route_scale} in all"
    lost = [name for name, each in {"y": run.y, **run.gradients}.items() if not _finite(numerics.tensor(each))]
    lost += [name for name, loss in run.losses.items() if not _finite(numerics.tensor(loss))]
    assert not lost, f"{', '.join(lost)} is not finite where a token has only scores of 0"


def _finite(values: Tensor) -> bool:
    return bool(values.isfinite().all())
