"""The selection bias: balanced experts without an auxiliary loss."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from contracts import instruments
from contracts.checks._support import expert_calls
from contracts.checks._support.expert_calls import SIGMOID
from contracts.contract import contract
from contracts.spec.array import Arrays, Shape
from contracts.spec.conventions import chosen
from contracts.spec.tolerance import within
from contracts.spec.training import Built, Execution, Session, Tokens, Training

if TYPE_CHECKING:
    from torch import Tensor

TWO_SIGMOIDS = replace(SIGMOID, top_k=2, shared_hidden=0)

# Token v goes to experts v and v + 1. How often each token stands in the batch, and so how often each expert is asked:
_TOKENS = (6, 0, 0, 4, 0, 2, 2, 2, 2, 2, 1, 3)
_ASKED = (9, 6, 0, 4, 4, 2, 4, 4, 4, 4, 3, 4)  # 48 of 24 tokens: the mean is 4
_MOVES = (-1, -1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0)
_MOVES_BY_KEPT = (-1, -1, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1)  # two of each are kept but for the idle one

MOVED: dict[str, tuple[float, int, float | None]] = {  # rate, microbatches, capacity factor
    "small": (1e-3, 1, None),
    "large": (0.25, 1, None),
    "two-microbatches": (0.01, 2, None),
    "full": (0.01, 1, 0.5),
}


@contract(
    "MOE-06a", float32=True, asks=("built", "train"), cases=MOVED, source="arXiv 2408.15664, algorithm 1",
    conventions=("capacity-counts",),
)  # fmt: skip
def the_bias_moves_by_its_rate_towards_the_mean(
    stack: Training, rate: float, microbatches: int, factor: float | None
) -> None:
    """A step adds the rate to the selection bias of each expert with fewer assignments than the mean over all experts,
    subtracts it from each expert with more, and leaves an expert at the mean alone. Idle experts count,
    and dropped assignments unless the stack declares that those which were kept move the bias.
    """
    moe = replace(TWO_SIGMOIDS, bias_rate=rate, capacity_factor=factor, expert_hidden=24, aux_loss=0.0)
    recipe = replace(expert_calls.WIDE, name="biased", pattern="E", depth=1, moe=moe)
    built, numerics = stack.built(recipe, "nemo_native"), instruments.numerics
    (name,) = (each for each in built.buffers if each.endswith("bias"))
    before = [0.01 * expert for expert in range(12)]
    trained = stack.train(
        Session(
            recipe=recipe,
            steps=1,
            execution=Execution(microbatches=microbatches, precision="float64"),
            batches=(_two_rows(),),
            weights=_routing_by_token(built),
            buffers={name: numerics.array(_float64(before))},
            observe=frozenset({"buffers"}),
        )
    )
    after = numerics.tensor(trained.steps[0].buffers[name]).tolist()
    kept = factor is not None and chosen(stack, "capacity-counts") == "kept"
    moves = _MOVES_BY_KEPT if kept else _MOVES
    for expert, (asked, old, sign) in enumerate(zip(_ASKED, before, moves, strict=True)):
        moved, want = after[expert] - old, sign * rate
        words = f"the bias of expert {expert}, asked {asked} times where the mean is 4, moved by {moved:+.3g}"
        assert abs(moved - want) <= within(1e-12, 1e-7), f"{words}, expected {want:+.3g}"


def _routing_by_token(built: Built) -> Arrays:
    """Weights of a model of one E block in which token v goes to experts v and v + 1."""
    import torch

    shapes = {row.name: Shape(dtype="float64", shape=row.shape) for row in built.parameters}
    weights = instruments.fixtures.weights(shapes)
    for row in built.parameters:
        if row.role == "embedding":
            weights[row.name] = 8 * torch.eye(64, dtype=torch.float64)[: row.shape[0]]
        elif row.role == "norm" and row.layer == 0:
            weights[row.name] = torch.ones_like(weights[row.name])
        elif row.role == "router":
            chosen_E12 = _float64([[2.0 if (expert - v) % 12 < 2 else -4.0 for v in range(12)] for expert in range(12)])
            weights[row.name] = torch.zeros_like(weights[row.name])
            weights[row.name][:, :12] = chosen_E12 / 8
    return instruments.numerics.arrays(weights)


def _two_rows() -> Tokens:
    """Two rows of twelve tokens; each row alone has a different load from both together."""
    import torch

    token_N = torch.repeat_interleave(torch.arange(12), torch.tensor(_TOKENS))
    tokens_BT = token_N.view(2, 12)
    array = instruments.numerics.array
    return Tokens(tokens=array(tokens_BT), labels=array(tokens_BT.roll(-1, 1)))


def _float64(values: object) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.float64)
