"""How a training process starts: what it cannot understand or read ends it, with a code that a shell sees."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from contracts.contract import contract
from contracts.law._support.saved_states import folder
from contracts.spec import Batch, Checkpoint, Data, Dsa, Mla, Recipe
from contracts.spec.devices import Devices
from contracts.spec.presets import PRESETS

TINY = replace(PRESETS["tiny-nam56r"], depth=2, pattern="AE", seq_length=16)
RENDEZVOUS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}

PLACES: dict[str, tuple[Mapping[str, str], str]] = {  # the variable that is wrong
    "rank-is-no-number": ({"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "RANK"),
    "rank-is-beyond-the-world": ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "RANK"),
    "a-world-without-ranks": ({"WORLD_SIZE": "2"}, "RANK"),
    "a-rank-without-a-world": ({"RANK": "1", "LOCAL_RANK": "1"}, "WORLD_SIZE"),
    "rank-is-beyond-a-world-of-four": ({"RANK": "4", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "RANK"),
    "rank-is-beyond-a-world-of-one": ({"RANK": "1", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "RANK"),
    "a-world-of-one-without-ranks": ({"WORLD_SIZE": "1"}, "RANK"),
    "an-empty-world": ({"RANK": "0", "WORLD_SIZE": "", "LOCAL_RANK": "0"}, "WORLD_SIZE"),
}


@contract("ENV-09", asks="started", cases=PLACES, source="PG-10; F21", slow=True)
def a_malformed_place_ends_the_start(stack: Devices, environment: Mapping[str, str], variable: str) -> None:
    """A training process with a malformed RANK or WORLD_SIZE takes no step, names the variable, and ends with an exit
    code other than 0. Malformed means: RANK is no number or not below WORLD_SIZE, or only one of the two is set.

    A process that takes what it cannot read for "no launcher" trains by itself: eight of them write into one folder,
    and every log looks right.
    """
    with folder() as at:
        recipe = replace(TINY, data=Data(path=_text(at)))
        ended = stack.started(recipe, {**RENDEZVOUS, **environment}, 1)
    said = ", ".join(f"{name}={value!r}" for name, value in environment.items())
    assert ended.steps == 0, f"under {said} it took {ended.steps} steps"
    assert ended.exit_code != 0, f"under {said} it ended with exit code 0"
    assert variable in ended.words, f"under {said} it ended without a word of {variable}: {ended.words[-300:]}"


UNREADABLE = {"no-data": ("missing",)}


@contract("ENV-09a", asks="started", cases=UNREADABLE, source="DAT-28; F21", slow=True)
def data_that_cannot_be_read_ends_the_start(stack: Devices, data: str) -> None:
    """A training process that cannot read its data takes no step, names the path, and ends with an exit code other
    than 0.

    A scheduler, a CI job and a retry loop know only the exit code. A wrapper that swallows it, or a pipe into a log,
    makes a run that never began a success.
    """
    with folder() as at:
        path = str(at / data)
        ended = stack.started(replace(TINY, data=Data(path=path)), {}, 1)
    words = f"{ended.steps} steps, exit code {ended.exit_code}: {ended.words[-300:]}"
    assert ended.steps == 0, f"with {data} data it took {words}"
    assert ended.exit_code != 0, f"with {data} data it ended after {words}"
    assert path in ended.words, f"with {data} data its end does not name the path, after {words}"


UNWRITABLE = {"a-file-for-a-folder": ("file",)}


@contract("ENV-09b", asks="started", cases=UNWRITABLE, source="F21", slow=True)
def a_run_that_fails_half_way_says_so(stack: Devices, there: str) -> None:
    """A training process that fails after its first step, because it cannot write its checkpoint, ends with an exit
    code other than 0 and names the path.

    What is refused before the first step is one way to end, what breaks after it another: a handler that records the
    failure and returns makes a run without a checkpoint a success.
    """
    with folder() as at:
        path = at / there
        path.write_bytes(b"")
        kept = Checkpoint(save=str(path), interval=1)
        ended = stack.started(replace(TINY, data=Data(path=_text(at)), checkpoint=kept), {}, 2)
    words = f"{ended.steps} steps, exit code {ended.exit_code}: {ended.words[-300:]}"
    assert ended.exit_code != 0, f"where its checkpoints cannot be written it ended after {words}"
    assert str(path) in ended.words, f"where its checkpoints cannot be written no word of {path}, after {words}"


TOO_LARGE = {
    "a-step": replace(
        TINY, name="too-long", pattern="A", depth=1, moe=None, seq_length=2**21, hidden=16, ffn_hidden=16, heads=2,
        kv_groups=2, qk_norm=False, mla=Mla(q_lora=4, kv_lora=4, qk_head=4, qk_rope=2, v_head=4),
        dsa=Dsa(a_ranks=(0,), index_heads=8, index_head_dim=4, top_k=4), batch=Batch(micro=1, total=1),
    ),
}  # fmt: skip
"""A model of some thousand parameters whose indexer has 2^45 scores of a sequence, which no address space holds."""


@contract("ENV-09c", asks="started", cases=TOO_LARGE, source="F21", slow=True)
def a_step_that_finds_no_memory_ends_the_run(stack: Devices, recipe: Recipe) -> None:
    """A training process that runs out of memory in its first step takes no step, names memory, and ends with an exit
    code other than 0.

    Loops that catch the error, empty a cache and continue with the next batch are common. On one rank that leaves out
    every long sequence; on several, one rank leaves out a step that its peers take, or all train on nothing.
    """
    with folder() as at:
        ended = stack.started(replace(recipe, data=Data(path=_text(at, recipe.seq_length + 1))), {}, 2)
    words = f"{ended.steps} steps, exit code {ended.exit_code}: {ended.words[-300:]}"
    assert ended.steps == 0, f"where no step finds memory it took {words}"
    assert ended.exit_code != 0, f"where no step finds memory it ended after {words}"
    assert "memory" in ended.words.lower(), f"where no step finds memory its end does not say so, after {words}"


def _text(at: Path, size: int = 40 * TINY.seq_length) -> str:
    """The path of a text for some sequences."""
    file = at / "text"
    file.write_bytes(bytes(3 * k % 59 for k in range(59)) * (size // 59 + 1))
    return str(file)
