"""Dropout of what layers add to the residual stream: how much is dropped, and where else the same elements are."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import fixtures, numerics
from contracts.law._support.dropout_masks import DROPPED, LEAST, ROUTED, equal_masks, recomputed_difference
from contracts.law._support.late import torch
from contracts.law._support.model_passes import needs_canonical_names, one_pass, tensor
from contracts.law._support.training_run import AHEAD, LETTERS, batch, seed_generators
from contracts.spec import Arrays, Execution, Mhc, Mode, Recipe, Shape, Tokens, Training

ADDED = 1e-3  # what each layer adds to an element of a stream of ones
WIDE = replace(DROPPED, hidden=64, heads=4, kv_groups=2)
SHARES = {"two-fifths": replace(WIDE, dropout=0.4), "three-fifths": replace(WIDE, dropout=0.6)}
"""Shares at which practically every token has an element that both layers drop; the others are measured by it."""


@contract("BLK-11a", asks=("initial", "run_model"), cases=SHARES, source="torch.nn.Dropout; F13")
def dropout_drops_its_share_and_scales_the_rest(stack: Training, recipe: Recipe) -> None:
    """In training, dropout zeroes each element of what a layer adds to the residual stream, independently and with the
    recipe's probability p, and divides the others by 1 - p. Two layers drop independently of each other.

    Weights are chosen so that each layer adds the same number to each element of a stream of ones. A stack that leaves
    the factor out trains another model than the one it evaluates, and one that draws a mask once a pass drops in every
    layer the same elements.
    """
    rows, length = 8, recipe.seq_length
    needs_canonical_names(stack, stack.initial(recipe, "nemo_native"))
    ids_BT = numerics.array(torch.zeros(rows, length, dtype=torch.int64))
    seed_generators(7)
    run = one_pass(stack, recipe, _constant(stack.initial(recipe, "nemo_native")), Tokens(tokens=ids_BT, labels=ids_BT))
    stream = tensor(run.logits).double().flatten(0, 1)
    times = (stream / stream.amin(1, keepdim=True) - 1) / ADDED
    factor, drops = 1 / (1 - recipe.dropout), recipe.dropout
    level = (times / factor).round()
    off = ~((times - level * factor).abs() < 0.03)  # also what is no number
    assert not bool(off.any()), (
        f"what a layer adds to an element is multiplied by {float(times[off].min()):.3f}, expected 0 or {factor:.3f}"
    )
    for layers, share in enumerate(((drops**2), 2 * drops * (1 - drops), (1 - drops) ** 2)):
        found, sigma = float((level == layers).double().mean()), (share * (1 - share) / level.numel()) ** 0.5
        assert abs(found - share) < 6 * sigma, (
            f"{found:.1%} of the elements are kept by {layers} of two layers, expected {share:.1%} ± {6 * sigma:.1%}"
        )


def _constant(shapes: Arrays) -> Arrays:
    """Weights with which a layer adds ADDED to each element of a stream of ones, and logits are the stream itself."""
    made = {}
    for name, each in shapes.items():
        made[name] = torch.ones(each.shape, dtype=torch.float64)
        if name.endswith("w1.weight"):
            made[name] /= each.shape[1]
        if name.endswith("w2.weight"):
            made[name] *= ADDED / each.shape[1]
        if name == "head.weight":
            made[name] = torch.eye(*each.shape, dtype=torch.float64)
    return numerics.arrays(made)


MASKED: dict[str, tuple[Recipe, Execution]] = {
    "microbatches": (DROPPED, Execution(precision="float64", microbatches=2)),
    "experts": (ROUTED, Execution(precision="float64", microbatches=4)),
}


@contract("BLK-11b", asks=("built", "train"), cases=MASKED, source="F13; DAT-09; ACK-03")
def every_token_has_a_mask_of_its_own(stack: Training, recipe: Recipe, execution: Execution) -> None:
    """No two tokens of a step get the same dropout mask, in whatever row, position or microbatch they are, and no token
    gets the mask of the step before.

    A generator that begins anew with each microbatch or step, or a mask that is drawn once for a row, drops the same
    elements again and again, and the loss looks as it should.
    """
    words = equal_masks(stack, recipe, execution)
    assert not words, f"{words}: the same elements were dropped"


OF_EACH = replace(LETTERS, name="letters-dropout", dropout=0.4)
PLACES: dict[str, tuple[Recipe, str] | tuple[Recipe, str, Mode]] = {
    "attention": (OF_EACH, "layers.0"),
    "experts": (OF_EACH, "layers.1"),
    "scan": (OF_EACH, "layers.2"),
    "scan-author-dp": (OF_EACH, "layers.2", "author_dp"),
    "recurrence": (OF_EACH, "layers.3"),
    "streams": (replace(OF_EACH, mhc=Mhc(streams=2)), "layers.4"),
    "beside-streams": (replace(OF_EACH, mhc=Mhc(streams=2)), "layers.5"),
    "prediction-attention": (replace(OF_EACH, mtp=AHEAD.mtp), "mtp.0.attention"),
    "prediction-mlp": (replace(OF_EACH, mtp=AHEAD.mtp), "mtp.1.mlp"),
}
"""A recipe, and the layer that by itself adds something."""
WRITES = (".wo.weight", ".w2.weight", ".experts.w2")


@contract("BLK-11e", asks=("initial", "run_model"), cases=PLACES, source="torch.nn.Dropout; F15")
def every_layer_drops(stack: Training, recipe: Recipe, place: str, mode: Mode = "nemo_native") -> None:
    """Dropout acts on the output of every kind of layer, also between hyper-connections and in prediction heads: if all
    other layers add nothing, it changes the logits of every token.

    Each way to add a layer's output has its own dropout, and one that was forgotten trains as if
    the recipe had no dropout.
    """
    given = fixtures.weights(
        {name: Shape(dtype="float64", shape=each.shape) for name, each in stack.initial(recipe, mode).items()}
    )
    needs_canonical_names(stack, stack.initial(recipe, mode), f"{place}.norm.weight")
    silent = {
        name: each * 0 if name.endswith(WRITES) and not name.startswith(f"{place}.") else each
        for name, each in given.items()
    }
    tokens = batch("dropout", rows=(((13,), 0),) * 4)
    seed_generators(7)
    dropped, plain = (
        one_pass(stack, asked, numerics.arrays(silent), tokens, mode=mode)
        for asked in (recipe, replace(recipe, dropout=0.0))
    )
    depth = int(place.split(".")[1]) if place.startswith("mtp.") else None
    one, other = (
        tensor(each.logits if depth is None else each.mtp_logits[depth]).double() for each in (dropped, plain)
    )
    alike = (one - other).abs().amax(-1) < LEAST * other.abs().amax()
    alike[:, alike.shape[1] - 1 - (depth or 0) :] = False  # at the end a depth has no token ahead
    where = tuple(alike.nonzero()[0].tolist()) if bool(alike.any()) else ()
    assert not where, f"with dropout {recipe.dropout}, what {place} adds to token {where} is what it adds without"


RECOMPUTED: dict[str, tuple[Recipe, int]] = {"dense": (DROPPED, 1), "experts-in-microbatches": (ROUTED, 2)}


@contract("BLK-11d", asks=("built", "train"), cases=RECOMPUTED, source="F13; ACK-01")
def a_recomputed_layer_drops_what_it_dropped(stack: Training, recipe: Recipe, microbatches: int) -> None:
    """With dropout, two steps with recomputation have the losses and gradients of two steps without.

    If the mask of the second forward pass is another, gradients are of no loss that was ever computed, and the loss
    looks as it should. A recomputation that takes numbers from the generator gives the next step other masks.
    """
    words = recomputed_difference(stack, recipe, Execution(microbatches=microbatches, precision="float64"))
    assert not words, words
