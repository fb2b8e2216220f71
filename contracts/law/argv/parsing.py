"""What a launcher reads in an argv, and what a trainer reads back from its own.

Checks with a literal argv apply to launchers that know Megatron-LM's flags and hybrid patterns. A launcher that cannot
parse the legal argv from which they start has other flags, and declines.
"""

import re
from dataclasses import fields, replace

from contracts.contract import contract
from contracts.law._support.answers import refusal_of
from contracts.law._support.launches import (
    AUTHOR,
    AUTHOR_CP2,
    AUTHOR_PP4,
    FP8,
    FSDP2,
    FSDP2_AUTHOR,
    FSDP2_PP2,
    MLA_MTP,
    NAM52_MHC,
    NAM52_SPARSE,
    NAM56R,
    NATIVE,
    NATIVE_PP2,
    NO_MOE,
    TWO_NODES,
    for_megatron,
    rank_environment,
    with_inherited,
)
from contracts.spec import (
    Batch,
    Checkpoint,
    Data,
    Degrees,
    Lane,
    Launch,
    Moe,
    NotOffered,
    Optim,
    Reading,
    Recipe,
    Stack,
    chosen,
)

STORED = replace(NAM56R, data=Data(path="/data/two words"), checkpoint=Checkpoint(save="/ckpt/two words", interval=250),
                 optim=Optim(schedule="linear", end_weight_decay=0.3), activation="swiglu",
                 moe=Moe(score="sigmoid", selection_bias=True, aux_loss=0.0, z_loss=1e-3))  # fmt: skip
BIASED = replace(NAM56R, moe=Moe(shared_hidden=0), biases=("attention", "experts", "router"))
LAUNCHES = {
    "native": (NAM56R, NATIVE),
    "author": (NAM56R, AUTHOR),
    "native-pp2-mla-mtp2": (MLA_MTP, NATIVE_PP2),
    "author-pp4-fp8": (FP8, AUTHOR_PP4),
    "author-cp2": (NAM56R, AUTHOR_CP2),
    "two-nodes": (NAM56R, TWO_NODES),
    "no-moe-shell-exports-8": (NO_MOE, with_inherited(NATIVE, CUDA_DEVICE_MAX_CONNECTIONS="8")),
    "author-sparse": (NAM52_SPARSE, AUTHOR),
    "author-mhc": (NAM52_MHC, AUTHOR),
    "native-stored-sigmoid": (STORED, NATIVE),
    "native-one-expert": (replace(NAM56R, moe=Moe(top_k=1)), NATIVE),
    "native-biased": (BIASED, NATIVE),
}


@contract("ARGV-02", asks=("launch", "read_argv"), cases=LAUNCHES, source="naming; Megatron-LM's own parser")
def the_launcher_knows_every_emitted_flag(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """Every emitted flag exists in the target launcher, at the version the launch was written for, and has a value of
    the flag's type. The real parser accepts the whole argv in the launch's environment.

    Some flags that circulate in recipes were never accepted by any version (--multi-token-prediction, --use-fsdp2), and
    a rotary base of "10000.0" is not an integer.
    """
    launch, reading = _read(stack, recipe, lane)
    stage = reading.stage
    # A table of flags knows names and types, but does not validate.
    enough = stage == "accepted" or (reading.provenance == "substituted" and stage != "parse")
    assert enough, f"{launch.launcher} {launch.launcher_version} stops at {stage}: {reading.message}"


UNCHANGED = {
    name: LAUNCHES[name]
    for name in ("native", "native-pp2-mla-mtp2", "author-pp4-fp8", "native-stored-sigmoid", "native-biased")
}


@contract("ARGV-03a", asks=("launch", "read_argv"), cases=UNCHANGED, source="naming; F15")
def the_launcher_takes_every_emitted_flag(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """The launcher drops or overrides no emitted flag: each one shows in the final configuration.

    Megatron takes the depth from the hybrid pattern, and the last of a repeated flag. An argv that disagrees reads like
    one model and trains another.
    """
    launch, reading = _read(stack, recipe, lane)
    if reading.provenance == "substituted":
        raise NotOffered("a table of flags does not know which of them take effect", "adapter")
    assert reading.stage == "accepted", f"{launch.launcher} stops at {reading.stage}: {reading.message}"
    dropped = [f"{flag}: {why}" for flag, why in reading.dropped.items()]
    assert not dropped, f"{launch.launcher} drops {'; '.join(dropped)}"


BASE = (
    "--hidden-size 128 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 "
    "--train-iters 10 --lr 1e-4 --position-embedding-type rope --disable-bias-linear --no-rope-fusion "
)
DENSE = BASE + "--hybrid-layer-pattern M*M- "
EXPERTS = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 64 "
SPARSE = BASE + "--hybrid-layer-pattern M*ME " + EXPERTS
LEGAL = {
    "dense": (DENSE, 8),
    # EP is carved out of the ranks that TP already counts: tp · ep is twice this world.
    "experts-tp2-sp-ep4-on-4": (
        SPARSE + "--tensor-model-parallel-size 2 --sequence-parallel "
        "--expert-model-parallel-size 4 --expert-tensor-parallel-size 1",
        4,
    ),
    "query-groups-bf16-pp2": (BASE + "--hybrid-layer-pattern M*|M- --pipeline-model-parallel-size 2 --bf16 "
                              "--group-query-attention --num-query-groups 2", 24),
    "two-heads-of-prediction": (BASE + "--hybrid-layer-pattern M*M-/M-/M-", 8),
}  # fmt: skip
AMBIGUOUS = {  # argv, world, what the refusal may be about: one of these must be named
    "flag-given-twice": (DENSE + "--tensor-model-parallel-size 1 --tensor-model-parallel-size 2", 8, "tensor_model"),
    "query-groups-without-their-switch": (DENSE + "--num-query-groups 2", 8, "query"),
    "sequence-parallel-at-tp1": (DENSE + "--sequence-parallel", 8, "sequence_parallel"),
    "layers-against-the-pattern": (DENSE + "--num-layers 8", 8, "layers"),
    "mtp-layers-against-the-pattern": (BASE + "--hybrid-layer-pattern M*M-/M- --mtp-num-layers 3", 8, "mtp"),
    "mtp-layers-without-a-head": (DENSE + "--mtp-num-layers 1", 8, "mtp"),
    "topk-above-the-experts": (SPARSE.replace("topk 2", "topk 8"), 8, "topk"),
    "letter-e-without-experts": (BASE + "--hybrid-layer-pattern M*ME", 8, "expert"),
    "experts-without-letter-e": (DENSE + EXPERTS, 8, "expert"),
    "experts-beyond-the-world": (SPARSE.replace("experts 4", "experts 16") + "--expert-model-parallel-size 16", 8,
                                 "expert"),
    "two-precisions": (DENSE + "--bf16 --fp16", 8, "fp16"),
    "mamba-heads-over-tp4": (BASE + "--hybrid-layer-pattern MM --mamba-num-heads 6 --tensor-model-parallel-size 4",
                             8, "mamba"),
    "empty-pipeline-stage": (BASE + "--hybrid-layer-pattern M*||M-|M --pipeline-model-parallel-size 4", 8, "pattern"),
    # Every known launcher refuses these today; they guard against regressions.
    "flag-that-never-was": (DENSE + "--multi-token-prediction", 8, "multi_token"),
    "flag-cut-short": (DENSE + "--tensor-model-parallel 2", 8, "tensor_model"),
    "rotary-base-as-a-fraction": (DENSE + "--rotary-base 10000.0", 8, "rotary_base"),
    "dense-and-latent-attention": (DENSE + "--multi-latent-attention --group-query-attention --num-query-groups 2", 8,
                                   "query"),
}  # fmt: skip


_OVERRIDDEN = ("sequence-parallel-at-tp1", "layers-against-the-pattern", "mtp-layers-against-the-pattern")
_RECORDED = frozenset(AMBIGUOUS[name] for name in _OVERRIDDEN)
"""Argvs in which one flag overrides another."""


@contract(
    "ARGV-03b", asks="read_argv", cases=AMBIGUOUS, source="naming; Megatron-LM's validation, as executed",
    conventions=("repeated-flag", "overridden-flag"),
)  # fmt: skip
def a_launcher_refuses_what_it_would_not_run(stack: Stack, words: str, world: int, about: str) -> None:
    """A launcher refuses an argv that it cannot run as written, and names the cause. It does not drop or override a
    flag, or fail later.

    Megatron-Core 0.19.2 accepts twelve of these argvs and refuses one without an explanation. Query groups without
    their switch train one group per head, experts without an E train a dense model, and top-k 8 of 4 experts dies in
    the first forward pass. A launcher may declare that the last of a repeated flag counts, or that it warns of a flag
    that another one overrides.
    """
    _needs_megatrons_flags(stack)
    reading = stack.read_argv(_words(words), QUEUE, world)
    if words == AMBIGUOUS["flag-given-twice"][0] and chosen(stack, "repeated-flag") == "last-wins":
        ends = reading.values.get("tensor_model_parallel_size", reading.message)
        assert ends == "2", f"--tensor-model-parallel-size 1 and then 2 ends as {ends!r}, expected the last"
        return
    if (words, world, about) in _RECORDED and chosen(stack, "overridden-flag") == "warned":
        assert reading.stage == "accepted", f"refused at {reading.stage}, expected a warning about {about}"
        warned = [each for each in reading.warned if about in re.sub("[- ]", "_", each.lower())]
        assert warned, f"no warning names {about}; rank 0 is warned of {list(reading.warned) or 'nothing'}"
        return
    dropped = "; ".join(f"{flag}: {why}" for flag, why in reading.dropped.items()) or "nothing is reported as dropped"
    assert reading.stage != "accepted", f"the argv is accepted, expected a refusal about {about}; {dropped}"
    named = about in reading.message.lower().replace("-", "_")
    assert named, f"the refusal at {reading.stage} says nothing about {about}: {reading.message!r}"


@contract("ARGV-03c", asks="read_argv", cases=LEGAL, source="Megatron-LM's validation, as executed")
def a_launcher_accepts_what_it_can_run(stack: Stack, words: str, world: int) -> None:
    """A launcher accepts a legal argv and drops none of its flags."""
    _needs_megatrons_flags(stack)
    reading = stack.read_argv(_words(words), QUEUE, world)
    assert reading.stage == "accepted", f"a legal argv is refused at {reading.stage}: {reading.message}"
    assert not reading.dropped, f"a legal flag is dropped: {dict(reading.dropped)}"


OWN = {  # recipe, lane, the recipe that must be read back
    "native-tp2-ep2-etp0": (NAM56R, FSDP2, NAM56R),
    "author-ep4-etp1": (FP8, FSDP2_AUTHOR, FP8),
    "native-pp2": (MLA_MTP, FSDP2_PP2, MLA_MTP),
    "native-etp2": (NAM56R, replace(FSDP2, degrees=Degrees(tp=2, sp=True, ep=2, etp=2)), NAM56R),
    "sparse-ranks": (NAM52_SPARSE, FSDP2_AUTHOR, NAM52_SPARSE),
    "moe-off": (NO_MOE, FSDP2_PP2, NO_MOE),
    "awkward-paths": (STORED, FSDP2, STORED),
    "overrides": (
        NAM56R,
        replace(FSDP2, run="--a b", compile="regional", overrides={"optim.lr": "7e-4", "batch.micro": "2"}),
        replace(NAM56R, optim=Optim(lr=7e-4), batch=Batch(micro=2)),
    ),
}


@contract("ARGV-02a", asks=("launch", "read_back"), cases=OWN, source="naming; F15")
def a_trainer_reads_back_what_was_launched(stack: Stack, recipe: Recipe, lane: Lane, expected: Recipe) -> None:
    """The stack's own trainer reads from its argv the same recipe, mode and degrees that were launched, field by field.

    "EP 2 with expert TP 0, which follows TP" was once read as EP off.
    """
    launch = stack.launch(recipe, lane)
    if "megatron" in launch.launcher.lower():
        raise NotOffered(f"launches for {launch.launcher}", "case")
    read = stack.read_back(launch.argv)
    for field in fields(Recipe):
        arrived, left = getattr(read.recipe, field.name), getattr(expected, field.name)
        assert arrived == left, f"{field.name} is read back as {arrived!r}, but {left!r} was launched"
    assert read.mode == lane.mode, f"the mode is read back as {read.mode}, but {lane.mode} was launched"
    for axis in fields(Degrees):
        arrived, left = getattr(read.degrees, axis.name), getattr(launch.degrees, axis.name)
        assert arrived == left, f"{axis.name} is read back as {arrived}, but {left} was launched"


UNKNOWN = {  # words behind the argv, and what of the argv another version calls otherwise
    "a-flag-of-another-stack": (("--bogus", "7"), ""),
    "a-switch-of-another-stack": (("--bogus",), ""),
    "with-an-equals-sign": (("--bogus=7",), ""),
    "a-renamed-flag": ((), "-of-old"),
    "a-shortened-flag": ((), "…"),
}


@contract("ARGV-02b", asks=("launch", "read_back"), cases=UNKNOWN, source="ARG-07; F15")
def a_trainer_refuses_a_flag_that_it_does_not_know(stack: Stack, more: tuple[str, ...], suffix: str) -> None:
    """The stack's own trainer refuses a flag that it does not know, by its name, and does not train without it.

    A parser that keeps what it knows and drops the rest (`parse_known_args`) trains with the default of a flag that a
    new version has renamed. One that completes what was cut off (`allow_abbrev`) takes it for another flag.
    """
    launch = stack.launch(NAM56R, FSDP2)
    if "megatron" in launch.launcher.lower():
        raise NotOffered(f"launches for {launch.launcher}", "case")
    last = max(at for at, word in enumerate(launch.argv) if word.startswith("--"))
    argv = [*launch.argv, *more]
    argv[last] = argv[last][:-2] if suffix == "…" else argv[last] + suffix
    flag = (more[0] if more else argv[last]).partition("=")[0]
    words = str(refusal_of(stack.read_back, tuple(argv)))
    assert flag in words, f"the refusal does not name {flag}: {words}"


TWICE = {
    "a-flag": ("--pp", "", " "),
    "a-flag-with-an-equals-sign": ("--pp", "", "="),
    "an-override": ("--set", "seed=", " "),
    "an-override-with-an-equals-sign": ("--set", "seed=", "="),
}


@contract("ARGV-02c", asks=("launch", "read_back"), cases=TWICE, source="ARG-07; F15", conventions=("repeated-flag",))
def a_trainer_reads_no_word_twice(stack: Stack, flag: str, begins: str, joint: str) -> None:
    """If an argv repeats a flag at its end with another number, as `--flag 2` or `--flag=2`, the stack's own trainer
    refuses it and names the flag, or uses the last number if the stack declares that.

    A launch script appends what a user gave to what it knows. Whoever reads the first of the two trains as if nothing
    had been given.
    """
    launch = stack.launch(NAM56R, replace(FSDP2, overrides={"seed": "7"}))
    argv = launch.argv
    at = next((at for at in range(1, len(argv)) if argv[at - 1] == flag and argv[at].startswith(begins)), None)
    if at is None:
        raise NotOffered(f"{launch.launcher} has no {flag} {begins}", "case")
    before = argv[at]
    after = f"{before[:-1]}{int(before[-1]) + 1}"
    again = (*argv, *f"{flag}{joint}{after}".split())
    if chosen(stack, "repeated-flag") == "last-wins":
        once = stack.read_back((*argv[:at], after, *argv[at + 1 :]))
        assert stack.read_back(again) == once, f"{flag} {before} and then {flag}{joint}{after}: not the last"
        return
    words = str(refusal_of(stack.read_back, again))
    assert flag in words, f"{flag} {before} and then {flag}{joint}{after}: the refusal does not name {flag}: {words}"


QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # Megatron requires it under TP before it checks anything else


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _needs_megatrons_flags(stack: Stack) -> None:
    """Leave a literal argv aside when the launcher does not parse even the plainest of them.

    Raises:
        NotOffered: when it reads other flags, or only a table of them.
    """
    reading = stack.read_argv(_words(DENSE), QUEUE, 8)
    if reading.stage == "parse":
        raise NotOffered(f"does not read Megatron-LM's flags: {reading.message}", "case")
    if reading.provenance == "substituted":
        raise NotOffered("a table of flags does not validate", "adapter")


def _read(stack: Stack, recipe: Recipe, lane: Lane) -> tuple[Launch, Reading]:
    """The launch, and what its launcher makes of it.

    Raises:
        NotOffered: when the launch is for another launcher, or the reader is another version of it.
    """
    launch = for_megatron(stack, recipe, lane)
    reading = stack.read_argv(launch.argv, rank_environment(launch, lane), launch.world)
    if reading.version and reading.version != launch.launcher_version:
        raise NotOffered(
            f"written for {launch.launcher} {launch.launcher_version}, the reader is {reading.version}", "case"
        )
    return launch, reading
