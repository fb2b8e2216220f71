"""Tables that follow from the recipe, such as the frequencies of rope: no checkpoint has them or brings them back.

Few stacks compare the recipe of a checkpoint with their own (CKPT-01c). One that loads a run under another rope base,
or for longer rows, has to run with those and not with what was saved.
"""

from dataclasses import replace
from typing import Any

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.model_passes import WHOLE
from contracts.law._support.recipes import SMALL_MLA
from contracts.law._support.saved_states import FAMILIES, folder
from contracts.law._support.training_run import batch
from contracts.law.checkpoint.resume import DENSE
from contracts.spec import EXACT, FLOAT64_SCAN, Execution, Recipe, Refused, Session, Tokens, Training, within

OTHER: dict[str, dict[str, Any]] = {"rope-base": {"rope_theta": 7}, "longer-rows": {"seq_length": 64}}
HELD: dict[str, tuple[Recipe, dict[str, Any]]] = {
    f"{model}-{change}": (recipe, OTHER[change])
    for model, recipe in {"letters": WHOLE, "latent": replace(SMALL_MLA, pattern="AE", depth=2)}.items()
    for change in OTHER
}


@contract("CKPT-07d", asks="initial", cases=HELD, needs=(), source="torchtitan #1600")
def what_is_saved_follows_from_no_table(stack: Training, recipe: Recipe, other: dict[str, Any]) -> None:
    """A model starts from the same state and saves the same, name by name and bit by bit, whatever the rope base and
    the length of rows: tables of angles, frequencies and masks follow from the recipe and are no part of its state.

    A table that is saved is loaded, too, after the recipe has changed.
    """
    own, changed = stack.initial(recipe, "nemo_native"), stack.initial(replace(recipe, **other), "nemo_native")
    only = sorted(own.keys() ^ changed.keys())
    assert not only, f"with {_said(other)} {only[0]} is {'no longer' if only[0] in own else 'also'} saved"
    words = numerics.differences(f"with {_said(other)}", changed, own, EXACT)
    assert not words, words


RESUMED: dict[str, tuple[Recipe, dict[str, Any], int]] = {
    "rope-base": (DENSE, OTHER["rope-base"], 17),
    "longer-rows": (DENSE, OTHER["longer-rows"], 33),
}


@contract("CKPT-07e", asks="train", cases=RESUMED, needs=("checkpoint",), source=f"{FAMILIES}; torchtitan #1600")
def a_run_resumed_under_another_recipe_runs_with_that(
    stack: Training, recipe: Recipe, other: dict[str, Any], length: int
) -> None:
    """A run resumed with another rope base, or with longer rows, is refused, or its first step has the loss and the
    gradients of a run of that recipe from the same weights.

    Context is extended in this way. With a table out of the checkpoint, or one that was made before the load and is not
    made again, the log names the new base, and the model has the old one.
    """
    with folder() as at:
        saved = Session(recipe=recipe, steps=1, execution=Execution(precision="float64"), batches=(_rows(recipe, 17),),
                        observe=frozenset({"weights"}), save=str(at), save_at=frozenset({1}))  # fmt: skip
        weights = stack.train(saved).steps[0].weights
        asked = Session(recipe=replace(recipe, **other), steps=1, execution=saved.execution,
                        batches=(_rows(recipe, length),), observe=frozenset({"gradients"}))  # fmt: skip
        try:
            (got,) = stack.train(replace(asked, load=str(at))).steps
        except Refused:
            return
    (want,) = stack.train(replace(asked, weights=weights)).steps
    apart = abs(got.losses["lm"] - want.losses["lm"])
    assert apart <= within(1e-9) * want.losses["lm"], (
        f"resumed with {_said(other)} lm is {got.losses['lm']:.9g}, from the same weights {want.losses['lm']:.9g}"
    )
    what = f"resumed with {_said(other)} the gradient of"
    words = numerics.gradient_differences(what, got.gradients, want.gradients, FLOAT64_SCAN)
    assert not words, words


def _rows(recipe: Recipe, length: int) -> Tokens:
    """A batch of whole rows."""
    rows = tuple(((length,), masked) for masked in (11, 0, 3, 0, 9))[: recipe.batch.total]
    return replace(batch(f"rows of {length}", recipe.vocab, rows, recipe=recipe), documents=None)


def _said(other: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in other.items())
