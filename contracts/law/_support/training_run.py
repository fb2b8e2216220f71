"""What the checks on training share: a small model with every letter, batches of unequal rows, a run."""

import functools
import importlib.util
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from contracts.instruments import fixtures, numerics
from contracts.law._support.late import Tensor, torch
from contracts.law._support.recipes import SMALL
from contracts.spec import (
    Array,
    Arrays,
    Batch,
    Element,
    Execution,
    Mamba,
    Mode,
    Moe,
    Mtp,
    Observed,
    Optim,
    Parameter,
    Precision,
    Recipe,
    Session,
    Shape,
    Tokens,
    Trained,
    Training,
    element_bytes,
    rung_of,
)

LETTERS = replace(
    SMALL,
    name="letters",
    pattern="AEMR",
    depth=6,
    seq_length=13,
    moe=Moe(experts=14, top_k=3, expert_hidden=20, shared_hidden=28, aux_loss=0.3, z_loss=0.05),
    optim=Optim(lr=1e-2, min_lr=1e-3, warmup=2, steps=8, weight_decay=0.3, clip=0.5),
    batch=Batch(micro=1, total=5),
)
"""A E M R A E. Its shapes tell its tensors apart: 61 is the vocabulary alone, 14 the experts alone."""

MUON = replace(LETTERS, name="letters-muon", optim=replace(LETTERS.optim, rule="muon"))
AHEAD = replace(LETTERS, name="letters-mtp", mtp=Mtp(depth=2, loss_weight=0.4))
DENSE = replace(LETTERS, name="letters-dense", pattern="AE", depth=4, moe=None, activation="swiglu")
TIED = replace(LETTERS, name="letters-tied", untied_embeddings=False)
BIASED = replace(
    LETTERS, name="letters-biased", moe=replace(LETTERS.moe or Moe(), shared_hidden=0),
    biases=("attention", "experts", "router"),
)  # fmt: skip
BIASES = ("experts", "attention-bias", "expert-bias", "router-bias")
SCAN = replace(LETTERS, name="letters-scan", mamba=Mamba(heads=6, head_dim=8, state=16, groups=2))
SCANS = {"scan": SCAN, "scan-and-mlp": replace(SCAN, name="letters-scan-mlp", moe=None)}
"""A scan twice as wide as the model, as Granite 4 and Bamba demand it."""
OF_SCANS = dict.fromkeys(SCANS, ("mamba",))

IDLE = (tuple(range(8)), (12, 13, 14, 15))
"""Of 16 experts, those that a selection bias keeps idle, in the first routed layer and in the second: under ep2, one
rank has no work in the first."""

Rows = tuple[tuple[tuple[int, ...], int], ...]
"""For each row of a batch, the lengths of its documents and how many of its labels are masked."""

ROWS: Rows = (((13,), 11), ((4, 9), 0), ((1, 5, 7), 6), ((12, 1), 0), ((6, 7), 10))
"""Rows of 13 tokens, in which 1, 11, 6, 11 and 2 labels count."""
ROWS_OF_16: Rows = (((16,), 13), ((4, 12), 0), ((1, 5, 10), 6), ((13, 3), 0))
"""Rows of 16 tokens, in which 2, 14, 7 and 14 labels count."""
SEEDS = (0, 1, 7, 42, 1234, 1337, 2**31 + 7)
"""Among them the usual defaults, 0, which reads as "none", and one that 31 bits do not hold."""


def batch(name: str, vocab: int = LETTERS.vocab, rows: Rows = ROWS, *, recipe: Recipe = LETTERS) -> Tokens:
    """A batch whose rows have unequal documents and unequal numbers of labels; masked labels come first.

    The rows of a recipe on a leaner rung hold one document each, because few stacks read packed rows.
    """
    if rung_of(recipe):
        rows = tuple(((sum(lengths),), masked) for lengths, masked in rows)
    documents_BT = fixtures.documents(tuple(lengths for lengths, _ in rows))
    tokens_BT = fixtures.integers(name, tuple(documents_BT.shape), vocab)
    labels_BT = tokens_BT.roll(-1, 1)
    labels_BT[:, -1] = -100
    labels_BT[:, :-1][documents_BT[:, 1:] != documents_BT[:, :-1]] = -100
    for row, (_, masked) in enumerate(rows):
        labels_BT[row, :masked] = -100
    array = numerics.array
    documents = None if rung_of(recipe) else array(documents_BT)
    return Tokens(tokens=array(tokens_BT), labels=array(labels_BT), documents=documents)


def batches(
    steps: int, name: str = "step", vocab: int = LETTERS.vocab, rows: Rows = ROWS, *, recipe: Recipe = LETTERS
) -> tuple[Tokens, ...]:
    return tuple(batch(f"{name} {step}", vocab, rows, recipe=recipe) for step in range(steps))


def run(
    stack: Training,
    recipe: Recipe,
    given: tuple[Tokens, ...],
    *observe: Observed,
    microbatches: int = 1,
    weights: Arrays | None = None,
    declared: bool = False,
    buffers: Arrays | None = None,
    recompute: bool = False,
    rates: Mapping[str, float] | None = None,
    frozen: frozenset[str] = frozenset(),
    mode: Mode = "nemo_native",
) -> Trained:
    """Steps over the given batches, in float64 unless the recipe's own precision is asked for."""
    precision: Precision = "declared" if declared else "float64"
    execution = Execution(mode=mode, microbatches=microbatches, precision=precision, recompute=recompute)
    return stack.train(
        Session(
            recipe=recipe,
            steps=len(given),
            execution=execution,
            batches=given,
            weights=weights or {},
            buffers=buffers or {},
            rates=rates or {},
            frozen=frozen,
            observe=frozenset(observe),
        )
    )


def seed_generators(seed: int) -> None:
    """Seed this process's generators, from which a run may draw. A stack in its own process may ignore this."""
    random.seed(seed)
    random.gauss(0, 1)  # gauss makes two numbers at once and keeps the second, which is part of the state
    torch.manual_seed(seed)
    if importlib.util.find_spec("numpy"):
        numbers = importlib.import_module("numpy.random")
        numbers.seed(seed)
        numbers.standard_normal()  # likewise


def table(stack: Training, recipe: Recipe, mode: Mode = "nemo_native") -> tuple[Parameter, ...]:
    """The rows of the optimizer's table."""
    return stack.built(recipe, mode).parameters


def drawn_weights(rows: tuple[Parameter, ...]) -> Arrays:
    """Weights for a model, all nonzero and no vector constant, so that each element shows how it moves."""
    return dict(_drawn(tuple((row.name, row.shape) for row in rows)))


def large_expert_weights(stack: Training, recipe: Recipe, dtype: Element = "float64") -> Arrays:
    """Drawn weights, with those of experts and routers doubled: beside a residual stream, dead experts do not show."""
    drawn = numerics.tensors(drawn_weights(table(stack, recipe)), getattr(torch, dtype))
    large = (".experts.", "router.weight")
    return numerics.arrays(
        {name: each * (2 if any(part in name for part in large) else 1) for name, each in drawn.items()}
    )


def selection_biases(
    stack: Training, recipe: Recipe, experts: Sequence[tuple[int, ...]], value: float, *,
    mode: Mode = "nemo_native", dtype: Element = "float64",
) -> Arrays:  # fmt: skip
    """Selection biases that are `value` for some experts, in turn from layer to layer, and 0 for the others. Sigmoids
    lie in 0 … 1, so that ±4 decides.
    """
    found = {}
    biases = sorted((name, shape) for name, shape in stack.built(recipe, mode).buffers.items() if "bias" in name)
    for index, (name, shape) in enumerate(biases):
        bias_E = torch.zeros(shape, dtype=getattr(torch, dtype))
        bias_E[list(experts[index % len(experts)])] = value
        found[name] = numerics.array(bias_E)
    return found


@functools.lru_cache(maxsize=32)  # every layout of a model starts from the same weights
def _drawn(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Arrays:
    named = {name: Shape(dtype="float64", shape=shape) for name, shape in shapes}
    return numerics.arrays(fixtures.weights(named))


def updates(weights: Mapping[str, Array], run: Trained) -> list[dict[str, Tensor]]:
    """By how much each step moved each weight, from those that the stack was given."""
    given = torch.float32 if element_bytes() == 4 else torch.float64
    before, found = {name: each.to(given) for name, each in numerics.tensors(weights).items()}, []
    for step in run.steps:
        after = numerics.tensors(step.weights)
        found.append({name: after[name] - before[name] for name in after})
        before = after
    return found
