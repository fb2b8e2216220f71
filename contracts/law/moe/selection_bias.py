"""The selection bias: balanced experts without an auxiliary loss."""

from collections.abc import Sequence
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics
from contracts.law._support import expert_calls
from contracts.law._support.expert_calls import SIGMOID
from contracts.law._support.late import Tensor, torch
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import borrowed, own_axis
from contracts.spec import Arrays, Built, Execution, Recipe, Session, Shape, Tokens, Training, chosen, within

TWO_SIGMOIDS = replace(SIGMOID, top_k=2, shared_hidden=0)

# Token v goes to experts v and v + 1. How often each token stands in the batch, and so how often each expert is asked:
_TOKENS = (6, 0, 0, 4, 0, 2, 2, 2, 2, 2, 1, 3)
_ASKED = (9, 6, 0, 4, 4, 2, 4, 4, 4, 4, 3, 4)  # 48 of 24 tokens: the mean is 4
_MOVES = (-1, -1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0)
_MOVES_BY_KEPT = (-1, -1, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1)  # two of each are kept but for the idle one

# The same of 1800 tokens. bfloat16 has every other number from 256 on: 299 and 301 are 300 there.
_MANY_TOKENS = (151, 150, 150, 149, *(150,) * 8)
_MANY_ASKED = (301, 301, 300, 299, 299, *(300,) * 7)
_MANY_MOVES = (-1, -1, 0, 1, 1, *(0,) * 7)

MOVED: dict[str, tuple[float, int, float | None]] = {  # rate, microbatches, capacity factor
    "small": (1e-3, 1, None),
    "large": (0.25, 1, None),
    "two-microbatches": (0.01, 2, None),
    "full": (0.01, 1, 0.5),
}


@contract(
    "MOE-06a", asks=("built", "train"), cases=MOVED, source="arXiv 2408.15664, algorithm 1",
    conventions=("capacity-counts", "bias-moves"),
)  # fmt: skip
def the_bias_moves_by_its_rate_towards_the_mean(
    stack: Training, rate: float, microbatches: int, factor: float | None
) -> None:
    """A step adds the rate to the selection bias of each expert with fewer assignments than the mean over all experts,
    subtracts it from each expert with more, and leaves that of an expert at the mean unchanged. Idle experts count, and
    so do dropped assignments, unless the stack declares that only kept ones move the bias.

    A stack may declare that the mean of all moves is taken off each: the choice stays, and the biases add up to what
    they did.
    """
    moe = replace(TWO_SIGMOIDS, bias_rate=rate, capacity_factor=factor, expert_hidden=24, aux_loss=0.0)
    recipe = replace(expert_calls.WIDE, name="biased", pattern="E", depth=1, moe=moe)
    kept = factor is not None and chosen(stack, "capacity-counts") == "kept"
    words = _moved_otherwise(
        stack, recipe, Execution(microbatches=microbatches, precision="float64"), _batch(_tokens(_TOKENS).view(2, 12)),
        _ASKED, _MOVES_BY_KEPT if kept else _MOVES, within(1e-12, 1e-7),
    )  # fmt: skip
    assert not words, words


MANY = replace(
    expert_calls.WIDE, name="biased-by-many", pattern="E", depth=1, dtype="bf16",
    moe=replace(TWO_SIGMOIDS, bias_rate=0.01, expert_hidden=24, aux_loss=0.0),
)  # fmt: skip


@contract(
    "MOE-06i", asks=("built", "train"), cases={"one": (1,), "three-microbatches": (3,)}, source="Megatron-LM #7081",
    conventions=("bias-moves",),
)  # fmt: skip
def assignments_are_counted_one_by_one(stack: Training, microbatches: int) -> None:
    """Under bfloat16 a selection bias falls for an expert with 301 assignments where the mean is 300, and rises for one
    with 299.

    A counter that is a buffer of the model is cast with it. bfloat16 rounds counts of a few hundred, and those of a
    real batch by hundreds: experts near the mean move the wrong way, or rest.
    """
    execution = Execution(microbatches=microbatches, precision="declared")
    words = _moved_otherwise(stack, MANY, execution, _dealt(3), _MANY_ASKED, _MANY_MOVES, 1e-6)
    assert not words, words


SPREAD_OUT: dict[str, tuple[Execution, int]] = {
    name: (execution, execution.world)
    for name, execution in {
        "dp2": own_axis(2),
        "fsdp2": own_axis(2, fsdp=True),
        "borrowed-ep2": borrowed(2, ep=2),
        "tp2-sp-etp1": own_axis(2, tp=2, etp=1, sp=True),
    }.items()
}


@contract(
    "MOE-06j", asks=("built", "train"), cases=SPREAD_OUT, source="Megatron-LM #7081", tier="dist",
    conventions=("bias-moves",),
)  # fmt: skip
def assignments_of_all_ranks_are_counted_one_by_one(stack: Training, execution: Execution, world: int) -> None:
    """Under bfloat16 and on several ranks a selection bias falls for an expert with 301 assignments where the mean is
    300, and rises for one with 299.

    Each rank counts half of them, which bfloat16 holds. The sum over ranks is rounded where it is sent in bfloat16, and
    by another amount where it is added up in another order.
    """
    execution = replace(in_a_layout_of(stack, execution), precision="declared")
    words = _moved_otherwise(stack, MANY, execution, _dealt(2), _MANY_ASKED, _MANY_MOVES, 1e-6)
    assert not words, words


def _moved_otherwise(
    stack: Training, recipe: Recipe, execution: Execution, given: Tokens, asked: Sequence[int], moves: Sequence[int],
    bound: float,
) -> str:  # fmt: skip
    """Which expert's bias a step moves by something else than its rate times `moves`."""
    built = stack.built(recipe, execution.mode)
    (name,) = (each for each in built.buffers if each.endswith("bias"))
    before = [0.01 * expert for expert in range(12)]
    trained = stack.train(
        Session(
            recipe=recipe,
            steps=1,
            execution=execution,
            batches=(given,),
            weights=_routing_by_token(built),
            buffers={name: numerics.array(_float64(before))},
            observe=frozenset({"buffers"}),
        )
    )
    after = numerics.tensor(trained.steps[0].buffers[name]).tolist()
    assert recipe.moe is not None
    mean = sum(asked) // len(asked)
    centre = sum(moves) / len(moves) if chosen(stack, "bias-moves") == "centred" else 0
    for expert, (times, old, sign) in enumerate(zip(asked, before, moves, strict=True)):
        moved, want = after[expert] - old, (sign - centre) * recipe.moe.bias_rate
        if not abs(moved - want) <= bound:
            words = f"the bias of expert {expert}, asked {times} times where the mean is {mean}, moved by {moved:+.3g}"
            return f"{words}, expected {want:+.3g}"
    return ""


def _routing_by_token(built: Built) -> Arrays:
    """Weights of a model of one E block in which token v goes to experts v and v + 1."""
    shapes = {row.name: Shape(dtype="float64", shape=row.shape) for row in built.parameters}
    weights = fixtures.weights(shapes)
    for row in built.parameters:
        if row.role == "embedding":
            weights[row.name] = 8 * torch.eye(64, dtype=torch.float64)[: row.shape[0]]
        elif row.role == "norm" and row.layer == 0:
            weights[row.name] = torch.ones_like(weights[row.name])
        elif row.role == "router":
            chosen_E12 = _float64([[2.0 if (expert - v) % 12 < 2 else -4.0 for v in range(12)] for expert in range(12)])
            weights[row.name] = torch.zeros_like(weights[row.name])
            weights[row.name][:, :12] = chosen_E12 / 8
    return numerics.arrays(weights)


def _tokens(counts: Sequence[int]) -> Tensor:
    """Token v as often as `counts` says, in order: each of two rows has another load than both together."""
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def _dealt(rows: int) -> Tokens:
    """The many tokens dealt out to rows, each of which has an equal share of every token."""
    return _batch(_tokens(_MANY_TOKENS).view(-1, rows).T.contiguous())


def _batch(tokens_BT: Tensor) -> Tokens:
    array = numerics.array
    return Tokens(tokens=array(tokens_BT), labels=array(tokens_BT.roll(-1, 1)))


def _float64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
