"""Parameter groups: the optimizer table that a stack declares, checked against what a step does to the weights."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support.late import Tensor, torch
from contracts.law._support.recipes import SMALL_DSA
from contracts.law._support.training_run import (
    AHEAD,
    BIASED,
    BIASES,
    DENSE,
    LETTERS,
    MUON,
    OF_SCANS,
    SCANS,
    TIED,
    batch,
    drawn_weights,
    run,
    table,
    updates,
)
from contracts.spec import Mhc, Mode, Moe, Recipe, Step, Tolerance, Training, chosen, within

ORTHOGONAL = Tolerance(
    name="orthogonalized", bound=1e-4, why="whether momentum is a mean or a sum changes what 1e-7 is added to"
)
LARGE = 2e-3
"""The gradient of an expert that is judged: to a smaller one that 1e-7 is more than this bound."""
ROUNDED = 3.0
"""How much farther off a move may be than the suite's own in bfloat16. Small singular values grow 3.4-fold a step, and
their rounding with them: 2e-2 to 2e-1 of a move, and another order of sums rounds otherwise."""
TABLES: dict[str, tuple[Recipe] | tuple[Recipe, Mode]] = {
    "adamw": (LETTERS,),
    "muon": (MUON,),
    "muon-with-prediction-heads": (replace(AHEAD, optim=MUON.optim),),
    "tied": (TIED,),
    "dense": (DENSE,),
    "recomputed": (replace(LETTERS, name="letters-recomputed", recompute="full"),),
    "streams-and-swiglu": (replace(MUON, mhc=Mhc(streams=2), activation="swiglu"),),
    "author-dp": (replace(MUON, name="letters-author"), "author_dp"),
    "biased": (BIASED,),
    "muon-biased": (replace(BIASED, optim=MUON.optim),),
    **{name: (recipe,) for name, recipe in SCANS.items()},
}


FEATURES = {
    "recomputed": ("recompute",),
    "muon": ("muon",), "muon-with-prediction-heads": ("muon", "prediction-heads"),
    "streams-and-swiglu": ("muon", "hyper-connections"), "author-dp": ("author-dp", "muon"), **OF_SCANS,
    "biased": BIASES, "muon-biased": ("muon", *BIASES),
}  # fmt: skip


@contract("OPT-01a", asks=("built", "initial"), cases=TABLES, needs=FEATURES, source="F09")
def the_table_has_each_parameter_once(stack: Training, recipe: Recipe, mode: Mode = "nemo_native") -> None:
    """The optimizer's table names every parameter of the model exactly once, with its shape, held in float32.

    A tied tensor is one parameter. Every trained parameter has a rule and float32 state; a buffer is in no table.
    """
    built, whole = stack.built(recipe, mode), stack.initial(recipe, mode)
    names = [row.name for row in built.parameters]
    for name in names:
        assert names.count(name) == 1, f"{name} stands in the table {names.count(name)} times"
    missing = sorted(set(whole) - set(names) - set(built.buffers))
    assert not missing, f"{', '.join(missing)} of the model stands in no group of the optimizer"
    extra = sorted(set(names) - set(whole))
    assert not extra, f"{', '.join(extra)} stands in the table and not in the model"
    for row in built.parameters:
        assert row.shape == whole[row.name].shape, (
            f"{row.name} has shape {whole[row.name].shape}, in the table {row.shape}"
        )
        assert row.dtype == "float32", f"{row.name} is held in {row.dtype}, expected float32"
        assert row.optimizer is not None, f"{row.name} has no rule in the table, and is not frozen"
        strange = {entry: dtype for entry, dtype in row.state.items() if dtype not in ("float32", "int64")}
        assert not strange, f"{row.name} has state {dict(row.state)}, expected float32"


OF_MUON = ("muon-products", "muon-projections")
TOGETHER = (("w1", "w3"), ("wz", "wx", "wb", "wc", "wdt"))
"""Gate and up projection of an MLP or an expert; what Mamba-2 makes of its input."""


def muon_difference(stack: object, what: str, moved: Tensor, exact: Tensor, rounded: Tensor) -> str:
    """How a move of Muon's differs from the exact one.

    Where a stack declares products in bfloat16 it may be off by `ROUNDED` times what the same iteration in bfloat16 is.
    """
    if chosen(stack, "muon-products") == "float32":
        return numerics.difference(what, moved, exact, ORTHOGONAL)
    off, own = (numerics.distances(each.to(exact.dtype), exact)["L2"].relative for each in (moved, rounded))
    if off > ROUNDED * own:
        return f"{what} is off by {off:.1e}, and products in bfloat16 by {own:.1e}"
    if off <= own / 30 and own:  # where there is no move, nothing is rounded
        return f"{what} is off by {off:.1e}: products in bfloat16, as declared, by {own:.1e}"
    return ""


@contract(
    "OPT-01b", asks=("built", "train"), cases=TABLES, needs=FEATURES, sheds=("packed",),
    source="F09 F18", conventions=OF_MUON,
)  # fmt: skip
def a_step_moves_every_parameter_by_its_rule(stack: Training, recipe: Recipe, mode: Mode = "nemo_native") -> None:
    """A gradient reaches every trainable parameter, and the first step moves each one by the rule that the table names
    and by no other.

    Without decay, AdamW's first step is lr · g / (|g| + 1e-8) and Muon's is an orthogonal matrix, so the move of a
    tensor shows which rule moved it. A parameter in two groups moves twice; a forgotten one does not move.
    """
    recipe = replace(recipe, optim=replace(recipe.optim, weight_decay=0.0, warmup=0))
    rows = table(stack, recipe, mode)
    weights, given = drawn_weights(rows), (batch("table", recipe=recipe),)
    trained = run(stack, recipe, given, "gradients", "weights", weights=weights, mode=mode)
    (step,), (moved,) = trained.steps, updates(weights, trained)
    gradients = numerics.tensors(step.gradients)
    for row in rows:
        assert row.name in gradients, f"{row.name} got no gradient and is in the table under {row.optimizer}"
        assert bool(gradients[row.name].any()), f"no gradient reaches {row.name}, in the table under {row.optimizer}"
        assert bool(moved[row.name].any()), f"{row.name} did not move, and is in the table under {row.optimizer}"
        by = _rules(stack, row.name, moved[row.name], gradients, step)
        assert row.optimizer in by, (
            f"{row.name} {row.shape} is in the table under {row.optimizer} and moved "
            f"{'as by ' + by[0] if by else 'by another rule, ' + _size(moved[row.name], step.lr)}"
        )


def after_muon(
    stack: object, name: str, weights: Mapping[str, Tensor], gradients: Sequence[Mapping[str, Tensor]],
    rates: Sequence[float], *, decay: float | Sequence[float], half: bool = False,
) -> list[Tensor]:  # fmt: skip
    """A matrix after each step of Muon's, from what its gradients were; `half` is for products in bfloat16.

    If a stack declares so, what several projections make of one input lies in one matrix.
    """
    among = beside(name, weights) if chosen(stack, "muon-projections") == "stacked" else [name]
    weight, *given = (torch.cat([held[each] for each in among], dim=-2) for held in (weights, *gradients))
    after = oracles.optimizers.muon(weight, given, rates, decay=decay, half=half)
    sizes = [weights[each].shape[-2] for each in among]
    return [torch.split(each, sizes, dim=-2)[among.index(name)] for each in after]


def beside(name: str, names: Collection[str]) -> list[str]:
    """The projections that read what this one reads, and stacks keep in one tensor with it."""
    begin, stem, end = re.fullmatch(r"(.*?)(w\w+|)((?:\.weight)?)", name).groups()  # type: ignore[union-attr]
    group = next((each for each in TOGETHER if stem in each), (stem,))
    return [other for each in group if (other := f"{begin}{each}{end}") in names]


def _rules(stack: object, name: str, moved: Tensor, gradients: Mapping[str, Tensor], step: Step) -> list[str]:
    """The rules that explain a first step without decay."""
    clipped = {each: gradient * step.clip_coef for each, gradient in gradients.items()}
    none = {each: torch.zeros_like(gradient) for each, gradient in clipped.items()}
    adamw = oracles.optimizers.adamw
    after = adamw(none[name], [clipped[name]], [step.lr], decay=0.0, beta1=0.9, beta2=0.95)[0]
    found = [] if numerics.difference("", moved, after, ORTHOGONAL) else ["adamw"]
    if moved.dim() > 1:
        exact, rounded = (
            after_muon(stack, name, none, [clipped], [step.lr], decay=0.0, half=half)[0] for half in (False, True)
        )
        large = clipped[name].flatten(1).norm(dim=1) > LARGE
        if moved.dim() > 2 and bool(large.any()):
            moved, exact, rounded = (each[large] for each in (moved, exact, rounded))
        found += [] if muon_difference(stack, "", moved, exact, rounded) else ["muon"]
    return found


def _size(moved: Tensor, lr: float) -> str:
    return f"{float(moved.abs().max()) / lr:.3g} times the rate at most"


@contract(
    "OPT-02a", asks=("built", "train"), cases=TABLES, sheds=("packed",),
    needs={**FEATURES, **dict.fromkeys(SCANS, ("mamba", "float64"))}, source="hub F09", conventions=("undecayed",),
)  # fmt: skip
def only_matrices_decay(stack: Training, recipe: Recipe, mode: Mode = "nemo_native") -> None:
    """Weight decay applies to matrices and experts, and not to norms, biases, A_log, D, dt_bias or anything else with
    one dimension.

    The check compares two runs that differ only in weight_decay: after one step they are lr · weight_decay · w apart
    where decay applies, and equal elsewhere. Each tensor decays as much as the table says. A stack may declare that
    only its embedding is spared, or nothing.
    """
    spared = chosen(stack, "undecayed")
    rows = table(stack, recipe, mode)
    weights, given = drawn_weights(rows), (batch("decay", recipe=recipe),)
    recipe = replace(recipe, optim=replace(recipe.optim, warmup=0))
    slack = within(1e-6, 2e-2)
    runs = [
        run(stack, changed, given, "weights", weights=weights, mode=mode)
        for changed in (recipe, replace(recipe, optim=replace(recipe.optim, weight_decay=0.0)))
    ]
    lr, moved = runs[0].steps[0].lr, [updates(weights, each)[0] for each in runs]
    for row in rows:
        weight = numerics.tensor(weights[row.name])
        clear = weight.abs() > 8 * within(2**-53, 2**-24) / slack  # beside a smaller one, two moves are rounded
        shares = ((moved[1][row.name] - moved[0][row.name]) / (lr * weight))[clear]
        low, high = float(shares.min()), float(shares.max())
        found = f"decays by {round(low, 6) + 0.0:.4g} … {round(high, 6) + 0.0:.4g}"
        vector = row.role in ("norm", "bias", "ssm") or len(row.shape) < 2
        if (spared == "vectors" and vector) or (spared == "embeddings" and row.role == "embedding"):
            assert max(abs(low), abs(high)) < slack, f"{row.role} {row.name} {row.shape} {found}, expected none"
        if row.role in ("matrix", "expert") or (spared != "vectors" and row.role in ("norm", "bias")):
            want = recipe.optim.weight_decay
            assert abs(low - want) < slack > abs(high - want), f"{row.role} {row.name} {found}, expected {want}"
        want = row.weight_decay
        assert abs(low - want) < slack > abs(high - want), f"{row.role} {row.name} {found}, and the table says {want}"


MUON_ALONE = {
    "muon": (MUON, {(61, 24), (14, 24), (32, 4)}, {(14, 20, 24), (14, 24, 20), (24, 24), (12, 24), (64, 24)}),
    "prediction-heads": (replace(AHEAD, optim=MUON.optim), {(61, 24), (24, 48), (40, 24)}, {(28, 24)}),
}
"""Shapes worked out by hand: (61, 24) embedding and output projection, (14, 24) router, (32, 4) convolutions; (24, 48)
and (40, 24) occur in prediction heads only; the others are matrices of the layers."""


@contract(
    "OPT-02b", asks=("built", "train"), cases=MUON_ALONE, source="hub F09", conventions=OF_MUON,
)  # fmt: skip
def muon_moves_matrices_of_the_layers_alone(
    stack: Training, recipe: Recipe, spared: set[tuple[int, ...]], taken: set[tuple[int, ...]]
) -> None:
    """Muon moves the matrices and experts of the layers; AdamW moves embedding, output projection, router,
    convolutions, prediction heads and vectors.

    The check judges by shape and by the move itself, not by the stack's own names.
    """
    recipe = replace(recipe, optim=replace(recipe.optim, weight_decay=0.0, warmup=0))
    weights = drawn_weights(table(stack, recipe))
    trained = run(stack, recipe, (batch("shapes"),), "gradients", "weights", weights=weights)
    (step,), (moved,) = trained.steps, updates(weights, trained)
    gradients = numerics.tensors(step.gradients)
    for name, gradient in gradients.items():
        shape = tuple(gradient.shape)
        by = _rules(stack, name, moved[name], gradients, step)
        if len(shape) < 2 or shape in spared:
            assert "adamw" in by, f"{name} {shape} moved as by {' and '.join(by) or 'neither rule'}, expected adamw"
        if shape in taken:
            assert "muon" in by, f"{name} {shape} moved as by {' and '.join(by) or 'neither rule'}, expected muon"


IDLE = {
    "adamw": (LETTERS,),
    "muon": (MUON,),
    "half-muon": (replace(MUON, name="letters-half-muon", dtype="bf16"),),
    "dense": (DENSE,),
    "one-expert-for-all": (replace(LETTERS, moe=Moe(experts=14, top_k=1, expert_hidden=20)),),
}
OF_EXPERTS = {**dict.fromkeys(("adamw", "muon", "half-muon"), ("experts",)), "one-expert-for-all": ("experts", "top-1")}


@contract("OPT-01c", asks=("built", "train"), cases=IDLE, needs=OF_EXPERTS, sheds=("packed",), source="F18")
def every_parameter_has_state(stack: Training, recipe: Recipe) -> None:
    """After a step every trainable parameter has optimizer state and still decays, including experts without tokens.

    A tensor that the optimizer skipped has no moments to save and does not decay, while the same tensor on the next
    rank has and does.
    """
    short = batch("idle", rows=(((2,), 0), ((2,), 1)), recipe=recipe)  # four tokens, 14 experts
    trained = run(stack, recipe, (short, short), "optimizer", "weights", declared=True)
    rows = table(stack, recipe)
    first, second = (numerics.tensors(step.weights) for step in trained.steps)
    for row in rows:
        for step in trained.steps:
            held = {
                name.rpartition("/")[2]: each
                for name, each in step.optimizer.items()
                if name.startswith(f"{row.name}/")
            }
            sized = [entry for entry, each in held.items() if each.shape == row.shape]
            assert sized, f"{row.name} has no state of its shape after step {step.number}, but {sorted(held)}"
            for entry, each in held.items():
                assert each.dtype in ("float32", "int64"), f"{row.name}/{entry} is {each.dtype}, expected float32"
        if row.role == "expert" and row.weight_decay:
            still = (first[row.name] == second[row.name]).flatten(1).all(1)
            assert bool(second[row.name].isfinite().all()), f"{row.name}, of which experts got no token, is not finite"
            lacking = still.nonzero().flatten().tolist()
            assert not lacking, f"experts {lacking} of {row.name} got no token and did not decay"


SPARSE = replace(SMALL_DSA, name="sparse", pattern="AE", depth=5, seq_length=13, vocab=61, optim=LETTERS.optim)
"""A E A E A, with an indexer in layers 0 and 4. An indexer has (40, 12) + (8, 24) + 8 + 8 + (5, 24) = 808 numbers."""
INDEXED = {"adamw": (SPARSE,), "muon": (replace(SPARSE, optim=MUON.optim),)}


@contract(
    "OPT-01d",
    asks=("built", "initial", "train"),
    cases=INDEXED,
    float32=False,
    source="F09; arXiv 2512.02556 section 2.1",
)
def what_is_frozen_stands_still(stack: Training, recipe: Recipe) -> None:
    """A parameter that the table calls frozen has no optimizer state and stays bit-identical over two steps with decay;
    every other parameter gets a gradient and moves. A stack freezes whole indexers of sparse attention or nothing.

    An indexer that no loss trains gets no gradient. If it is in the optimizer all the same, it decays to zero and then
    selects keys from noise.
    """
    rows, whole = table(stack, recipe), stack.initial(recipe, "nemo_native")
    names = sorted(row.name for row in rows)
    lost = sorted(set(whole) - set(names) - set(stack.built(recipe, "nemo_native").buffers))
    assert not lost, f"{', '.join(lost[:3])} of the model stands in no row of the table"
    weights = drawn_weights(rows)
    given = (batch("frozen 1"), batch("frozen 2"))
    trained = run(stack, recipe, given, "gradients", "weights", "optimizer", weights=weights)
    start, last = numerics.tensors(weights), numerics.tensors(trained.steps[-1].weights)
    gradients = numerics.tensors(trained.steps[0].gradients)
    for row in rows:
        still = bool((last[row.name] == start[row.name]).all())
        held = sorted(each for each in trained.steps[-1].optimizer if each.startswith(f"{row.name}/"))
        if row.optimizer is None:
            assert still, f"{row.name} is frozen in the table, and two steps moved it"
            assert not held, f"{row.name} is frozen in the table, and has the state {', '.join(held)}"
            continue
        reached = row.name in gradients and bool(gradients[row.name].any())
        assert reached, f"no gradient reaches {row.name}, which stands in the table under {row.optimizer}"
        assert not still, f"{row.name} stands in the table under {row.optimizer} and did not move"
    for layer in range(5):
        frozen = sum(math.prod(row.shape) for row in rows if row.layer == layer and row.optimizer is None)
        allowed = (0, 808) if layer in (0, 4) else (0,)
        assert frozen in allowed, (
            f"{frozen} numbers of layer {layer} are frozen, expected {' or '.join(map(str, allowed))}"
        )
