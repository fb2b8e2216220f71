"""What the base of a change has saved, its head loads."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.multi_rank_saves import STATE, state_difference
from contracts.law._support.saved_states import FAMILIES, folder_of_both_sides
from contracts.law.checkpoint.resume import AHEAD, DENSE, SHORT, given_batches
from contracts.spec import Recipe, Session, Step, Training
from contracts.spec.codec import dumps, loads

SAVED = {"experts": (SHORT,), "heads": (AHEAD,), "dense": (DENSE,)}
NEEDS = {"": ("checkpoint",), "heads": ("checkpoint", "prediction-heads")}


@contract("CKPT-08a", asks="train", cases=SAVED, needs=NEEDS, sheds=("own-data",),
          source=f"{FAMILIES}; Megatron-LM#3334")  # fmt: skip
def the_head_loads_what_the_base_has_saved(stack: Training, recipe: Recipe) -> None:
    """The head of a change (`check --at BASE..HEAD`) loads the checkpoint that its base has written: weights, buffers
    and optimizer state are bit for bit those of the base. Of one version it is that version's own.

    Who renames a module renames its tensors in every checkpoint that was written before. A version finds its own names
    in what it has saved itself, so that no other check sees it.
    """
    with folder_of_both_sides(recipe.name) as at:
        given = given_batches(recipe, 3)
        session = Session(recipe=recipe, steps=2, batches=given[:2], observe=STATE)
        told, files = at / "state.json", at / "files"
        if not told.exists():
            files.mkdir(exist_ok=True)
            run = stack.train(replace(session, save=str(files), save_at=frozenset({2})))
            told.write_text(dumps(run.steps[-1]), encoding="utf-8")
        saved = loads(Step, told.read_bytes())
        run = stack.train(replace(session, steps=1, batches=given[2:], load=str(files), at=frozenset({0})))
    assert run.start == saved.number, f"the run resumed after step {run.start}, expected {saved.number}"
    assert run.loaded is not None, "no loaded state is reported"
    words = state_difference(run.loaded, saved)
    assert not words, words
