"""A resumed run is bit-identical to the run that was not interrupted, through two loads and two steps past the last."""

import random
from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.recipes import SMALL, SMALL_DSA
from contracts.law._support.saved_states import FAMILIES, folder
from contracts.law._support.training_run import OF_SCANS, SCAN, batches, seed_generators
from contracts.spec import (
    Arrays,
    Batch,
    Dsa,
    Execution,
    Mhc,
    Moe,
    Mtp,
    Observed,
    Optim,
    ParallelSsm,
    Recipe,
    Session,
    Step,
    Tokens,
    Training,
    rung_of,
)

SHORT = replace(
    SMALL,
    name="short",
    pattern="AEMR",
    depth=4,
    seq_length=17,
    moe=Moe(experts=12, top_k=3, expert_hidden=12, shared_hidden=16, score="sigmoid", selection_bias=True, z_loss=0.01),
    optim=Optim(lr=1e-2, min_lr=1e-3, warmup=3, steps=7, weight_decay=0.3, clip=0.7),
    batch=Batch(micro=1, total=5),
)
"""A E M R. Warm-up ends between the two loads and the schedule after the run. 12 experts with a selection bias."""
MUON = replace(SHORT, name="short-muon", optim=replace(SHORT.optim, rule="muon"))
AHEAD = replace(SHORT, name="short-mtp", mtp=Mtp(depth=1), optim=replace(SHORT.optim, schedule="WSD", clip=0.0))

DENSE = replace(SHORT, name="short-dense", pattern="AE", moe=None, activation="swiglu")

EVERY_KIND = replace(
    AHEAD, name="short-every-kind", pattern="AE", depth=4, mla=SMALL_DSA.mla, mhc=Mhc(streams=2),
    parallel_ssm=ParallelSsm(ssm_scale=0.5), dsa=Dsa(a_ranks=(1,), index_heads=5, index_head_dim=8, top_k=5),
)  # fmt: skip
"""A E A E, with every kind of tensor that a checkpoint can leave out: indexer, streams, heads that look
ahead, latent projections, a scan beside attention."""

ROWS = (((17,), 11), ((17,), 0), ((17,), 3), ((17,), 0), ((17,), 14))
EVERYTHING: frozenset[Observed] = frozenset({"weights", "optimizer", "buffers", "rng"})
APART = replace(DENSE, name="short-apart", optim=replace(DENSE.optim, schedule="constant"))
OUTSIDE = {"embedding.weight": 0.25, "head.weight": 0.25}
RUNS: dict[str, tuple[Recipe, Execution, tuple[int, ...], *tuple[Mapping[str, float], ...]]] = {
    # steps between two loads, and rates of some weights
    "adamw": (SHORT, Execution(), (2, 2, 2)),
    "muon-accumulated": (MUON, Execution(microbatches=3), (1, 3, 2)),
    "mtp-without-clipping": (AHEAD, Execution(), (3, 1, 2)),
    "every-kind": (EVERY_KIND, Execution(mode="author_dp"), (1, 1, 2)),
    "dense": (DENSE, Execution(), (2, 2, 2)),
    "dense-biased": (
        replace(DENSE, name="short-biased", qk_norm=False, biases=("attention", "mlp")),
        Execution(),
        (2, 1, 2),
    ),
    "dense-half": (replace(DENSE, name="short-half", dtype="bf16"), Execution(), (2, 1, 2)),
    "dense-tied": (replace(DENSE, name="short-tied", untied_embeddings=False), Execution(), (2, 1, 2)),
    "dense-two-rates": (APART, Execution(), (2, 1, 2), OUTSIDE),
    "dense-rising-decay": (
        replace(DENSE, name="short-rising", optim=replace(DENSE.optim, end_weight_decay=0.9)),
        Execution(),
        (2, 1, 2),
    ),
    "dense-accumulated": (DENSE, Execution(microbatches=5), (2, 1, 2)),
    "scan": (replace(SHORT, name="short-scan", mamba=SCAN.mamba), Execution(), (2, 1, 2)),
    "scan-and-mlp": (replace(SHORT, name="short-scan-mlp", mamba=SCAN.mamba, moe=None), Execution(), (2, 1, 2)),
}


HEADED = {
    "": ("checkpoint",),
    "dense-biased": ("checkpoint", "attention-bias", "mlp-bias"),
    "muon-accumulated": ("checkpoint", "microbatches", "uneven-microbatches"),
    "mtp-without-clipping": ("checkpoint", "prediction-heads"),
    "every-kind": ("checkpoint", "prediction-heads", "hyper-connections", "mla", "dsa", "parallel-ssm"),
    "dense-two-rates": ("checkpoint", "outer-rates"),
    "dense-rising-decay": ("checkpoint", "changing-decay"),
    "dense-accumulated": ("checkpoint", "microbatches"),
    **{name: (*needed, "checkpoint") for name, needed in OF_SCANS.items()},
}
"""On leaner recipes the batches are given, so that a stack without the recipe's data is asked as well."""


@contract("CKPT-01a", asks="train", cases=RUNS, needs=HEADED, sheds=("own-data",), source=FAMILIES)
def resumed_twice_is_uninterrupted(
    stack: Training, recipe: Recipe, execution: Execution, parts: tuple[int, ...],
    rates: Mapping[str, float] | None = None,
) -> None:  # fmt: skip
    """A run that is saved and resumed twice is, at every step, bit-identical to the run that was not interrupted:
    weights, optimizer state, buffers, random generators, learning rate, place in the data, losses and gradient norm.

    The last run does not save: what is loaded does not depend on what will be saved. One load hides bugs that show only
    at the second: a state dict that is cached at the first load is saved again, stale. Equal weights after a load hide
    what the next step uses: moments, their bias correction, the schedule, the rate of each group.
    """
    seed_generators(recipe.seed)
    given = given_batches(recipe, sum(parts))
    asked = Session(recipe=recipe, steps=sum(parts), execution=execution, batches=given, observe=EVERYTHING,
                    rates=rates or {})  # fmt: skip
    whole = stack.train(asked)
    seed_generators(recipe.seed)
    start = 0
    with folder() as at:
        for number, steps in enumerate(parts):
            end, last = start + steps, number == len(parts) - 1
            session = replace(
                asked, steps=steps, batches=given[start:end], load=str(at) if number else None,
                save=None if last else str(at), save_at=frozenset() if last else frozenset({end}),
            )  # fmt: skip
            run = stack.train(session)
            said = f"after {number} loads" if number else "before any load"
            assert run.start == start, f"{said} the run began after step {run.start}, expected {start}"
            for got, want in zip(run.steps, whole.steps[start:end], strict=True):
                words = unlike(got, want)
                assert not words, f"{said}, step {want.number}: {words}"
            start = end
            if not last:
                _somewhere_else(stack, recipe, number)


def _somewhere_else(stack: Training, recipe: Recipe, number: int) -> None:
    """Train another run in this process and draw numbers, so that a resumed run has only what it loaded."""
    seed_generators(999 + number)
    random.gauss(0, 1)
    other = replace(recipe, seed=recipe.seed + 77)
    stack.train(Session(recipe=other, steps=1, batches=given_batches(recipe, 1)))


def given_batches(recipe: Recipe, steps: int) -> tuple[Tokens, ...]:
    """Nothing, so that a stack reads its own data; batches for a recipe on a leaner rung."""
    return batches(steps, "resumed", rows=ROWS, recipe=recipe) if rung_of(recipe) else ()


def unlike(got: Step, want: Step) -> str:
    """How two steps differ: the first fact that differs, and one tensor of each state."""
    facts = ("number", "samples", "lr", "losses", "tokens", "grad_norm", "clip_coef")
    unequal = [fact for fact in facts if getattr(got, fact) != getattr(want, fact)]
    found = [f"{fact} is {getattr(got, fact)}, expected {getattr(want, fact)}" for fact in unequal[:1]]
    states: tuple[tuple[str, Arrays, Arrays], ...] = (
        ("buffers", got.buffers, want.buffers), ("optimizer", got.optimizer, want.optimizer),
        ("weights", got.weights, want.weights), ("rng", got.rng, want.rng),
    )  # fmt: skip
    for what, left, right in states:
        words = saved_states.bit_difference(left, right)
        found += [f"{what}: {words.split(';')[0]}"] if words else []
    return "; ".join(found)


SAVED = {"adamw": (SHORT,), "muon": (MUON,), "dense": (DENSE,)}


@contract("CKPT-01b", asks="train", cases=SAVED, needs=("checkpoint",), sheds=("own-data",), source=FAMILIES)
def a_save_does_not_touch_the_run(stack: Training, recipe: Recipe) -> None:
    """A run that saves after every step is bit-identical to the run that never saves.

    A save that gathers, casts or draws random numbers in place changes the state that it saves.
    """
    seed_generators(recipe.seed)
    asked = Session(recipe=recipe, steps=4, batches=given_batches(recipe, 4), observe=EVERYTHING)
    plain = stack.train(asked)
    seed_generators(recipe.seed)
    with folder() as at:
        saving = stack.train(replace(asked, save=str(at), save_at=frozenset({1, 2, 3, 4})))
    for got, want in zip(saving.steps, plain.steps, strict=True):
        words = unlike(got, want)
        assert not words, f"with a save after each step, step {want.number}: {words}"
