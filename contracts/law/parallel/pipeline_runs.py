"""Pipeline runs: how they start, what they save, that messages go in batches, and what is refused before anything is
sent."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.law._support.answers import refusal_of
from contracts.law._support.layouts import numbers_in
from contracts.law._support.pipeline_run import (
    AHEAD,
    BATCHED,
    BESIDE_DP,
    BESIDE_TP,
    HALVES,
    IN_FOUR,
    IN_TWO,
    INTERLEAVED,
    LOSS,
    QUARTERS,
    STAGED,
    Cell,
    batches,
    cell,
    message_text,
    messages_seen,
)
from contracts.law._support.saved_states import shared_folder
from contracts.law._support.step_comparison import loss_difference, on_one_rank, tensor_differences
from contracts.law._support.training_run import large_expert_weights
from contracts.spec import Execution, Messaging, Recipe, Session, Training

BEGUN: dict[str, Cell] = {
    "two-stages": cell(HALVES, IN_TWO),
    "interleaved": cell(QUARTERS, INTERLEAVED),
    "four-stages-tied": cell(replace(QUARTERS, untied_embeddings=False), IN_FOUR),
    "beside-dp": cell(AHEAD, BESIDE_DP),
}  # fmt: skip


@contract("PAR-08d", asks="train", cases=BEGUN, source="F14; F05", tier="dist")
def stages_begin_as_one_rank_does(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """Without given weights and batches, a pipeline starts from the initial weights of one rank and consumes the same
    sequences.

    If initial weights depend on a layer's position on its rank, both stages of a rank get the same numbers.
    """
    session = Session(
        recipe=recipe, steps=2, execution=Execution(precision="float64"), observe=frozenset({"weights", "gradients"})
    )
    many = stack.train(replace(session, execution=replace(execution, precision="float64")))
    one = on_one_rank(stack, session)
    shares = gathered([list(step.samples) for step in many.steps])
    for index, (want, got) in enumerate(zip(one.steps, many.steps, strict=True)):
        consumed = sorted({sample for share in shares for sample in share[index]})
        assert consumed == sorted(want.samples), f"the ranks consume {consumed}, one rank {sorted(want.samples)}"
        words = loss_difference(want, got, bound=LOSS) or tensor_differences(
            want, got, "the weight", got.weights, want.weights
        )
        assert not words, words


DEPTH_4 = replace(STAGED, pattern="AEMR", depth=4)
SAVED: dict[str, Cell] = {
    "two-stages": cell(DEPTH_4, IN_TWO),
    "beside-tp-sp": cell(DEPTH_4, BESIDE_TP),
    "four-stages-tied": cell(replace(DEPTH_4, untied_embeddings=False), IN_FOUR),
}  # fmt: skip


@contract("PAR-08e", asks=("built", "train"), cases=SAVED, source="bringup", tier="dist")
def three_steps_at_depth_4_are_saved(stack: Training, recipe: Recipe, execution: Execution, world: int) -> None:
    """At depth 4 a pipeline takes three steps and saves a checkpoint; a run that resumes from it, in the same stages or
    on one rank, takes the fourth step of an uninterrupted run.

    PP + TP + SP was a milestone of the bring-up. Layers that are saved under their index on the stage overwrite each
    other.
    """
    precise = replace(execution, precision="float64")
    alone = Execution(precision="float64")
    given, weights = batches(4), large_expert_weights(stack, recipe)
    with shared_folder() as at:
        first = Session(
            recipe=recipe, steps=3, execution=precise, batches=given[:3], weights=weights, save=str(at),
            save_at=frozenset({3}),
        )  # fmt: skip
        taken = stack.train(first).steps
        assert len(taken) == 3, f"{len(taken)} steps were taken, expected 3"
        rest = Session(
            recipe=recipe, steps=1, execution=precise, batches=given[3:], load=str(at),
            observe=frozenset({"weights", "optimizer"}),
        )  # fmt: skip
        resumed = {"in the same stages": stack.train(rest)}
        gathered(0)  # no rank loads alone before all have loaded together
        resumed["on one rank"] = stack.train(replace(rest, execution=alone))
        gathered(0)
    whole = replace(rest, steps=4, execution=alone, batches=given, weights=weights, load=None, at=frozenset({4}))
    want = stack.train(whole).steps[3]
    for where, run in resumed.items():
        got = run.steps[0]
        assert got.number == 4, f"{where} the step after the third is numbered {got.number}"
        words = tensor_differences(want, got, f"{where} the weight", got.weights, want.weights) or tensor_differences(
            want, got, f"{where} the state", got.optimizer, want.optimizer
        )
        assert not words, words


REFUSED: dict[str, tuple[Recipe, Execution, tuple[int, ...], int]] = {
    "no-multiple-when-interleaved": (QUARTERS, replace(INTERLEAVED, microbatches=3), (3, 2), 2),
    "fewer-than-stages": (HALVES, replace(IN_TWO, microbatches=1), (1, 2), 2),
    "sequences-do-not-divide": (HALVES, replace(IN_TWO, microbatches=3), (3, 4), 2),
    "sequences-of-a-dp-rank-do-not-divide": (HALVES, replace(BESIDE_DP, microbatches=4), (4, 2), 4),
    "more-than-sequences": (HALVES, replace(IN_TWO, microbatches=8), (8, 4), 2),
    "depth-does-not-divide": (replace(STAGED, depth=5), IN_TWO, (2, 5), 2),
    "too-shallow-to-interleave": (replace(STAGED, depth=6), INTERLEAVED, (4, 6), 2),
    "four-segments-without-interleaving": (QUARTERS, IN_TWO, (4, 2), 2),
    "two-segments-interleaved": (HALVES, INTERLEAVED, (2,), 2),
}  # microbatches, stages, sequences or layers that the refusal has to name


@contract("PAR-08f", asks="train", cases=REFUSED, source="bringup F20", tier="dist")
def what_a_pipeline_cannot_run_is_refused(
    stack: Training, recipe: Recipe, execution: Execution, numbers: tuple[int, ...], world: int
) -> None:
    """Every rank refuses a microbatch count that the schedule or the batch does not allow, and a stage split that does
    not exist, with both numbers.

    A pipeline that carries on anyway waits for a microbatch that nobody sends, or silently drops sequences.
    """
    gathered(0)  # every rank gets here before one is refused and leaves
    refused = refusal_of(stack.train, Session(recipe=recipe, steps=1, execution=execution, batches=batches(1)))
    missing = sorted(set(numbers) - numbers_in(refused))
    assert not missing, f"the refusal does not name {missing}: {refused}"


@contract("PAR-09", asks="messages", cases=BATCHED, needs=(), sheds=("packed",), float32=True, source="bringup",
          tier="dist")  # fmt: skip
def stages_send_in_batches(stack: Messaging, recipe: Recipe, execution: Execution, world: int) -> None:
    """Pipeline stages issue every point-to-point message through a batched call, in the first step as in later ones,
    and no warning about point-to-point messages appears.

    An unbatched message makes NCCL open a communicator for two ranks while others wait, and the bring-up hung there.
    torch's pipeline schedules turn a batch in one direction into plain calls.
    """
    seen = messages_seen(stack, recipe, execution)
    single = [each for each in seen.issued if not each.batched]
    words = f"rank {here().rank} issues {len(single)} of {len(seen.issued)} messages outside a batch"
    assert not single, f"{words}, the first {message_text(single[0])}"
    warned = [each for each in seen.warnings if "p2p" in each.lower() or "point-to-point" in each.lower()]
    assert not warned, f"rank {here().rank} is warned: {warned[0]}"
