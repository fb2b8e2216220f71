"""Frozen parameters: they stay, and nothing else changes; a checkpoint has them, and ranks agree on them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import multi_rank_run
from contracts.law._support.late import Tensor
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_run import BIASED, SPREAD, borrowed, own_axis
from contracts.law._support.saved_states import FAMILIES, bit_difference, folder
from contracts.law._support.step_comparison import (
    clip_difference,
    gradient_differences,
    on_one_rank_and_many,
    state_differences,
)
from contracts.law._support.training_run import (
    DENSE,
    IDLE,
    LETTERS,
    MUON,
    TIED,
    batches,
    drawn_weights,
    large_expert_weights,
    run,
    selection_biases,
    table,
    updates,
)
from contracts.spec import (
    FLOAT64,
    FLOAT64_SCAN,
    Arrays,
    Execution,
    Parameter,
    Recipe,
    Session,
    Step,
    Trained,
    Training,
    within,
)

DEEP = replace(DENSE, name="letters-deep", depth=12)
LAST = r"^layers\.(?!0\.)|^head"
"""All but the first layer, the embedding and the norm at the end."""


def _warm(recipe: Recipe) -> Recipe:
    """Without warm-up, because some stacks begin it with a rate of 0."""
    return replace(recipe, optim=replace(recipe.optim, warmup=0))


WARM, WARM_TIED, WARM_MUON = map(_warm, (LETTERS, TIED, MUON))
PARTS: dict[str, tuple[Recipe, str, bool]] = {  # a pattern of the names that are frozen, whether blocks are recomputed
    "embedding": (WARM, r"^embedding", False),
    "embedding-recomputed": (WARM, r"^embedding", True),
    "tied": (WARM_TIED, r"^embedding", False),
    "routers": (WARM, r"router\.weight", False),
    "experts": (WARM, r"\.experts\.", False),
    "last-layers": (WARM, LAST, False),
    "layer-1-of-12": (_warm(DEEP), r"^layers\.1\.", False),
    "all-but-norms": (_warm(DENSE), r"^(?!.*norm)", False),
}


@contract(
    "OPT-10a", asks=("built", "train"), cases=PARTS, sheds=("packed",),
    needs={
        "": ("frozen",), "embedding-recomputed": ("frozen", "recompute"), "tied": ("frozen", "tied"),
        "routers": ("frozen", "experts", "balance-loss"), "experts": ("frozen", "experts"),
    },
    source="F09 F18",
)  # fmt: skip
def what_is_frozen_stays_and_nothing_else_changes(
    stack: Training, recipe: Recipe, pattern: str, recompute: bool
) -> None:
    """Frozen parameters stay bit-identical and have no gradient and no optimizer state. All others move, have the same
    gradients as when nothing is frozen, and are clipped by the norm of their own gradients only.

    Gradients pass through a frozen layer to those before it. A rate of 0 or a gradient of 0 does not freeze: the norm
    counts such a parameter, and AdamW decays it.
    """
    rows = table(stack, recipe)
    frozen, weights, given = _frozen(rows, pattern), drawn_weights(rows), batches(2, recipe=recipe)
    (free,) = run(stack, recipe, given[:1], "gradients", weights=weights, recompute=recompute).steps
    held = run(
        stack, recipe, given, "gradients", "weights", "optimizer", weights=weights, recompute=recompute, frozen=frozen
    )
    for step, moved in zip(held.steps, updates(weights, held), strict=True):
        _stays(step, frozen, moved)
        _is_trained(step, [row for row in rows if row.optimizer and row.name not in frozen], moved, recipe.optim.clip)
    trained = free.gradients.keys() - frozen
    got, want = ({name: each.gradients[name] for name in trained} for each in (held.steps[0], free))
    words = numerics.gradient_differences(
        "with others frozen the gradient of", got, want, FLOAT64_SCAN, scale=numerics.scale_of(free.gradients)
    )
    assert not words, words


def _frozen(rows: tuple[Parameter, ...], pattern: str) -> frozenset[str]:
    return frozenset(row.name for row in rows if row.optimizer and re.search(pattern, row.name))


def _stays(step: Step, frozen: frozenset[str], moved: dict[str, Tensor]) -> None:
    """Nothing of what is frozen is trained. A gradient of zeros is none."""
    for name in sorted(frozen):
        far = float(moved[name].abs().max())
        assert not far, f"{name} is frozen and moved by up to {far:.3g} (step {step.number})"
        gradient = step.gradients.get(name)
        learned = gradient is not None and bool(numerics.tensor(gradient).any())
        assert not learned, f"{name} is frozen and has a gradient (step {step.number})"
    state = sorted(key for key in step.optimizer if key.rpartition("/")[0] in frozen)
    assert not state, f"there is optimizer state of what is frozen: {state[0]} (step {step.number})"


def _is_trained(step: Step, rows: list[Parameter], moved: dict[str, Tensor], clip: float) -> None:
    """All that is trained has a gradient and moves, and the norm equals its gradients'."""
    names = [row.name for row in rows]
    for name in names:
        assert name in step.gradients, f"{name} is trained and has no gradient (step {step.number})"
        assert bool(moved[name].any()), f"{name} is trained and did not move (step {step.number})"
    squares = (float(numerics.tensor(step.gradients[name]).double().square().sum()) for name in names)
    norm = sqrt(sum(squares))
    for what, got, want in (
        ("grad_norm", step.grad_norm, norm), ("clip_coef", step.clip_coef, min(1.0, clip / (norm + 1e-6))),
    ):  # fmt: skip
        words = f"{what} is {got:.8g}, that of what is trained is {want:.8g} (step {step.number})"
        assert abs(got - want) <= within(1e-9) * max(1.0, want), words


RESUMED: dict[str, tuple[Recipe, str, str]] = {  # what is frozen before the save, and after it
    "as-before": (WARM, r"^embedding|router\.weight", r"^embedding|router\.weight"),
    "unfrozen": (WARM, LAST, r"^$"),
    "frozen-later": (WARM, r"^$", LAST),
    "others": (WARM_MUON, r"^layers\.0\.", r"^layers\.1\."),
}


@contract(
    "OPT-10b", asks=("built", "train"), cases=RESUMED, sheds=("packed",), source=FAMILIES,
    needs={"": ("frozen", "refrozen", "checkpoint"), "as-before": ("frozen", "checkpoint", "experts"),
           "others": ("frozen", "refrozen", "checkpoint", "muon")},
)  # fmt: skip
def a_resumed_run_may_freeze_others(stack: Training, recipe: Recipe, before: str, after: str) -> None:
    """A checkpoint holds the values of frozen parameters. A run that loads it may freeze other parameters: those
    trained before continue with their moments, those frozen before begin as in a first step, and those frozen now do
    not move.

    A parameter with moments and without a gradient is moved by them.
    """
    rows = table(stack, recipe)
    then, now = _frozen(rows, before), _frozen(rows, after)
    given, state = batches(3, recipe=recipe), frozenset({"gradients", "weights", "optimizer"})
    asked = Session(recipe=recipe, steps=2, execution=Execution(precision="float64"), batches=given[:2], frozen=then,
                    weights=drawn_weights(rows), observe=state)  # type: ignore[arg-type]  # fmt: skip
    with folder() as at:
        saved = stack.train(replace(asked, save=str(at), save_at=frozenset({2}))).steps[-1]
        later = replace(asked, steps=1, batches=given[2:], weights={}, load=str(at), frozen=now,
                        at=frozenset({0, 3}))  # fmt: skip
        resumed = stack.train(later)
    assert resumed.loaded is not None, "the loaded state is not there"
    words = bit_difference(resumed.loaded.weights, saved.weights)
    assert not words, f"after the load {words}"
    (step,) = resumed.steps
    _stays(step, now, updates(saved.weights, resumed)[0])
    for row in rows:
        if row.optimizer and row.name not in now:
            _continues(row, recipe, saved.optimizer, step, new=row.name in then)


def _continues(row: Parameter, recipe: Recipe, saved: Arrays, step: Step, *, new: bool) -> None:
    """The first moment follows from the saved one, or from none, and the step's clipped gradient."""
    tensor, entry = numerics.tensor, "momentum_buffer" if row.optimizer == "muon" else "exp_avg"
    key, told = f"{row.name}/{entry}", "was frozen" if new else "was trained"
    assert key in step.optimizer, f"{row.name} {told} and has no {entry} (step {step.number})"
    gradient = tensor(step.gradients[row.name]) * step.clip_coef
    kept, share = (0.95, 1.0) if row.optimizer == "muon" else (recipe.optim.beta1, 1 - recipe.optim.beta1)
    want = share * gradient + (0 if new else kept * tensor(saved[key]))
    words = numerics.difference(f"{entry} of {row.name}, which {told},", step.optimizer[key], want, FLOAT64)
    assert not words, words
    count = step.optimizer.get(f"{row.name}/step")
    if count is not None:
        taken, due = float(tensor(count)), 1 if new else step.number
        assert taken == due, f"{row.name} {told} and has taken {taken:g} steps, expected {due}"


HEADS = replace(SPREAD, name="spread-tied", pattern="AEMR", depth=4, untied_embeddings=False)
MUON_SPREAD = replace(SPREAD, name="spread-muon", optim=MUON.optim)
STAGED = replace(BIASED, pattern="AEM|RE")
RATES = {"layers.1.mixer.router.bias": 0.5, "layers.4.mixer.router.bias": 2.0, "embedding": 0.25, "w2": 3.0, "wq": 0.0}
"""The rates of all tensors whose names contain one of these, times the recipe's."""
CELLS: dict[str, tuple[Recipe, Execution, str, Mapping[str, float], int]] = {
    name: (recipe, execution, pattern, {}, execution.world)
    for name, recipe, execution, pattern in (
        ("dp2", SPREAD, own_axis(2), r"^embedding"),
        ("tp2-sp", SPREAD, own_axis(2, tp=2, sp=True), r"^embedding|norm"),
        ("fsdp2", SPREAD, replace(own_axis(2, fsdp=True), microbatches=2), r"wq|^layers\.1\."),
        ("ep2", SPREAD, own_axis(2, ep=2), r"router\.weight"),
        ("borrowed-ep2-fsdp", SPREAD, borrowed(2, ep=2, fsdp=True), r"\.experts\.w1"),
        ("cp2", SPREAD, borrowed(2, cp=2), r"^layers\.[02]\."),
        ("tp2-sp-fsdp2-muon", MUON_SPREAD, own_axis(4, tp=2, sp=True, fsdp=True), r"wo|^layers\.1\.|norm"),
        ("pp2-tied", HEADS, replace(own_axis(2, pp=2), microbatches=2), r"^layers\.2\."),
        ("pp2-frozen-ends", HEADS, replace(own_axis(2, pp=2), microbatches=2), r"^embedding"),
    )
} | {
    f"{name}-rates": (recipe, execution, pattern, RATES, execution.world)
    for name, recipe, execution, pattern in (
        ("tp2-sp-etp1", BIASED, own_axis(2, tp=2, etp=1, sp=True), r"norm"),
        ("fsdp2", BIASED, own_axis(2, fsdp=True), r"^$"),
        ("borrowed-ep2", BIASED, borrowed(2, ep=2), r"experts\.w1"),
        ("cp2", BIASED, borrowed(2, cp=2), r"^$"),
        ("pp2", STAGED, replace(own_axis(2, pp=2), microbatches=2), r"^layers\.2\."),
    )
}


@contract("OPT-10c", asks=("built", "train"), cases=CELLS, source="F03 F18", tier="dist")
def ranks_freeze_what_one_rank_freezes(
    stack: Training, recipe: Recipe, execution: Execution, pattern: str, rates: Mapping[str, float], world: int
) -> None:
    """On each layout, two steps with frozen parameters, or with tensors that have rates of their own, have one rank's
    gradients, norm, weights, moments and selection biases.

    What is wrapped, cut or flattened together need not be trained together, nor at one rate.
    """
    rows = table(stack, recipe)
    frozen = _frozen(rows, pattern)
    buffers = selection_biases(stack, recipe, IDLE, -4.0)
    own = {name: rate for name in (*(row.name for row in rows if row.optimizer), *buffers)
           for part, rate in rates.items() if part in name}  # fmt: skip
    session = Session(
        recipe=recipe, steps=2, execution=replace(in_a_layout_of(stack, execution), precision="float64"), frozen=frozen,
        batches=multi_rank_run.batches(2, recipe), weights=large_expert_weights(stack, recipe), buffers=buffers,
        rates=own, observe=frozenset({"gradients", "weights", "optimizer", "buffers"}),
    )  # fmt: skip
    for alone, many in on_one_rank_and_many(stack, session):
        _stays(many, frozen, updates(session.weights, Trained(start=0, steps=(many,)))[0])
        words = gradient_differences(alone, many) or clip_difference(alone, many)
        words = words or state_differences(alone, many, "weights", "optimizer", "buffers")
        assert not words, words
