"""Dropout on several ranks: other masks for other tokens, one mask for what ranks hold alike."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments.ranks import gathered
from contracts.law._support.dropout_masks import (
    DEEP,
    DROPPED,
    ROUTED,
    equal_masks,
    kept_elements,
    recomputed_difference,
)
from contracts.law._support.multi_rank_run import borrowed, own_axis
from contracts.law._support.multi_rank_saves import save_folder
from contracts.law._support.saved_states import shared_folder
from contracts.law._support.step_comparison import replica_differences
from contracts.law._support.training_run import ROWS_OF_16, batches
from contracts.law.parallel.layouts import MANY
from contracts.spec import Execution, Recipe, Session, Training

APART: dict[str, tuple[Recipe, Execution, int]] = {
    "dp2": (DROPPED, own_axis(2), 2),
    "fsdp2": (DROPPED, own_axis(2, fsdp=True), 2),
    "tp2": (DROPPED, own_axis(2, tp=2), 2),
    "tp2-sp": (DROPPED, own_axis(2, tp=2, sp=True), 2),
    "cp2": (DROPPED, borrowed(2, cp=2), 2),
    "ep2": (ROUTED, own_axis(2, ep=2), 2),
    "borrowed-ep2": (ROUTED, borrowed(2, ep=2), 2),
    "pp2": (DROPPED, replace(own_axis(2, pp=2), microbatches=2), 2),
    "tp2-sp-dp2": (DROPPED, own_axis(4, tp=2, sp=True), 4),
}


@contract("PAR-18a", asks=("built", "train"), cases=APART, source="ACK-02; ACK-03; DAT-09", tier="dist")
def ranks_drop_other_elements_of_other_tokens(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """On several ranks no two tokens of a step get the same dropout mask, whatever ranks they are on, and no token gets
    the mask of the step before.

    With one seed on all ranks, data-parallel ranks drop the same elements of different rows, and under context or
    sequence parallel the second half of a row is dropped as the first. Every number is plausible.
    """
    words = equal_masks(stack, recipe, replace(execution, precision="float64"))
    assert not words, f"{words}: the same elements were dropped"


THINNED = replace(MANY, name="thinned", dropout=0.2)
ALIKE: dict[str, tuple[Recipe, Execution, Execution | None, int]] = {
    "tp2": (THINNED, own_axis(2, tp=2), None, 2),
    "tp2-sp": (THINNED, own_axis(2, tp=2, sp=True), None, 2),
    "ep2": (THINNED, own_axis(2, ep=2), None, 2),
    "borrowed-ep2-fsdp": (THINNED, borrowed(4, ep=2, fsdp=True), None, 4),
    "tp2-ep2": (THINNED, own_axis(4, tp=2, ep=2), None, 4),
    "dp2-to-tp2": (THINNED, own_axis(2, tp=2), own_axis(2), 2),
}


@contract("PAR-18b", asks=("built", "train"), cases=ALIKE, source="F02; ACK-02; RSM-23", tier="dist")
def what_ranks_hold_alike_is_dropped_alike(
    stack: Training, recipe: Recipe, execution: Execution, saves: Execution | None, world: int
) -> None:
    """With dropout, replicas are bit-identical on every rank after each of two steps, and after two more on another
    layout that loads them.

    Tensor-parallel ranks without SP hold one residual stream. If each drops elements of its own, or draws from a new
    seed of its own after a load, their streams part, and so do the norms' weights.
    """
    rows, load = batches(2, "thinned", rows=ROWS_OF_16), None
    with shared_folder() as at:
        for number, layout in enumerate(filter(None, (saves, execution)), start=1):
            kept = save_folder(at / str(number), layout).as_posix()
            session = Session(
                recipe=recipe, steps=2, execution=replace(layout, precision="declared"), batches=rows, load=load,
                save=kept, save_at=frozenset({2 * number}), observe=frozenset({"weights", "buffers"}),
            )  # fmt: skip
            for step in stack.train(session).steps:
                words = replica_differences({**step.weights, **step.buffers})
                assert not words, f"after step {step.number}, {words}"
            (load, *_) = gathered(kept)


LAYERS: dict[str, tuple[Execution, int]] = {
    "dp2": (own_axis(2), 2),
    "tp2-sp": (own_axis(2, tp=2, sp=True), 2),
    "pp2": (replace(own_axis(2, pp=2), microbatches=2), 2),
    "interleaved": (replace(own_axis(2, pp=2), microbatches=2, schedule="interleaved"), 2),
}


@contract("PAR-18c", asks=("built", "train"), cases=LAYERS, needs=("dropout", "unpaired"), tier="dist",
          source="Megatron-Core: model_parallel_cuda_manual_seed")  # fmt: skip
def layers_drop_other_elements(stack: Training, execution: Execution, world: int) -> None:
    """On several ranks no two layers drop the same elements of a token, whichever pipeline stages they are on, and no
    layer drops the same elements in two consecutive steps.

    Stages that begin with one seed drop in their first layers the same elements, and so on layer by layer.
    """
    found = kept_elements(stack, Session(recipe=DEEP, steps=2, execution=replace(execution, precision="float64")))
    for place, kept_D in found.items():
        share = float(kept_D.double().mean())
        assert 0 < share < 1, f"{place} keeps {share:.0%} of the elements of a token, and drops {DEEP.dropout:.0%}"
        same = [other for other, each in found.items() if other != place and bool((each == kept_D).all())]
        assert not same, f"{place} drops the same elements of a token as {same[0]}"


LOADED: dict[str, tuple[Execution, Execution, int]] = {
    "dp2-to-tp2": (own_axis(2), own_axis(2, tp=2), 2),
    "tp2-to-dp2": (own_axis(2, tp=2), own_axis(2), 2),
}


@contract("PAR-18d", asks=("built", "train"), cases=LOADED, needs=("dropout", "unpaired", "checkpoint"),
          source="RSM-23; F07", tier="dist")  # fmt: skip
def a_load_on_another_layout_begins_no_masks_again(
    stack: Training, saves: Execution, execution: Execution, world: int
) -> None:
    """After a load on another layout, no layer drops the same elements of a token as a layer does in the first steps of
    a new run on that layout.

    No saved generator fits, and one that begins again as the run began gives the same masks after each such load.
    """
    with shared_folder() as at:
        kept = save_folder(at / "kept", saves).as_posix()
        asked = Session(recipe=DEEP, steps=2, execution=replace(execution, precision="declared"))
        first = kept_elements(stack, asked)
        saved = replace(asked, execution=replace(saves, precision="declared"), save=kept, save_at=frozenset({2}))
        kept_elements(stack, saved)
        (load, *_) = gathered(kept)
        for place, kept_D in kept_elements(stack, replace(asked, load=load)).items():
            same = [other for other, each in first.items() if bool((each == kept_D).all())]
            assert not same, f"after the load {place} drops the same elements of a token as {same[0]} of a new run"


AGAIN: dict[str, tuple[Recipe, Execution, int]] = {
    "fsdp2": (DROPPED, own_axis(2, fsdp=True), 2),
    "tp2-sp": (DROPPED, own_axis(2, tp=2, sp=True), 2),
    "cp2": (DROPPED, borrowed(2, cp=2), 2),
    "ep2": (ROUTED, own_axis(2, ep=2), 2),
    "pp2": (DROPPED, replace(own_axis(2, pp=2), microbatches=2), 2),
}


@contract("PAR-18e", asks=("built", "train"), cases=AGAIN, source="F13; ACK-01", tier="dist")
def a_layer_recomputed_on_ranks_drops_what_it_dropped(
    stack: Training, recipe: Recipe, execution: Execution, world: int
) -> None:
    """With dropout on several ranks, two steps with recomputation have the losses and gradients of two steps without.

    Layers on several ranks often have another wrapper than on one, which keeps the generators by itself.
    """
    words = recomputed_difference(stack, recipe, replace(execution, precision="float64"))
    assert not words, words
