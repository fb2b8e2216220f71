"""The command of a launch: which words it has, what changes them, and what must not.

`checks/argv/parsing.py` judges whether the launcher accepts them. Checks that name flags mean Megatron-LM's flags, and
decline a launch for another launcher.
"""

import math
import shlex
from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.answers import names_field
from contracts.law._support.launches import (
    AUTHOR,
    AUTHOR_PP4,
    FP8,
    FSDP2,
    FSDP2_AUTHOR,
    FSDP2_TWO_NODES,
    MLA_MTP,
    NAM52_MHC,
    NAM52_SPARSE,
    NAM56R,
    NATIVE,
    NATIVE_PP2,
    NO_MOE,
    TWO_NODES,
    flag_occurrences,
    flag_texts,
    for_megatron,
    refusal_of_launch,
)
from contracts.spec import (
    Batch,
    Checkpoint,
    Data,
    Degrees,
    Dsa,
    Fp8,
    Lane,
    Mamba,
    Mla,
    Moe,
    Mtp,
    NotOffered,
    Optim,
    Recipe,
    Refused,
    Stack,
)

EVERYWHERE = {
    "megatron-native": (NAM56R, NATIVE),
    "megatron-author-fp8": (FP8, AUTHOR),
    "megatron-author-mhc": (NAM52_MHC, AUTHOR),
    "megatron-two-nodes": (MLA_MTP, TWO_NODES),
    "fsdp2-tp2-ep2": (NAM56R, FSDP2),
    "fsdp2-two-nodes": (NAM56R, FSDP2_TWO_NODES),
}
SHELLS: tuple[Mapping[str, str], ...] = (
    {"HOME": "/root", "USER": "root", "LANG": "C", "PATH": "/usr/bin", "HOSTNAME": "box-a"},
    {"HOSTNAME": "box-b", "PATH": "/opt/bin:/usr/bin", "LANG": "de_DE.UTF-8", "USER": "ops", "HOME": "/home/ops"},
    {"PWD": "/tmp/elsewhere", "TMPDIR": "/scratch", "COLUMNS": "7"},
)


@contract("ARGV-01", asks="launch", cases=EVERYWHERE, source="naming")
def the_words_are_the_same_on_every_machine(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """A recipe on a lane gives the same command and the same environment on every machine, for every user and at any
    time.

    Two receipts compare only if their launches do. A home directory, a host name or an unordered set in the command
    makes every comparison a difference.
    """
    first = stack.launch(recipe, lane)
    for shell in ({}, *SHELLS):
        again = stack.launch(recipe, replace(lane, inherited=shell))
        for index, (one, two) in enumerate(zip(first.command, again.command, strict=False)):
            assert one == two, f"word {index} of the command is {one!r}, and {two!r} in another shell"
        longer = len(again.command) - len(first.command)
        assert not longer, f"the command has {len(first.command)} words, and {longer:+d} in another shell"
        differ = [name for name in {**first.env, **again.env} if first.env.get(name) != again.env.get(name)]
        assert not differ, f"{differ[0]} is {first.env.get(differ[0])!r}, and {again.env.get(differ[0])!r} elsewhere"
        assert set(first.unset) == set(again.unset), f"{first.unset} are unset, but {again.unset} in another shell"


# AEMEAEMEAEMR four times, and AEME, in Megatron's letters: A is *, R is an M.
NAM56R_PATTERN = "*EME*EME*EMM*EME*EME*EMM*EME*EME*EMM*EME*EME*EMM*EME"
ESSENTIALS = {
    "--hidden-size": "3584", "--ffn-hidden-size": "18944", "--num-attention-heads": "56", "--num-query-groups": "8",
    "--seq-length": "4096", "--rotary-base": "500000", "--num-experts": "16", "--moe-router-topk": "4",
    "--moe-ffn-hidden-size": "896", "--moe-shared-expert-intermediate-size": "1024",
    "--hybrid-layer-pattern": NAM56R_PATTERN, "--position-embedding-type": "rope",
    "--group-query-attention": "", "--qk-layernorm": "", "--untie-embeddings-and-output-weights": "",
    "--squared-relu": "", "--bf16": "",
}  # fmt: skip


@contract("ARGV-01a", asks="launch", cases={"nemo-native": NATIVE, "author-dp": AUTHOR}, source="naming")
def the_argv_of_nam56r_states_its_sizes(stack: Stack, lane: Lane) -> None:
    """The argv of NAM56R states its pattern, sizes, experts and runtime features explicitly, the same in both modes.

    A launcher default in place of a stated size is another model under the same name: Megatron's default rotary base is
    10000, and its default expert hidden size is the dense one.
    """
    words = flag_texts(for_megatron(stack, NAM56R, lane).argv)
    for flag, expected in ESSENTIALS.items():
        assert flag in words, f"{flag} is missing, expected {expected or 'the switch'}"
        assert words[flag] == expected, f"{flag} is {words[flag]!r}, expected {expected!r}"


DP = {  # recipe, lane → the data-parallel size of 8 GPUs, whatever the experts have of it
    "dp4-beside-tp2": (NAM56R, NATIVE, 4),
    "dp2-beside-tp2-pp2": (NAM56R, NATIVE_PP2, 2),
    "dp2-beside-pp4": (NAM56R, AUTHOR_PP4, 2),
    "dp1": (NO_MOE, replace(AUTHOR, degrees=Degrees(pp=4, cp=2)), 1),
    "dp8-of-two-nodes": (NAM56R, TWO_NODES, 8),
}


@contract("ARGV-01b", asks="launch", cases=DP, source="Megatron-Bridge#4656")
def the_switches_that_follow_from_the_degrees(stack: Stack, recipe: Recipe, lane: Lane, dp: int) -> None:
    """The parallel degrees in the argv leave the expected number of data-parallel ranks, and the argv asks for the
    distributed optimizer exactly if that number exceeds 1.

    A switch whose value arrives as a positional argument is bound to another parameter when a signature changes. The
    run starts, and each rank keeps the whole optimizer state.
    """
    words = flag_texts(for_megatron(stack, recipe, lane).argv)
    names = ("tensor-model", "pipeline-model", "context")
    model = math.prod(int(words.get(f"--{name}-parallel-size", "1")) for name in names)
    ranks = lane.nodes * lane.gpus
    assert ranks == model * dp, f"the argv leaves {ranks / model:g} data-parallel ranks of {ranks}, expected {dp}"
    found = "--use-distributed-optimizer" in words
    assert found == (dp > 1), f"--use-distributed-optimizer is {'present' if found else 'missing'} at dp {dp}"


DISTINCT = Recipe(
    name="distinct", family="nam56r", pattern="AEMEAEMEAEMR", depth=24, hidden=1024, ffn_hidden=1536, heads=16,
    kv_groups=4, seq_length=2048, vocab=50_304, rope_theta=20_000, norm_eps=3e-6, seed=4321,
    mamba=Mamba(heads=24, head_dim=32, state=96, groups=6),
    moe=Moe(
        experts=48, top_k=3, expert_hidden=384, shared_hidden=640, score="sigmoid", selection_bias=True, bias_rate=2e-3,
        aux_loss=3e-4, z_loss=5e-4, route_scale=2.5, capacity_factor=1.25,
    ),
    mtp=Mtp(depth=2, loss_weight=0.35),
    optim=Optim(lr=7e-4, min_lr=9e-6, warmup=30, steps=700, weight_decay=0.07, beta1=0.87, beta2=0.93, clip=0.6),
    batch=Batch(micro=8, total=192), checkpoint=Checkpoint(save="/ckpt/a", interval=50),
)  # fmt: skip
"""No two of its numbers are equal: one after another's flag shows."""
LATENT = replace(
    DISTINCT, mla=Mla(q_lora=160, kv_lora=224, qk_head=80, qk_rope=48, v_head=112),
    dsa=Dsa(a_ranks=(0, 1, 2, 3, 4, 5), index_heads=5, index_head_dim=88, top_k=208),
)  # fmt: skip
NUMBERS: dict[str, float] = {
    "--hidden-size": 1024, "--ffn-hidden-size": 1536, "--num-attention-heads": 16, "--seq-length": 2048,
    "--vocab-size": 50_304, "--rotary-base": 20_000, "--norm-epsilon": 3e-6, "--seed": 4321,
    "--mamba-num-heads": 24, "--mamba-head-dim": 32, "--mamba-state-dim": 96, "--mamba-num-groups": 6,
    "--num-experts": 48, "--moe-router-topk": 3, "--moe-ffn-hidden-size": 384,
    "--moe-shared-expert-intermediate-size": 640, "--moe-router-bias-update-rate": 2e-3, "--moe-aux-loss-coeff": 3e-4,
    "--moe-z-loss-coeff": 5e-4, "--moe-router-topk-scaling-factor": 2.5, "--moe-expert-capacity-factor": 1.25,
    "--mtp-loss-scaling-factor": 0.35, "--mtp-num-layers": 2,
    "--lr": 7e-4, "--min-lr": 9e-6, "--lr-warmup-iters": 30, "--lr-warmup-samples": 30 * 192, "--train-iters": 700,
    "--train-samples": 700 * 192, "--lr-decay-iters": 700, "--lr-decay-samples": 700 * 192, "--weight-decay": 0.07,
    "--adam-beta1": 0.87, "--adam-beta2": 0.93, "--clip-grad": 0.6, "--micro-batch-size": 8,
    "--global-batch-size": 192, "--save-interval": 50,
}  # fmt: skip
"""Flag → the number of the recipe that is for it, by hand."""
STATED: dict[str, tuple[Recipe, Lane, dict[str, float]]] = {
    "grouped": (DISTINCT, NATIVE, NUMBERS | {"--num-query-groups": 4}),
    "latent": (LATENT, NATIVE, NUMBERS | {
        "--q-lora-rank": 160, "--kv-lora-rank": 224, "--qk-head-dim": 80, "--qk-pos-emb-head-dim": 48,
        "--v-head-dim": 112, "--dsa-indexer-n-heads": 5, "--dsa-indexer-head-dim": 88, "--dsa-indexer-topk": 208,
    }),
    "author": (DISTINCT, AUTHOR, NUMBERS),
    "groups": (
        replace(DISTINCT, moe=replace(DISTINCT.moe or Moe(), top_k=4, groups=(12, 2))), NATIVE,
        {"--moe-router-num-groups": 12, "--moe-router-group-topk": 2, "--moe-router-topk": 4},
    ),
    "rising-decay": (
        replace(DISTINCT, optim=replace(DISTINCT.optim, end_weight_decay=0.11)), NATIVE,
        {"--start-weight-decay": 0.07, "--end-weight-decay": 0.11},
    ),
    "zeros": (
        replace(DISTINCT, optim=replace(DISTINCT.optim, min_lr=0.0, warmup=0, weight_decay=0.0, clip=0.0)), NATIVE,
        {"--clip-grad": 0, "--weight-decay": 0, "--hidden-dropout": 0, "--attention-dropout": 0, "--min-lr": 0},
    ),
}  # fmt: skip
UNSAID = {"--clip-grad": "1.0", "--weight-decay": "0.01", "--hidden-dropout": "0.1", "--attention-dropout": "0.1"}
"""What Megatron-LM takes where the argv does not say it."""


@contract("ARGV-01c", asks="launch", cases=STATED, source="SkyRL #1646; Megatron-Bridge #1135; F15")
def each_number_stands_behind_its_flag(stack: Stack, recipe: Recipe, lane: Lane, numbers: Mapping[str, float]) -> None:
    """Each flag of the argv with a number has the number of its own field of the recipe, in the unit of the flag. It
    leaves a flag out only if the launcher's own default is that number.

    Two ranks of latents, two betas, two coefficients are as easily exchanged as they are equal in every preset. The
    launcher accepts either, and a change of the recipe changes the argv, as it should.
    """
    said = flag_texts(for_megatron(stack, recipe, lane).argv)
    if not said.keys() & numbers.keys():
        raise NotOffered(f"the argv has none of {', '.join(numbers)}", "case")
    words = {**UNSAID, **said}
    for flag in (flag for flag in numbers if flag in words):
        got, want = words[flag], numbers[flag]
        assert math.isclose(float(got), want, rel_tol=1e-9), f"{flag} is {got}, expected {want:.10g}"


MOE = ("--num-experts", "--moe-", "--expert-")
MLA = ("--multi-latent-attention", "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--v-head-dim")
MTP, DSA, IN_FP8, GQA = ("--mtp-",), ("--dsa-",), ("--fp8-",), ("--group-query-attention", "--num-query-groups")
DISABLED = {  # recipe, lane, prefixes of the flags of features that are off
    "native-moe-alone": (NAM56R, NATIVE, MLA + MTP + DSA + IN_FP8),
    "author-fp8": (FP8, AUTHOR_PP4, MLA + MTP + DSA),
    "mla-mtp-pp2": (MLA_MTP, NATIVE_PP2, GQA + DSA + IN_FP8),
    "no-moe": (NO_MOE, NATIVE, MOE + MLA + MTP),
    "sparse": (NAM52_SPARSE, AUTHOR, GQA + MTP + IN_FP8),
    "data-and-swiglu": (replace(NAM56R, activation="swiglu", data=Data(path="/data/a")), AUTHOR, ("--squared",)),
}
OPPOSED = (
    ("--bf16", "--fp16"),
    ("--squared-relu", "--swiglu"),
    ("--multi-latent-attention", "--group-query-attention"),
    ("--hybrid-layer-pattern", "--hybrid-override-pattern"),
    ("--mock-data", "--data-path"),
    ("--use-distributed-optimizer", "--use-torch-fsdp2"),
)


@contract("ARGV-03", asks="launch", cases=DISABLED, source="naming; Megatron-LM's validation")
def no_flag_stands_twice_or_against_another(stack: Stack, recipe: Recipe, lane: Lane, off: tuple[str, ...]) -> None:
    """The argv contains no flag twice, no two contradicting flags, and no flag of a feature that is off.

    Most parsers silently take the last of a repeated flag. A recipe that appends to a base recipe's flag instead of
    replacing it trains something other than its log says.
    """
    flags = [flag for flag, _ in flag_occurrences(for_megatron(stack, recipe, lane).argv)]
    twice = sorted({flag for flag in flags if flags.count(flag) > 1})
    assert not twice, f"{twice[0]} appears {flags.count(twice[0])} times"
    for one, other in OPPOSED:
        assert not {one, other} <= set(flags), f"{one} and {other} contradict each other"
    idle = [flag for flag in flags if flag.startswith(off)]
    assert not idle, f"{idle[0]} belongs to a feature that is off in {recipe.name}"


EXPERT_BEARING = {
    "native": (NAM56R, NATIVE, True),
    "author-pp4": (FP8, AUTHOR_PP4, True),
    "without-experts": (NO_MOE, replace(NATIVE, degrees=Degrees(pp=2, tp=2, sp=True)), False),
    "no-letter-e": (replace(NO_MOE, pattern="AMMAR"), AUTHOR, False),
}
EXPERT_FLAGS = ("--num-experts", "--moe-router-topk", "--moe-ffn-hidden-size")


@contract("ARGV-04", asks="launch", cases=EXPERT_BEARING, source="naming")
def expert_letters_and_expert_arguments_go_together(stack: Stack, recipe: Recipe, lane: Lane, bearing: bool) -> None:
    """The argv contains the expert flags exactly when the emitted pattern contains an E.

    Megatron accepts each without the other. An E without experts dies when the model is built; experts without an E
    train a dense model under the name of a sparse one.
    """
    words = flag_texts(for_megatron(stack, recipe, lane).argv)
    letters = "E" in words.get("--hybrid-layer-pattern", words.get("--hybrid-override-pattern", ""))
    assert letters == bearing, (
        f"the pattern {'has an' if letters else 'has no'} E, expected {'one' if bearing else 'none'}"
    )
    for flag in EXPERT_FLAGS:
        assert (flag in words) == bearing, (
            f"{flag} is {'present' if flag in words else 'missing'}, E is {'present' if bearing else 'missing'}"
        )


NO_PLACE = {"attention-and-mamba": replace(NAM56R, pattern="AMM"), "recurrent": replace(NAM56R, pattern="AMR")}


@contract("ARGV-04a", asks="launch", cases=NO_PLACE, source="naming")
def experts_without_a_block_leave_no_argument(stack: Stack, recipe: Recipe) -> None:
    """A stack refuses a recipe with experts and no E block, or launches it without any expert flag."""
    try:
        launch = for_megatron(stack, recipe, NATIVE)
    except Refused:
        return
    idle = [flag for flag in flag_texts(launch.argv) if flag.startswith(MOE)]
    assert not idle, f"{idle[0]} is emitted, but no block of {recipe.pattern} is an E"


SURFACES = {  # recipe, lane → tp, sequence parallelism
    "native": (NAM56R, NATIVE, 2, True),
    "native-pp2": (MLA_MTP, NATIVE_PP2, 2, True),
    "native-two-nodes": (NO_MOE, TWO_NODES, 2, True),
    "author": (NAM56R, AUTHOR, 1, False),
    "author-pp4": (NAM52_MHC, AUTHOR_PP4, 1, False),
    "fsdp2-native": (NAM56R, FSDP2, 2, True),
    "fsdp2-author": (NAM56R, FSDP2_AUTHOR, 1, False),
    # The recipe asks for TP 4 and the mode for TP 1: the mode decides this axis.
    "recipe-asks-for-more": (replace(NAM56R, degrees=Degrees(tp=4, sp=True, ep=2, etp=1)), AUTHOR, 1, False),
}


@contract("ARGV-05", asks="launch", cases=SURFACES, source="naming")
def the_mode_decides_the_parallel_surface(stack: Stack, recipe: Recipe, lane: Lane, tp: int, sp: bool) -> None:
    """nemo_native runs TP 2 with sequence parallelism and author_dp runs TP 1 without it, in the resolved degrees and
    in the argv.

    The two lanes differ in who owns the mixers. One nickname for both makes their receipts look comparable.
    """
    launch = stack.launch(recipe, lane)
    degrees = launch.degrees
    assert degrees.tp == tp, f"{lane.mode} runs tp {degrees.tp}, expected {tp}"
    assert degrees.sp == sp, f"{lane.mode} runs sequence parallelism {degrees.sp}, expected {sp}"
    if "megatron" in launch.launcher.lower():
        words = flag_texts(launch.argv)
        emitted = words.get("--tensor-model-parallel-size", "1")
        assert emitted == str(tp), f"--tensor-model-parallel-size is {emitted}, expected {tp}"
        switch = "--sequence-parallel" in words
        assert switch == sp, (
            f"--sequence-parallel is {'present' if switch else 'missing'}, {lane.mode} wants it {'on' if sp else 'off'}"
        )


AGAINST = {
    "native-at-tp1": (NAM56R, replace(NATIVE, degrees=Degrees(ep=4, etp=1))),
    "native-without-sp": (NAM56R, replace(FSDP2, degrees=Degrees(tp=2, ep=2))),
    "author-at-tp2": (NAM56R, replace(AUTHOR, degrees=Degrees(tp=2, sp=True))),
    "a-mode-it-does-not-have": (NAM52_MHC, NATIVE),
}


@contract("ARGV-05a", asks="launch", cases=AGAINST, source="naming")
def degrees_against_the_mode_are_refused(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """A stack refuses degrees that contradict the mode, and a mode that the recipe does not have. It names the mode."""
    refused = refusal_of_launch(stack, recipe, lane, f"{lane.mode} with {lane.degrees or recipe.modes}")
    assert lane.mode in str(refused), f"the refusal does not name the mode {lane.mode}: {refused}"


ACROSS = {
    name: (NAM56R, replace(lane, gpus=1, nodes=8, rendezvous=TWO_NODES.rendezvous))
    for name, lane in {"megatron": NATIVE, "fsdp2": replace(FSDP2, degrees=None)}.items()
}


@contract("ARGV-05b", asks="launch", cases=ACROSS, source="hub: TP stays inside a node")
def tensor_parallel_over_nodes_is_refused(stack: Stack, recipe: Recipe, lane: Lane) -> None:
    """A stack refuses a tensor-parallel degree above the GPUs of a node, however many nodes there are, and names it.

    TP sends the activations of each layer several times. Over the network between nodes a step takes many times as
    long, with the right numbers.
    """
    refused = refusal_of_launch(stack, recipe, lane, f"tp 2 on nodes of {lane.gpus} GPU")
    assert names_field(refused, ("tp", "degrees.tp")), f"the refusal does not name tp: {refused}"


AWKWARD = (
    "two words",
    'it\'s "quoted"',
    "$HOME/`id`;&&",
    "line\nbreak\ttab",
    "naïve 模型",
    "--flag=like",
    "back\\slash*?",
)
ONE_WORD = {
    **{f"run-{i}": (NAM56R, replace(TWO_NODES, run=text), text) for i, text in enumerate(AWKWARD)},
    **{f"data-{i}": (replace(NAM56R, data=Data(path=f"/data/{text}")), NATIVE, f"/data/{text}")
       for i, text in enumerate(AWKWARD)},
    "save": (replace(NAM56R, checkpoint=Checkpoint(save="/ck pt/it's")), AUTHOR, "/ck pt/it's"),
    "fsdp2-run": (NAM56R, replace(FSDP2, run="it's $HOME"), "it's $HOME"),
}  # fmt: skip


@contract("ARGV-06", asks="launch", cases=ONE_WORD, source="naming")
def a_value_is_one_word(stack: Stack, recipe: Recipe, lane: Lane, value: str) -> None:
    """A name or path with spaces, quotes, dollar signs or newlines is exactly one word of the command, also after shell
    quoting.

    An argv that was joined with blanks and split again turns the second half of a path into another argument.
    """
    command = stack.launch(recipe, lane).command
    assert shlex.split(shlex.join(command)) == list(command), "the command does not survive quoting"
    words = [word for word in command if word == value or word.endswith(f"={value}")]
    assert len(words) == 1, f"{value!r} is {len(words)} words of the command, expected 1"


def _in(dtype: str, fp8: Fp8 | None = None) -> Recipe:
    return replace(NAM56R, name=f"nam56r_{dtype}{'_fp8' if fp8 else ''}", dtype=dtype, fp8=fp8)  # type: ignore[arg-type]  # a literal below


PRECISIONS = {  # recipe, lane → every precision flag, with its value
    "bf16": (_in("bf16"), NATIVE, {"--bf16": ""}),
    "fp16": (_in("fp16"), AUTHOR, {"--fp16": ""}),
    "fp32": (_in("fp32"), NATIVE, {}),
    "fp8-tensorwise": (FP8, NATIVE_PP2, {"--bf16": "", "--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"}),
    "mxfp8": (_in("bf16", Fp8(format="e4m3", scaling="mxfp8")), AUTHOR,
              {"--bf16": "", "--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"}),
    "fp8-blockwise": (_in("bf16", Fp8(format="e4m3", scaling="blockwise")), AUTHOR_PP4,
                      {"--bf16": "", "--fp8-format": "e4m3", "--fp8-recipe": "blockwise"}),
}  # fmt: skip


@contract("ARGV-07", asks="launch", cases=PRECISIONS, source="naming")
def the_named_precision_is_the_emitted_one(stack: Stack, recipe: Recipe, lane: Lane, expected: dict[str, str]) -> None:
    """The argv asks for exactly the precision that the recipe names, including FP8 format and scaling."""
    words = flag_texts(for_megatron(stack, recipe, lane).argv)
    names = ("--bf16", "--fp16", "--fp8-format", "--fp8-recipe", "--fp4-format")
    emitted = {flag: words[flag] for flag in names if flag in words}
    assert emitted == expected, f"the precision of {recipe.name} is emitted as {emitted}, expected {expected}"


TORCHRUN = {  # lane → the options that must be there, those that must not
    "one-node": (NATIVE, {"--standalone": "", "--nproc-per-node": "8"}, ("--rdzv-endpoint", "--master-addr")),
    "four-gpus": (replace(AUTHOR, gpus=4, degrees=Degrees(ep=2)), {"--standalone": "", "--nproc-per-node": "4"},
                  ("--rdzv-endpoint",)),
    "fsdp2-one-node": (FSDP2, {"--standalone": "", "--nproc-per-node": "8"}, ("--rdzv-endpoint",)),
    "two-nodes": (TWO_NODES, {"--nnodes": "2", "--nproc-per-node": "8", "--rdzv-backend": "c10d",
                              "--rdzv-id": "nam56r-17", "--rdzv-endpoint": "node-0:29500"}, ("--standalone",)),
    "fsdp2-two-nodes": (FSDP2_TWO_NODES, {"--nnodes": "2", "--nproc-per-node": "8", "--rdzv-backend": "c10d",
                                          "--rdzv-id": "nam56r-18", "--rdzv-endpoint": "node-0:29500"},
                        ("--standalone",)),
}  # fmt: skip


@contract("ARGV-09", asks="launch", cases=TORCHRUN, source="playbook")
def one_torchrun_line_starts_every_gpu(
    stack: Stack, lane: Lane, expected: dict[str, str], never: tuple[str, ...]
) -> None:
    """One torchrun command starts one process group over all GPUs of a node: standalone on one node, and with a c10d
    rendezvous, id and endpoint on several.

    A wrapper that starts eight launchers of one process each hides the node from NCCL. `--standalone` on two nodes
    starts two separate runs, and both report success.
    """
    launch = stack.launch(NAM56R, lane)
    assert launch.world == lane.nodes * lane.gpus, f"the world is {launch.world}, expected {lane.nodes * lane.gpus}"
    options = {flag.replace("_", "-"): value for flag, value in flag_texts(launch.torchrun).items()}
    for flag, value in expected.items():
        found = options.get(flag)
        assert found == value, f"torchrun {flag} is {found!r}, expected {value!r}: {shlex.join(launch.torchrun)}"
    for flag in never:
        assert flag not in options, f"torchrun {flag} does not belong on {lane.nodes} nodes"
