"""The selection bias under gradient accumulation: one move per optimizer step."""

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.training_run import DENSE, LETTERS, batch, batches, drawn_weights, run, table
from contracts.spec import FLOAT64, Moe, Recipe, Training, chosen

BIASED = replace(
    LETTERS,
    name="letters-biased",
    moe=Moe(experts=14, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True, bias_rate=0.25),
)
"""Layers 1 and 5 route."""
HALF = replace(
    DENSE, name="dense-biased-half", dtype="bf16",
    moe=Moe(experts=14, top_k=3, expert_hidden=16, score="sigmoid", selection_bias=True, bias_rate=1e-3, aux_loss=0.0),
)  # fmt: skip
"""A E A E; layers 1 and 3 route. Experts are a multiple of 8 wide, as grouped products in 16 bits want them."""
ONE_DOCUMENT = (((13,), 3), ((13,), 0), ((13,), 6))


CUTS = {"one": (1,), "three": (3,), "five": (5,), "recomputed": (2, True)}


@contract("MOE-06b", asks=("built", "train"), cases=CUTS, source="F18; F13")
def the_selection_bias_moves_once_a_step(stack: Training, microbatches: int, recompute: bool = False) -> None:
    """Every router's selection bias moves by its rate once per optimizer step: up for experts with fewer assignments in
    the whole step than the mean, down for experts with more.

    The check runs two steps with two routed layers. An update per microbatch moves the bias once for each microbatch,
    by a part of the counts. A bias that one layer's flag leaves out stays zero forever. A counter in the forward pass
    counts twice where the backward pass runs it again.
    """
    import torch

    weights = drawn_weights(table(stack, BIASED))
    names = sorted(name for name in stack.built(BIASED, "nemo_native").buffers if name.endswith("bias"))
    assert len(names) == 2, f"the routers of layers 1 and 5 have a selection bias; found {names}"
    trained = run(stack, BIASED, batches(2), "buffers", weights=weights, microbatches=microbatches, recompute=recompute)
    expected = {name: torch.zeros(14, dtype=torch.float64) for name in names}
    for step in trained.steps:
        seen = instruments.numerics.tensors(step.seen)
        for name, layer in zip(names, (1, 5), strict=True):
            counts = seen.get(f"layers.{layer}.counts")
            assert counts is not None, f"step {step.number} counted nothing in layer {layer}"
            assert int(counts.sum()) == 195, (
                f"layer {layer} counted {int(counts.sum())} assignments, expected 5 · 13 · 3"
            )
            expected[name] += 0.25 * torch.sign(195 / 14 - counts.double())
            words = instruments.numerics.difference(
                f"{name} after step {step.number}", step.buffers[name], expected[name], FLOAT64
            )
            assert not words, words


@contract("MOE-06h", asks=("built", "train"), cases={"from-one": (HALF, 1.0), "from-minus-four": (HALF, -4.0)},
          conventions=("bias-moves",), source="F09")  # fmt: skip
def the_selection_bias_stays_float32(stack: Training, recipe: Recipe, begin: float) -> None:
    """Under bfloat16 a router's selection bias stays float32 and moves by its whole rate each step, so no update is
    rounded away.

    A wrapper that casts a model casts its buffers too. In bfloat16 a bias of 1 plus 0.001 is 1: the router never
    balances, and nothing else shows it. A stack may declare that moves are centred.
    """
    import torch

    centred = chosen(stack, "bias-moves") == "centred"

    shapes = {name: shape for name, shape in stack.built(recipe, "nemo_native").buffers.items() if "bias" in name}
    assert len(shapes) == 2, f"the routers of layers 1 and 3 have a selection bias; found {sorted(shapes)}"
    buffers = {name: torch.full(shape, begin) for name, shape in shapes.items()}
    given = tuple(replace(batch(f"half {step}", rows=ONE_DOCUMENT), documents=None) for step in range(3))
    trained = run(
        stack, recipe, given, "buffers", weights=drawn_weights(table(stack, recipe)), declared=True,
        buffers=instruments.numerics.arrays(buffers),
    )  # fmt: skip
    want = {name: each.double() for name, each in buffers.items()}
    for step in trained.steps:
        seen = instruments.numerics.tensors(step.seen)
        for name, layer in zip(sorted(shapes), (1, 3), strict=True):
            found, counts = step.buffers[name], seen.get(f"layers.{layer}.counts")
            assert found.dtype == "float32", f"{name} is held in {found.dtype}, expected float32"
            held = instruments.numerics.tensor(found).double()
            if counts is None:  # a stack that keeps none: each expert moves by the rate or rests, not all rest
                moves = ((held - want[name]) / 1e-3).round().clamp(-1, 1)
                moves = moves if bool(moves.any()) else torch.ones_like(moves)
            else:
                moves = torch.sign(counts.double().mean() - counts.double())
            want[name] = want[name] + 1e-3 * (moves - moves.mean() if centred else moves)
            expert = int((held - want[name]).abs().argmax())
            assert abs(held[expert] - want[name][expert]) < 1e-5, (
                f"{name} of expert {expert} is {held[expert]:.7g} after step {step.number}, "
                f"expected {want[name][expert]:.7g}"
            )
