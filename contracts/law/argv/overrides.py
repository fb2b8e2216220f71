"""Overrides: single fields of a recipe changed from the command line, and their effect on the launch.

An override either changes what it names and nothing else, or is refused. It never disappears.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.launches import (
    AUTHOR,
    AUTHOR_PP4,
    FSDP2,
    NAM56R,
    NATIVE,
    NATIVE_PP2,
    flag_texts,
    for_megatron,
    refusal_of_launch,
)
from contracts.spec import Checkpoint, Data, Lane, Refused, Stack

OVERRIDES: dict[str, tuple[Lane, dict[str, str], dict[str, float | str | None]]] = {
    # overrides → every flag that changes, with its new value; None: it is gone, "": a switch
    "lr": (NATIVE, {"optim.lr": "7e-4"}, {"--lr": 7e-4}),
    # It begins with letters of its prefix: `lstrip("optim.")` turns it into "n_lr".
    "min-lr": (AUTHOR, {"optim.min_lr": "1e-5"}, {"--min-lr": 1e-5}),
    "top-k": (NATIVE, {"moe.top_k": "3"}, {"--moe-router-topk": 3}),
    "micro-batch": (AUTHOR, {"batch.micro": "2"}, {"--micro-batch-size": 2}),
    # Two flags: the data and the model must agree on the new length.
    "sequence": (NATIVE, {"seq_length": "8192"}, {"--seq-length": 8192, "--max-position-embeddings": 8192}),
    "experts-and-seed": (AUTHOR_PP4, {"seed": "7", "moe.experts": "32"}, {"--seed": 7, "--num-experts": 32}),
    "none": (NATIVE, {}, {}),
    # `bool("false")` is true: a switch that is on can never be turned off.
    "switches-off": (NATIVE, {"qk_norm": "false", "untied_embeddings": "false"},
                     {"--qk-layernorm": None, "--untie-embeddings-and-output-weights": None}),
    "off-as-it-was": (NATIVE, {"replicate_kv": "false", "moe.selection_bias": "false"}, {}),
    "another-dtype": (AUTHOR, {"dtype": "fp16"}, {"--bf16": None, "--fp16": ""}),
    "no-dtype": (NATIVE, {"dtype": "fp32"}, {"--bf16": None}),
    # Over one chosen expert the softmax is 1, and Megatron-Core refuses it: it wants the one over all.
    "one-expert": (NATIVE, {"moe.top_k": "1"}, {"--moe-router-topk": 1, "--moe-router-pre-softmax": ""}),
}  # fmt: skip


@contract("ARGV-08", asks="launch", cases=OVERRIDES, source="naming; F15")
def an_override_changes_its_own_key(
    stack: Stack, lane: Lane, overrides: dict[str, str], expected: dict[str, float | str | None]
) -> None:
    """An override changes only the flags of its own key, and removes no other flag."""
    before = flag_texts(for_megatron(stack, NAM56R, lane).argv)
    after = flag_texts(for_megatron(stack, NAM56R, replace(lane, overrides=overrides)).argv)
    for flag, value in expected.items():
        found = after.get(flag)
        got, want = ("absent" if text is None else text or "given" for text in (found, value))
        assert (_number(found) if isinstance(value, float | int) else found) == value, (
            f"{flag} is {got}, expected {want}"
        )
    lost = sorted(set(before) - set(after) - set(expected))
    assert not lost, f"the override of {', '.join(overrides)} removes {lost[0]}"
    changed = {flag: value for flag, value in after.items() if before.get(flag) != value and flag not in expected}
    assert not changed, f"overriding {', '.join(overrides)} also changes {changed}"


UNKNOWN = {  # key, value → the name that it misspells
    "a-letter-twice": ("optim.lrr", "1e-4", "optim.lr"),
    "another-separator": ("moe.topk", "2", "moe.top_k"),
    "a-letter-short": ("hiden", "4096", "hidden"),
    "another-case": ("Seq_Length", "8192", "seq_length"),
}


@contract("ARGV-08a", asks="launch", cases=UNKNOWN, source="naming")
def an_unknown_key_is_refused_with_the_nearest(stack: Stack, key: str, value: str, nearest: str) -> None:
    """A stack refuses an override of an unknown key, and names that key and the nearest known one."""
    for lane in (NATIVE, FSDP2):
        refused = refusal_of_launch(stack, NAM56R, replace(lane, overrides={key: value}), f"the override {key}={value}")
        assert key in str(refused), f"the refusal does not name {key}: {refused}"
        assert nearest in str(refused).replace(key, ""), f"the refusal of {key} does not offer {nearest}: {refused}"


WRONG = {  # key, value → what the refusal must name
    "text-for-a-size": ("hidden", "wide", ("hidden", "wide")),
    "fraction-of-an-expert": ("moe.top_k", "2.5", ("top_k", "2.5")),
    "truth-for-a-depth": ("depth", "true", ("depth", "true")),
    "text-for-a-rate": ("optim.lr", "fast", ("lr", "fast")),
    "a-dtype-that-is-none": ("dtype", "bf32", ("dtype", "bf32")),
    "not-a-number": ("optim.lr", "NaN", ("lr", "nan")),
    "more-than-there-are": ("moe.top_k", "17", ("top_k", "17", "16")),
    "a-letter-that-is-none": ("pattern", "AEMX", ("pattern", "x")),
}


@contract("ARGV-08b", asks="launch", cases=WRONG, source="naming")
def an_override_of_another_type_is_refused(stack: Stack, key: str, value: str, names: tuple[str, ...]) -> None:
    """A stack refuses an override whose value has the wrong type or breaks a relation; it names key and value."""
    refused = refusal_of_launch(stack, NAM56R, replace(AUTHOR, overrides={key: value}), f"the override {key}={value}")
    missing = [name for name in names if name not in str(refused).lower()]
    assert not missing, f"the refusal of {key}={value} does not name {missing[0]}: {refused}"


IDLE = {
    "feature-is-off": (NATIVE, "mtp.depth", "2"),
    "the-mode-says-otherwise": (NATIVE, "degrees.tp", "4"),
    "the-lane-gives-degrees": (NATIVE_PP2, "degrees.pp", "4"),
}


@contract("ARGV-08c", asks="launch", cases=IDLE, source="F15")
def an_override_without_effect_is_refused(stack: Stack, lane: Lane, key: str, value: str) -> None:
    """A stack refuses an override that the mode or lane would replace, or whose feature is off, instead of dropping it.

    53 recipes of one repository carried pipeline settings that a sanity check discarded; none of them ever ran.
    """
    refused = refusal_of_launch(stack, NAM56R, replace(lane, overrides={key: value}), f"the override {key}={value}")
    assert key.partition(".")[0] in str(refused), f"the refusal does not name {key}: {refused}"


STORED = replace(NAM56R, data=Data(path="/data/text"), checkpoint=Checkpoint(save="/ckpt/run", load="/ckpt/before"))
NOTHING = {f"{key.rpartition('.')[2]}-{word}": (key, word, path) for word in ("null", "None") for key, path in (
    ("data.path", "/data/text"), ("checkpoint.save", "/ckpt/run"), ("checkpoint.load", "/ckpt/before"))}  # fmt: skip


@contract("ARGV-08d", asks="launch", cases=NOTHING, source="torchtune #1941")
def none_is_nothing_and_not_a_name(stack: Stack, key: str, word: str, path: str) -> None:
    """An override of an optional path with `null` or `None` unsets the path or is refused by name. It is never a path
    called "None".

    A shell passes text: "None" is true, so a run that should save nothing saves into a folder of that name.
    """
    lane = replace(NATIVE, overrides={key: word})
    for_megatron(stack, STORED, NATIVE)
    refused: Refused | None = None
    argv: tuple[str, ...] = ()
    try:
        argv = stack.launch(STORED, lane).argv
    except Refused as said_no:
        refused = said_no
    if refused is not None:
        assert key.partition(".")[0] in str(refused), f"the refusal of {key}={word} does not name it: {refused}"
        return
    taken = [other for other in argv if other.rpartition("=")[2].strip("./").lower() in ("none", "null")]
    assert not taken, f"the override {key}={word} reaches the launch as the text {taken[0]!r}"
    assert path not in argv, f"the override {key}={word} has no effect: {path} is still in the launch"


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
