"""A checkpoint that several ranks wrote, loaded on the same layout and on others: every tensor by its name, or a
refusal by every rank.

A checkpoint must not depend on the ranks that wrote it. The contracts compare gathered tensors with the run's own, so
it does not matter in which way a shard went astray.
"""

import random
from dataclasses import replace
from itertools import accumulate

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.instruments.ranks import gathered, here
from contracts.law._support.late import torch
from contracts.law._support.layouts import in_a_layout_of
from contracts.law._support.multi_rank_saves import (
    CP2,
    CP2_FSDP,
    CP2_TP2,
    DP2,
    EP2,
    EP2_BORROWED,
    EP4_BORROWED,
    EVEN,
    EVEN_MUON,
    FSDP2,
    FSDP4,
    HSDP,
    INTERLEAVED,
    INTERLEAVED_FSDP2,
    ONE,
    PP2,
    PP2_EVEN,
    PP2_FSDP2,
    PP2_TP2,
    PP4,
    SCALED,
    SPREAD,
    SPREAD_MUON,
    STATE,
    TP2,
    TP2_EP2,
    TP2_FSDP2,
    TP2_SP,
    first_finding,
    layout_name,
    refusal,
    save_folder,
    state_difference,
)
from contracts.law._support.saved_states import FAMILIES, shared_folder
from contracts.law.checkpoint.resume import EVERY_KIND, EVERYTHING
from contracts.spec import (
    EXACT,
    FLOAT64_SCAN,
    Arrays,
    Data,
    Dsa,
    Execution,
    NotOffered,
    Observed,
    Recipe,
    Session,
    Step,
    Training,
)

KINDS = replace(EVERY_KIND, name="every-kind-of-ranks", seq_length=18)
"""What is trained of any block, of prediction heads and of streams; two ranks can share its rows' tokens."""
TIED = replace(SPREAD, name="spread-tied", untied_embeddings=False)
RANKS: dict[str, tuple[Recipe, Execution, int, tuple[int, ...]]] = {  # steps between two loads
    "fsdp2": (SPREAD, FSDP2, 2, (2, 1, 2)),
    "dp2-muon": (SPREAD_MUON, DP2, 2, (1, 2, 1)),
    "tp2-sp-muon": (SPREAD_MUON, TP2_SP, 2, (1, 2, 1)),
    "ep2": (SPREAD, EP2, 2, (2, 1, 2)),
    "borrowed-ep2-fsdp-accumulated": (SPREAD_MUON, replace(EP2_BORROWED, microbatches=2), 2, (1, 2, 1)),
    "fsdp2-delayed-fp8": (SCALED, FSDP2, 2, (1, 1, 2)),
    "fsdp2-every-kind": (KINDS, FSDP2, 2, (1, 1, 2)),
    "tp2-sp-every-kind": (KINDS, TP2_SP, 2, (1, 1, 2)),
    "fsdp2-tied": (TIED, FSDP2, 2, (1, 2, 1)),
    "tp2-sp-ep2": (SPREAD, TP2_EP2, 4, (2, 1, 1)),
    "borrowed-cp2-fsdp": (SPREAD_MUON, CP2_FSDP, 2, (1, 2, 1)),
    "hsdp-2x2": (SPREAD, HSDP, 4, (1, 2, 1)),
    "interleaved": (EVEN_MUON, INTERLEAVED, 2, (1, 2, 2)),
    "pp2-tp2-sp": (EVEN, PP2_TP2, 4, (2, 1, 1)),
}


@contract("CKPT-01e", asks="train", cases=RANKS, source=FAMILIES, tier="dist")
def ranks_resumed_twice_are_uninterrupted(
    stack: Training, recipe: Recipe, execution: Execution, world: int, parts: tuple[int, ...]
) -> None:
    """Ranks that save and resume twice are bit-identical to ranks that were not interrupted: the losses at every step,
    and at each save the weights, optimizer state, buffers, each rank's random generators and its place in the data.

    Each rank draws its own random numbers. Generators that are saved only for rank 0, or by data-parallel rank where
    two ranks share one, are the same on all ranks after the load, and so is dropout. If ranks have whole weights and
    each updates some of them, a load that fills in what a rank updates leaves the rest as it was initialised.
    """
    execution = in_a_layout_of(stack, execution)
    _generators(recipe.seed)
    ends = frozenset(accumulate(parts))
    whole = stack.train(Session(recipe=recipe, steps=sum(parts), execution=execution, observe=EVERYTHING, at=ends))
    _generators(recipe.seed)
    start = 0
    with shared_folder() as at:
        for number, steps in enumerate(parts):
            end = start + steps
            run = stack.train(
                Session(
                    recipe=recipe, steps=steps, execution=execution, observe=EVERYTHING, at=ends, save=str(at),
                    save_at=frozenset({end}), load=str(at) if number else None,
                )
            )  # fmt: skip
            said = f"after {number} loads" if number else "before any load"
            words = "" if run.start == start else f"the run began after step {run.start}, expected {start}"
            for got, want in zip(run.steps, whole.steps[start:end], strict=True):
                words = words or _unlike(got, want)
            words = first_finding(words)
            assert not words, f"{said}, {words}"
            start = end
            _generators(999 + number)


def _generators(seed: int) -> None:
    """Seed this rank's generators differently from every other rank's."""
    own = seed + 1009 * (here().rank + 1)
    random.seed(own)
    torch.manual_seed(own)


def _unlike(got: Step, want: Step) -> str:
    """How a step differs from the same step on the same ranks."""
    facts = ("number", "samples", "lr", "losses", "tokens", "grad_norm")
    unequal = [fact for fact in facts if getattr(got, fact) != getattr(want, fact)]
    found = [f"{fact} is {getattr(got, fact)}, expected {getattr(want, fact)}" for fact in unequal[:1]]
    found += [words for words in [state_difference(got, want)] if words]
    return f"step {want.number}: {'; '.join(found)}" if found else ""


PAIR = replace(SPREAD, name="spread-pair", pattern="AE", depth=2)
CUSTOM = replace(
    KINDS, name="every-kind-of-custom-mixers", pattern="AEMR",
    dsa=Dsa(a_ranks=(0,), index_heads=5, index_head_dim=8, top_k=5),
)  # fmt: skip


def _custom(execution: Execution) -> Execution:
    return replace(execution, mode="author_dp")


COMPILED = Execution(world=2, precision="float64", compile="blocks", backend="eager")  # any backend wraps
OTHERS: dict[str, tuple[Recipe, int, Execution, tuple[Execution, ...]]] = {
    "one-rank": (SPREAD, 2, ONE, (FSDP2, TP2_SP, EP2_BORROWED)),
    "fsdp2": (SPREAD_MUON, 2, FSDP2, (ONE, TP2, EP2)),
    "tp2-sp": (SPREAD, 2, TP2_SP, (ONE, TP2, EP2_BORROWED)),
    "ep2": (SPREAD, 2, EP2, (ONE, FSDP2, TP2_SP)),
    "borrowed-ep2-fsdp": (SPREAD_MUON, 2, EP2_BORROWED, (ONE, EP2, TP2)),
    "pp2": (SPREAD, 2, PP2, (ONE, FSDP2)),
    "one-rank-to-pp2": (SPREAD_MUON, 2, ONE, (PP2,)),
    "cp2-fsdp": (SPREAD_MUON, 2, CP2_FSDP, (ONE, CP2, TP2_SP)),
    "one-rank-to-cp2": (SPREAD, 2, ONE, (CP2, CP2_FSDP)),
    "one-rank-every-kind": (KINDS, 2, ONE, (FSDP2, TP2_SP)),
    "tp2-sp-custom-mixers": (CUSTOM, 2, _custom(TP2_SP), (_custom(ONE), _custom(FSDP2))),
    "fsdp2-tied": (TIED, 2, FSDP2, (ONE, TP2, PP2)),
    "pp2-tied": (TIED, 2, PP2, (FSDP2, TP2_SP)),
    "compiled-to-eager": (PAIR, 2, COMPILED, (ONE, FSDP2)),
    "eager-to-compiled": (PAIR, 2, FSDP2, (COMPILED,)),
    "tp2-sp-ep2": (SPREAD, 4, TP2_EP2, (ONE, HSDP, TP2_FSDP2)),
    "hsdp-2x2": (SPREAD, 4, HSDP, (FSDP4, EP4_BORROWED)),
    "borrowed-cp2-tp2-fsdp": (SPREAD, 4, CP2_TP2, (HSDP, TP2_EP2)),
    "borrowed-tp2-sp-ep4-fsdp": (SPREAD, 4, EP4_BORROWED, (ONE, FSDP4)),
    "tp2-sp-fsdp2": (SPREAD, 4, TP2_FSDP2, (HSDP, TP2_EP2)),
}
"""Recipe, ranks, the layout that saves, and those that load."""


@contract("CKPT-02a", asks="train", cases=OTHERS, source=FAMILIES, tier="dist")
def another_layout_loads_every_number_by_its_name(
    stack: Training, recipe: Recipe, world: int, saves: Execution, loads: tuple[Execution, ...]
) -> None:
    """If a checkpoint is loaded on another layout, every weight, optimizer state entry and buffer arrives under its
    name, whole and bit-identical, and the run resumes at the same place in the data.

    The number of ranks, and which rank holds which rows and experts, all change. A shard that is found by the number of
    the rank that wrote it, by the order of the files or by the order of the parameters is the wrong shard. Wrappers,
    such as the compiler's, add to the names that a model reports, and not to those of its state.
    """
    saves, *rest = (in_a_layout_of(stack, each) for each in (saves, *loads))
    with shared_folder() as at:
        saved = _saved(stack, recipe, saves, save_folder(at, saves).as_posix())
        (source, *_) = gathered(save_folder(at, saves).as_posix())
        for layout in rest:
            run = stack.train(
                Session(recipe=recipe, steps=0, execution=layout, observe=STATE, at=frozenset({0}), load=source)
            )
            words = first_finding(_loaded_unlike(run.start, run.loaded, saved))
            assert not words, f"saved on {layout_name(saves)}, loaded on {layout_name(layout)}, {words}"


def _saved(
    stack: Training,
    recipe: Recipe,
    execution: Execution,
    folder: str,
    steps: int = 2,
    observe: frozenset[Observed] = STATE,
) -> Step:
    """The last step of a run that saves after it."""
    session = Session(recipe=recipe, steps=steps, execution=execution, observe=observe, at=frozenset({steps}),
                      save=folder, save_at=frozenset({steps}))  # fmt: skip
    return stack.train(session).steps[-1]


def _loaded_unlike(start: int, loaded: Step | None, saved: Step) -> str:
    if start != saved.number:
        return f"the run resumed after step {start}, expected {saved.number}"
    return "no loaded state is reported" if loaded is None else state_difference(loaded, saved)


GOES_ON: dict[str, tuple[Recipe, int, Execution, tuple[Execution, ...]]] = {
    "two-to-two": (SPREAD, 2, TP2_SP, (FSDP2, EP2_BORROWED)),
    "stages-to-one-to-other-stages": (EVEN_MUON, 2, PP2_EVEN, (ONE, INTERLEAVED)),
    "four-stages-to-two-to-two-twice": (EVEN, 4, PP4, (PP2_FSDP2, INTERLEAVED_FSDP2)),
    "two-to-two-of-one-row": (SPREAD, 2, FSDP2, (CP2_FSDP, TP2)),
    "one-to-two-to-one": (SPREAD_MUON, 2, ONE, (FSDP2, ONE)),
    "four-to-four-to-one": (SPREAD, 4, TP2_EP2, (HSDP, ONE)),
}


@contract("CKPT-02b", asks="train", cases=GOES_ON, source=FAMILIES, tier="dist")
def a_run_that_changes_its_layout_is_the_same_run(
    stack: Training, recipe: Recipe, world: int, first: Execution, others: tuple[Execution, ...]
) -> None:
    """A run that resumes on another layout, once or several times, takes the same sequences, learning rates and
    gradients, step for step, as the same run on its first layout.

    The run counts the sequences that it consumed, not those of each rank: an offset per rank repeats some sequences
    when the number of ranks falls.
    """
    first, *rest = (in_a_layout_of(stack, each) for each in (first, *others))
    ends = (*range(1, len(others) + 1), len(others) + 2)  # the last part's second step follows no load
    whole = stack.train(Session(recipe=recipe, steps=ends[-1], execution=first, observe=frozenset({"gradients"})))
    with shared_folder() as at:
        load: str | None = None
        for start, end, layout in zip((0, *ends), ends, (first, *rest), strict=False):
            own = save_folder(at / str(end), layout).as_posix()
            run = stack.train(
                Session(
                    recipe=recipe, steps=end - start, execution=layout, observe=frozenset({"gradients"}), load=load,
                    save=own, save_at=frozenset({end}),
                )
            )  # fmt: skip
            pairs = zip(run.steps, whole.steps[start:end], strict=True)
            words = first_finding(next((words for got, want in pairs if (words := _apart(got, want))), ""))
            assert not words, f"on {layout_name(layout)}, from step {start + 1} on, {words}"
            (load, *_) = gathered(own)


def _apart(got: Step, want: Step) -> str:
    """How a step differs from the same step on other ranks, beyond rounding from the order of sums."""
    for fact in ("number", "samples", "lr", "tokens"):
        if getattr(got, fact) != getattr(want, fact):
            return f"step {want.number}: {fact} is {getattr(got, fact)}, expected {getattr(want, fact)}"
    words = numerics.gradient_differences("the gradient of", got.gradients, want.gradients, FLOAT64_SCAN)
    return f"step {want.number}: {words}" if words else ""


EPOCHS: dict[str, tuple[int, int, tuple[Execution, ...]]] = {  # sequences of the text; a step takes five
    "fsdp2": (2, 6, (FSDP2, FSDP2, FSDP2)),
    "fsdp2-where-epochs-end": (2, 5, (FSDP2, FSDP2, FSDP2)),
    "one-to-two-to-two-of-one-row": (2, 6, (ONE, FSDP2, CP2_FSDP)),
    "pp2-to-tp2": (2, 6, (PP2, PP2, TP2_SP)),
}


@contract("CKPT-01i", asks="train", cases=EPOCHS, source=FAMILIES, tier="dist",
          needs={"": ("checkpoint", "own-data")})  # fmt: skip
def ranks_that_resume_in_later_epochs_read_on(
    stack: Training, world: int, sequences: int, layouts: tuple[Execution, ...]
) -> None:
    """Ranks that resume in the second epoch and again in the fourth, on the same layout or another, consume the
    sequences of the run on one rank that was not interrupted.

    A first epoch is the same with an offset or with a count, with or without the number of the epoch. A state saved
    after the first load is right at the second only if the load itself changed nothing.
    """
    layouts = tuple(in_a_layout_of(stack, each) for each in layouts)
    with shared_folder() as at:
        text = at / "text.bin"
        own = text.with_name(f"text-{here().rank}")
        own.write_bytes(bytes(3 * k % 59 for k in range(sequences * SPREAD.seq_length + 1)))
        own.replace(text)
        recipe = replace(SPREAD, data=Data(path=str(text)))
        whole = stack.train(Session(recipe=recipe, steps=7, execution=ONE)).steps
        load: str | None = None
        for start, end, layout in zip((0, 2, 5), (2, 5, 7), layouts, strict=True):
            kept = save_folder(at / str(end), layout).as_posix()
            session = Session(recipe=recipe, steps=end - start, execution=layout, load=load, save=kept,
                              save_at=frozenset({end}))  # fmt: skip
            got = [step.samples for step in stack.train(session).steps]
            want = [step.samples for step in whole[start:end]]
            unlike = f"the samples are {got}, expected {want}" if got != want else ""
            words = first_finding(unlike)
            assert not words, f"on {layout_name(layout)}, from step {start + 1} on, {words}"
            (load, *_) = gathered(kept)


DROPPING = replace(SPREAD, name="spread-dropping", dropout=0.2)
GROWN = {
    "one-to-two": (ONE, FSDP2, 2),
    "tp-to-dp": (TP2_SP, FSDP2, 2),
    "tp-without-sp-to-dp": (TP2, DP2, 2),
    "dp-to-tp": (FSDP2, TP2_SP, 2),
}


@contract("CKPT-02c", asks="train", cases=GROWN, source=FAMILIES, tier="dist")
def ranks_that_load_from_others_draw_their_own_numbers(
    stack: Training, saves: Execution, loads: Execution, world: int
) -> None:
    """Data-parallel ranks that load another layout's checkpoint do not draw the same random numbers as each other,
    whatever they drew before the load. After loads of two steps of a run a rank does not draw the same numbers.

    Generators are saved by rank. When they are restored by rank number, or by rank number modulo the old world size,
    two of the new ranks get the same state and drop the same units of every sequence. When they begin anew as at the
    first step, each load drops what the steps before it dropped.
    """
    drawn: list[Arrays] = []
    before: dict[str, str] = {}
    with shared_folder() as at:
        for steps in (1, 2):
            _generators(SPREAD.seed)
            folder = save_folder(at / str(steps), saves).as_posix()
            drawn.append(_saved(stack, DROPPING, saves, folder, steps, EVERYTHING).rng)
            (source, *_) = gathered(folder)
            _generators(SPREAD.seed)
            session = Session(recipe=DROPPING, steps=0, execution=loads, observe=EVERYTHING, at=frozenset({0}),
                              load=source)  # fmt: skip
            loaded = stack.train(session).loaded
            assert loaded is not None, "no loaded state is reported"
            now = {name: each.fingerprint for name, each in loaded.rng.items()}
            if not now:
                raise NotOffered("it does not report the states of its generators", "adapter")
            for name in sorted(now):
                states = gathered(now[name])
                words = f"{world} ranks have {len(set(states))} states of the generator {name}"
                assert loads.degrees.tp > 1 or len(set(states)) == world, words
            draws = bool(numerics.differences("the generator", drawn[0], drawn[-1], EXACT))
            same = [name for name in now if now[name] == before.get(name)]
            words = f"after loads of steps 1 and 2 rank {here().rank} draws the same numbers from {', '.join(same)}"
            assert not draws or not same, words
            before = now


OWN = {"to-one-rank": (FSDP2, ONE, 2), "to-context-parallel": (FSDP2, CP2_FSDP, 2)}


@contract("CKPT-02f", asks="train", cases=OWN, source=FAMILIES, tier="dist")
def what_is_of_one_rank_is_not_given_to_others(stack: Training, saves: Execution, loads: Execution, world: int) -> None:
    """Per-rank state that is not a shard of a whole, such as FP8 scales from the tokens that a rank saw, is refused by
    name on another layout, by every rank.

    One rank's scales on all ranks overflow where another rank's activations are larger, and nothing says why.
    """
    with shared_folder() as at:
        folder = save_folder(at, saves).as_posix()
        saved = _saved(stack, SCALED, saves, folder)
        own = [name for name in sorted(saved.buffers) if len(set(gathered(saved.buffers[name].fingerprint))) > 1]
        session = Session(recipe=SCALED, steps=0, execution=loads, load=folder)
        told = gathered(refusal(stack, session) if own else "nothing differs")
    assert all(told), (
        f"{len(own)} buffers differ from rank to rank, and {layout_name(loads)} loaded them, such as {own[0]}"
    )
    named = own[0] in told[0] if own else True
    assert named, f"the refusal does not name {own[0]}: {told[0][:300]}"
