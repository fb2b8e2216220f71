"""Passes through whole models: recipes, drawn weights, packed batches, and one call for one pass."""

from dataclasses import replace

from contracts.instruments import fixtures, numerics, oracles
from contracts.law._support.late import Tensor, torch
from contracts.law._support.recipes import SMALL
from contracts.spec import (
    FLOAT64,
    FLOAT64_SCAN,
    Array,
    Arrays,
    Execution,
    Mhc,
    Mode,
    Mtp,
    NotOffered,
    Pass,
    Precision,
    Recipe,
    Shape,
    Tokens,
    Training,
    rung_of,
    within,
)

WHOLE = replace(SMALL, pattern="AEMR", depth=6)
"""A E M R A E: every family, and a depth that the pattern's length does not divide."""
assert SMALL.moe is not None
MOE = SMALL.moe
EVERYTHING = replace(WHOLE, mhc=Mhc(streams=3), mtp=Mtp(depth=2, loss_weight=0.3))
STREAMED = replace(SMALL, pattern="AAE", depth=5, moe=None, mhc=Mhc(streams=3))
"""A A E A A, the E dense: what the oracle of whole models can judge."""
AHEAD = replace(SMALL, pattern="EA", depth=2, moe=None, mtp=Mtp(depth=2, loss_weight=0.3))

Lengths = tuple[tuple[int, ...], ...]
PACKED: Lengths = ((5, 1, 7), (2, 11), (9, 4))
"""Three rows of 13 tokens: documents of unequal length, one of a single token, none at the same place."""
SHORT: Lengths = ((3, 4), (6, 1))


def drawn_weights(stack: Training, recipe: Recipe, *, mode: Mode = "nemo_native", seed: int = 0) -> dict[str, Array]:
    """Drawn weights and buffers for a whole model, in float64, large enough that every part matters."""
    shapes = {name: Shape(dtype="float64", shape=each.shape) for name, each in stack.initial(recipe, mode).items()}
    return dict(fixtures.as_arrays(fixtures.weights(shapes, seed=seed), torch.float64))


def needs_canonical_names(stack: Training, weights: Arrays, name: str = "layers.0.norm.weight") -> None:
    """Leave a case aside whose weights have other names than spec/blocks.py gives them.

    Raises:
        NotOffered: when they have; the names of a whole model are its own.
    """
    if name not in weights:
        raise NotOffered(f"{stack.name} has no weight called {name}", "case")


def batch(
    recipe: Recipe, lengths: Lengths = PACKED, *, seed: int = 0, masked: bool = True, packed: bool = False
) -> Tokens:
    """A packed batch: labels are the next token of the document; `masked` hides about a fifth of them as well.

    All of row 1 but one label is masked, so that rows do not weigh alike. On a leaner rung a row is one document,
    unless the case is about `packed` rows.
    """
    if rung_of(recipe) and not packed:
        lengths = tuple((sum(each),) for each in lengths)

    shape = (len(lengths), sum(lengths[0]))
    tokens_BT = fixtures.integers("tokens", shape, recipe.vocab, seed=seed)
    documents_BT = fixtures.documents(lengths)
    labels_BT = torch.full_like(tokens_BT, -100)
    same = documents_BT[:, 1:] == documents_BT[:, :-1]
    labels_BT[:, :-1] = torch.where(same, tokens_BT[:, 1:], -100)
    if masked:
        labels_BT[fixtures.integers("masked", shape, 5, seed=seed) == 0] = -100
        labels_BT[1, :-2] = -100
    documents = None if rung_of(recipe) and not packed else numerics.array(documents_BT)
    return Tokens(tokens=numerics.array(tokens_BT), labels=numerics.array(labels_BT), documents=documents)


def one_pass(
    stack: Training, recipe: Recipe, weights: Arrays, tokens: Tokens, *,
    backward: bool = False, precision: Precision = "float64", mode: Mode = "nemo_native", recompute: bool = False,
) -> Pass:  # fmt: skip
    """One pass on one rank."""
    execution = Execution(mode=mode, precision=precision, recompute=recompute)
    return stack.run_model(recipe, execution, weights, tokens, backward)


def tensor(value: Array | None) -> Tensor:
    """A value that has to be there, as a tensor."""
    assert value is not None, "there is no tensor"
    return numerics.tensor(value)


def oracle_difference(
    stack: Training, recipe: Recipe, letters: str, weights: Arrays, lengths: Lengths = SHORT, *, reads: str = "residual"
) -> str:
    """How a pass differs from the oracle of whole models: logits, then gradients; empty if it does not.

    Of a prediction depth the logits are compared where its document has the token that it looks ahead to. `reads` is
    the convention `prediction-input`.
    """
    oracle = oracles.model
    tokens = batch(recipe, lengths)
    run = one_pass(stack, recipe, weights, tokens, backward=True)
    held = {name: each.requires_grad_() for name, each in numerics.tensors(weights).items()}
    documents_BT, labels_BT = tensor(tokens.documents), tensor(tokens.labels)
    pairs = zip(tensor(tokens.tokens), documents_BT, strict=True)
    rows = [oracle.logits(recipe, letters, held, *row, reads=reads) for row in pairs]
    first, *further = (torch.stack(depth) for depth in zip(*rows, strict=True))
    if len(run.mtp_logits) != len(further):
        return f"there are {len(run.mtp_logits)} heads that look ahead, expected {len(further)}"
    if words := numerics.difference("the logits", run.logits, first.detach(), FLOAT64):
        return words
    for depth, (got, want) in enumerate(zip(map(tensor, run.mtp_logits), further, strict=True), start=1):
        seen_BT = oracle.later_labels(torch.zeros_like(labels_BT), documents_BT, depth) == 0
        expected = torch.where(seen_BT[..., None], want.detach(), got) if got.shape == want.shape else want.detach()
        if words := numerics.difference(f"the logits of depth {depth}", got, expected, FLOAT64):
            return words
    total = oracle.mean_loss(first, labels_BT)
    if recipe.mtp is not None:
        later = [oracle.later_labels(labels_BT, documents_BT, k + 1) for k in range(len(further))]
        losses = [oracle.mean_loss(logits, labels) for logits, labels in zip(further, later, strict=True)]
        total = total + recipe.mtp.loss_weight * torch.stack(losses).mean()
    gradients = dict(zip(held, torch.autograd.grad(total, list(held.values())), strict=True))
    return numerics.gradient_differences("the gradient of", run.gradients, gradients, FLOAT64_SCAN)


def not_changed_from(one: Array, other: Array, first: int) -> str:
    """How two answers (B, T, …) fail to differ in row 0 from position `first` on, and only there."""
    left, right = tensor(one), tensor(other)
    changes_BT = (left - right).abs().amax(-1) > within(1e-12) * left.abs().max()
    if bool(changes_BT[1:].any()):
        return "another row changes"
    found = min(changes_BT[0].nonzero().flatten().tolist(), default=None)
    return "" if found == first else f"logits change from position {found} on, expected {first}"
