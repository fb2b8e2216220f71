"""The place in its data at which a resumed run continues, and which checkpoints no run may resume from."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.label_weights import WINDOW
from contracts.law._support.saved_states import FAMILIES, folder
from contracts.law.checkpoint.resume import DENSE, MUON, SHORT, given_batches
from contracts.spec import (
    EXACT,
    Batch,
    Checkpoint,
    Checkpointing,
    Data,
    Execution,
    Moe,
    Recipe,
    Refused,
    Session,
    Trained,
    Training,
    chosen,
    within,
)
from contracts.spec.devices import NO_OPTIONS, Devices, StartOptions
from contracts.spec.presets import PRESETS

TINY = replace(PRESETS["tiny-nam56r"], depth=2, pattern="AE", seq_length=16)
EPOCHS = {
    "resumed-in-the-second-and-third": (SHORT, 2, 2, 2),
    "resumed-after-one-step": (SHORT, 1, 4, 1),
    "resumed-where-epochs-end": (replace(SHORT, batch=Batch(micro=1, total=7)), 1, 1, 2),  # an epoch a step
}
OWN = ("checkpoint", "own-data")


@contract("CKPT-01f", asks="train", cases=EPOCHS, needs=OWN, source=FAMILIES)
def a_resume_in_the_middle_of_an_epoch_goes_on_there(stack: Training, recipe: Recipe, *parts: int) -> None:
    """A run that resumes within an epoch consumes the same sequences, in the same order, as the run that was not
    interrupted, to the end of that epoch and through the following epochs.

    It catches an offset that is skipped again in every later epoch, a later epoch that is shuffled like the first, and
    the rest of an epoch that is dropped. None of them shows before the epoch ends. If an epoch ends with a step, the
    next one is begun once, whether the save or the load counts it.
    """
    with folder() as at:
        text = at / "text.bin"
        text.write_bytes(bytes(3 * k % 59 for k in range(7 * recipe.seq_length + 1)))  # seven sequences
        recipe = replace(recipe, data=Data(path=str(text)))
        whole = stack.train(Session(recipe=recipe, steps=sum(parts)))
        want = [step.samples for step in whole.steps]
        flat = [id for ids in want for id in ids]
        assert len(set(flat)) < len(flat), f"no epoch ended within {len(flat)} sequences"
        got: list[tuple[int, ...]] = []
        kept, load = at / "kept", None
        kept.mkdir()
        for steps in parts:
            end = frozenset({len(got) + steps})
            run = stack.train(Session(recipe=recipe, steps=steps, save=str(kept), save_at=end, load=load))
            got += [step.samples for step in run.steps]
            load = str(kept)
    assert got == want, f"resumed after {parts[:-1]} steps the samples are {got}, expected {want}"


CUTS: dict[str, tuple[tuple[int, int], ...]] = {  # steps of each part, and the microbatches of a step
    "more-and-fewer": ((1, 1), (2, 3), (2, 2)),
    "fewer": ((2, 5), (3, 1)),
}


@contract("CKPT-01m", asks="train", cases=CUTS, needs=(*OWN, "microbatches", "uneven-microbatches"),
          conventions=WINDOW, source=f"{FAMILIES}; sd-scripts #2425, RWKV-LM #287")  # fmt: skip
def a_resume_with_other_microbatches_goes_on_there(stack: Training, *parts: tuple[int, int]) -> None:
    """A run that resumes with another number of microbatches per step takes the steps of the uninterrupted run, with
    the same step numbers, learning rates, sequences, labels and losses; or it is refused. Losses are not compared if
    the stack declares that it averages the microbatches' means.

    A place that is kept in microbatches is another one where a step has more of them: the run skips what it never read,
    reads again what it has read, or is at its end.
    """
    with folder() as at:
        text = at / "text.bin"
        text.write_bytes(bytes(3 * k % 59 for k in range(7 * DENSE.seq_length + 1)))  # seven sequences, five a step
        recipe = replace(DENSE, data=Data(path=str(text)))
        whole = stack.train(
            Session(recipe=recipe, steps=5, execution=Execution(precision="float64"), observe=frozenset({"weights"}))
        ).steps
        start, load, over_labels = 0, None, chosen(stack, "window-divides-by") == "labels"
        for steps, microbatches in parts:
            asked = Session(
                recipe=recipe, steps=steps, execution=Execution(precision="float64", microbatches=microbatches),
                save=str(at / "kept"), save_at=frozenset({start + steps}), load=load,
            )  # fmt: skip
            refused, run = _refused(stack, asked)
            if refused and load:
                return
            assert run is not None, f"a run of {microbatches} microbatches was refused: {refused}"
            for got, want in zip(run.steps, whole[start : start + steps], strict=True):
                said = f"with {microbatches} microbatches step {want.number}"
                for fact in ("number", "lr", "samples", "tokens"):
                    found, expected = getattr(got, fact), getattr(want, fact)
                    assert found == expected, f"{said}: {fact} is {found}, expected {expected}"
                apart = abs(got.losses["lm"] - want.losses["lm"])
                assert not over_labels or apart <= within(1e-9) * want.losses["lm"], (
                    f"{said}: lm is {got.losses['lm']:.9g}, expected {want.losses['lm']:.9g}"
                )
            start, load = start + steps, asked.save


CHANGED: dict[str, tuple[Recipe, Recipe]] = {
    "seed": (SHORT, replace(SHORT, seed=SHORT.seed + 1)),
    "rope": (SHORT, replace(SHORT, rope_theta=10_000)),
    "top-k": (SHORT, replace(SHORT, moe=replace(SHORT.moe or Moe(), top_k=2))),
    "optimizer": (SHORT, MUON),
    "width": (SHORT, replace(SHORT, ffn_hidden=44, hidden=28)),
    "deeper": (SHORT, replace(SHORT, depth=5)),
    "rate": (SHORT, replace(SHORT, optim=replace(SHORT.optim, lr=2e-2))),
    "batch": (SHORT, replace(SHORT, batch=Batch(micro=1, total=4))),
    "balance": (SHORT, replace(SHORT, moe=replace(SHORT.moe or Moe(), aux_loss=0.2))),
    "tokenizer": (SHORT, replace(SHORT, data=Data(tokenizer="Another"))),
    "text": (SHORT, replace(SHORT, data=Data(path=__file__))),
}


KNOWN = ("checkpoint", "checkpoint-of-a-recipe")
NEEDED = {
    "": KNOWN,
    **dict.fromkeys(("top-k", "balance"), (*KNOWN, "experts")),
    **dict.fromkeys(("tokenizer", "text"), (*KNOWN, "own-data")),
}
"""A stack that reads no data of its own has no use for a tokenizer or a text."""


@contract("CKPT-01c", asks="train", cases=CHANGED, needs=NEEDED, sheds=("own-data",), source=FAMILIES)
def a_run_resumes_under_its_own_recipe(stack: Training, own: Recipe, other: Recipe) -> None:
    """A checkpoint is refused under another recipe, with the reason, and accepted under its own.

    Most of a recipe is in no tensor's shape: without the refusal the run continues as a different run.
    """
    with folder() as at:
        given = given_batches(own, 1)
        stack.train(Session(recipe=own, steps=1, batches=given, save=str(at), save_at=frozenset({1})))
        refused, run = _refused(stack, Session(recipe=other, steps=1, batches=given, load=str(at)))
        began = run.start if run else 0
        assert refused, f"saved under {own.name}, the run of {other.name} continued after step {began}"
        again = stack.train(Session(recipe=own, steps=1, batches=given, load=str(at)))
    assert again.start == 1, f"under its own recipe the run began after step {again.start}, expected 1"


NOTHING = {"empty-folder": (SHORT,), "empty-folder-dense": (DENSE,)}


@contract("CKPT-01d", asks="train", cases=NOTHING, needs=("checkpoint",), sheds=("own-data",), source=FAMILIES)
def a_resume_from_nothing_is_refused(stack: Training, recipe: Recipe) -> None:
    """A run that is told to load from a folder without a checkpoint is refused instead of starting anew.

    The volume was not mounted: the run began at step 0 and overwrote the old checkpoints once the mount came back.
    """
    with folder() as at:
        refused, run = _refused(stack, Session(recipe=recipe, steps=1, batches=given_batches(recipe, 1), load=str(at)))
    assert refused, f"there is no checkpoint, and the run began after step {run.start if run else 0}"


_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
COMMANDS = {"twice": (True,), "from-nothing": (False,)}


@contract("CKPT-01j", asks="started", cases=COMMANDS, source=FAMILIES, slow=True)
def the_command_goes_on_where_it_was_left(stack: Devices, saved: bool) -> None:
    """If the training command loads from the folder that it saves to, each restart takes only the steps that are left.
    If it is to load and there is no checkpoint, it takes no step and ends with an exit code other than 0.

    Runs are mostly resumed by a script that starts the same command again. One that begins at step 1 writes over the
    checkpoints that it did not find.
    """
    with folder() as at:
        text = at / "text.bin"
        text.write_bytes(bytes(3 * k % 59 for k in range(40 * TINY.seq_length)))
        first = replace(TINY, data=Data(path=str(text)), checkpoint=Checkpoint(save=str(at / "run"), interval=1))
        again = replace(first, checkpoint=replace(first.checkpoint, load=str(at / "run")))
        if not saved:
            ended = stack.started(again, {}, 2)
            words = f"{ended.steps} steps and exit code {ended.exit_code}: {ended.words[-300:]}"
            assert ended.steps == 0, f"there is no checkpoint, and it took {words}"
            assert ended.exit_code != 0, f"there is no checkpoint, and it ended after {words}"
            return
        for number, (recipe, steps, want) in enumerate(((first, 2, 2), (again, 3, 1), (again, 5, 2))):
            ended = stack.started(recipe, _ALONE if number else {}, steps)
            words = f"{ended.steps} steps and exit code {ended.exit_code}: {ended.words[-300:]}"
            assert (ended.steps, ended.exit_code) == (want, 0), f"start {number + 1} took {words}, expected {want}"


class Continuing(Devices, Checkpointing, Training, Protocol):
    """A command that saves, and a run that loads what it saved."""


FALLING = replace(TINY, optim=replace(TINY.optim, lr=1e-2, min_lr=1e-4, warmup=1, steps=8, schedule="cosine"))
PARTS = {"two-and-two": (FALLING, (2, 4), 4), "one-and-two": (FALLING, (1, 3), 3)}


@contract("CKPT-01q", asks=("started", "latest_checkpoint", "train"), cases=PARTS, source=FAMILIES, slow=True)
def the_command_stopped_early_leaves_what_it_leaves_at_once(
    stack: Continuing, recipe: Recipe, ends: tuple[int, ...], steps: int
) -> None:
    """The training command, stopped after some steps and started again, leaves the weights of the command that takes
    all of them at once, in the middle of its schedule.

    The step to stop after is no part of the recipe. A schedule that ends with the steps of each start falls to its end
    in each of them, and every number in the log is plausible.
    """
    with folder() as at:
        text = at / "text.bin"
        text.write_bytes(bytes(3 * k % 59 for k in range(40 * recipe.seq_length)))
        recipe = replace(recipe, data=Data(path=str(text)))
        left = []
        for name, stops in (("parts", ends), ("whole", (steps,))):
            load = None
            for stop in stops:
                kept = Checkpoint(save=str(at / name), load=load, interval=stop)
                ended = stack.started(replace(recipe, checkpoint=kept), _ALONE if load else {}, stop)
                words = f"started for {stop} steps it ended with {ended.exit_code}: {ended.words[-300:]}"
                assert ended.exit_code == 0, words
                load = str(at / name)
            where = _latest_in(stack, at / name)
            assert where is not None, f"started for {stops[-1]} steps the command left no checkpoint"
            asked = Session(recipe=recipe, steps=1, load=str(where), observe=frozenset({"weights"}), at=frozenset({0}))
            loaded = stack.train(asked)
            assert loaded.start == steps, f"the last checkpoint is of step {loaded.start}, expected {steps}"
            assert loaded.loaded is not None, "the loaded state was asked for, and there is none"
            left.append(loaded.loaded.weights)
    words = numerics.differences("the weight", left[0], left[1], EXACT)
    assert not words, f"stopped after {ends[0]} of {steps} steps: {words}"


def _latest_in(stack: Checkpointing, place: Path) -> Path | None:
    """The folder at or below a place that holds checkpoints."""
    folders = [each for each in (place, *sorted(place.rglob("*"))) if each.is_dir()]
    return next((each for each in folders if stack.latest_checkpoint(str(each)) is not None), None)


class Saving(Devices, Checkpointing, Protocol):
    """A command that saves, and what it has saved."""


RESUMED = StartOptions(resume=True)
APART = StartOptions(save="apart", resume=True)
KEPT = {  # the interval, the steps after which the starts stop, the checkpoints that they leave, the options
    "every-third": (3, (7,), (7, 6, 3), NO_OPTIONS),
    "longer-than-the-run": (5, (2,), (2,), NO_OPTIONS),
    "ends-on-one": (2, (4,), (4, 2), NO_OPTIONS),
    "started-again": (3, (2, 7), (7, 6, 3, 2), NO_OPTIONS),
    "no-step": (1, (0,), (), NO_OPTIONS),
    "resumed": (3, (2, 7), (7, 6, 3, 2), RESUMED),
    "another-folder-beside-a-load": (2, (1, 3, 4), (4, 3, 2, 1), APART),
    "the-newest-two": (1, (3, 5), (5, 4), replace(RESUMED, keep=2)),
    "copied-after-the-first-start": (1, (2, 4), (4, 3, 2), replace(APART, keep=1, durable="copies")),
}


@contract("CKPT-01l", asks=("started", "latest_checkpoint"), cases=KEPT, source=FAMILIES, slow=True)
def the_command_saves_as_often_as_it_is_told(
    stack: Saving, interval: int, stops: tuple[int, ...], saved: tuple[int, ...], options: StartOptions
) -> None:
    """The training command leaves a checkpoint of every `checkpoint.interval`-th step and of its last, and of no other.
    Steps are counted over the whole run, also after a restart; a start for 0 steps leaves no checkpoint, and
    ends with 0 or in words that name the steps and 0. If it is to keep some, it leaves the newest, and each that has
    no newer copy in the durable folder. The folder of its options and a resume go before those of the recipe.

    The run that nothing interrupts shows none of it. One that saves only at its end has lost everything when it dies
    before, and one that forgets the last step takes it again. One that counts from its restart saves other steps each
    time.
    """
    with folder() as at:
        text = at / "text.bin"
        text.write_bytes(bytes(3 * k % 59 for k in range(40 * TINY.seq_length)))
        kept, start = Checkpoint(save=str(at / "run"), interval=interval), 0
        run, copies = at / (options.save or "run"), at / (options.durable or "copies")
        options = replace(options, save=options.save and str(run), durable=options.durable and str(copies))
        for steps in stops:
            recipe = replace(TINY, data=Data(path=str(text)), checkpoint=kept)
            ended = stack.started(recipe, _ALONE if start else {}, steps, options)
            words = f"{ended.steps} steps and exit code {ended.exit_code}: {ended.words[-300:]}"
            refused = steps == start and re.search(r"(?im)^(?=\S)(?=.*\b0\b).*(step|iter)", ended.words)
            right = ended.steps == steps - start and (ended.exit_code == 0 or refused)
            assert right, f"it took {words}, expected {steps - start}"
            load = str(at / "begun") if options.save else None if options.resume else kept.save
            kept, start = replace(kept, load=load), steps
            where = _latest_in(stack, run)
            if where is not None and not copies.exists():
                shutil.copytree(run, at / "begun")
                shutil.copytree(where, copies)
        found: list[int] = []
        while where is not None and (latest := stack.latest_checkpoint(str(where))) is not None:
            found.append(latest)
            for path in [path for path in where.iterdir() if re.search(rf"(?<!\d)0*{latest}(?!\d)", path.name)]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            assert latest != stack.latest_checkpoint(str(where)), f"step {latest} is in no entry of {where} by its name"
    assert tuple(found) == saved, (
        f"a run that stops after {list(stops)} steps and saves every {interval} left checkpoints of steps {found}, "
        f"expected {list(saved)}"
    )


def _refused(stack: Training, session: Session) -> tuple[str, Trained | None]:
    try:
        run = stack.train(session)
    except Refused as refused:
        return str(refused), None
    return "", run
