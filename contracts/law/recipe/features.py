"""Features of a recipe: each changes only its own flags, none changes the model's dimensions, no field is unused.

Flags are Megatron-Core's. A stack for another launcher uses other flags and is not judged here.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from contracts.contract import contract
from contracts.law._support.answers import megatron_flags, names_field
from contracts.spec import (
    INERT,
    RECORDED_PREFIXES,
    Batch,
    Checkpoint,
    Data,
    Degrees,
    Dsa,
    Fp8,
    Lane,
    Launch,
    Mamba,
    Mhc,
    Mla,
    Mode,
    Moe,
    Mtp,
    Optim,
    ParallelSsm,
    Recipe,
    Refused,
    Regime,
    Stack,
)

PLAIN = Recipe(
    name="plain", family="nam56r", pattern="AEMEAEMEAEMR", depth=28, hidden=768, ffn_hidden=1536, heads=12, kv_groups=4,
    seq_length=512, mamba=Mamba(heads=24, head_dim=64, groups=4),
)  # fmt: skip
EXPERTS = replace(PLAIN, moe=Moe(experts=12, top_k=3, expert_hidden=384, shared_hidden=256))
LATENT = replace(EXPERTS, mla=Mla())

# the recipe without the feature, the feature, the lane's mode
SWITCHED = {
    "moe": (PLAIN, {"moe": EXPERTS.moe}, "nemo_native"),
    "mla": (EXPERTS, {"mla": Mla()}, "nemo_native"),
    "mtp": (EXPERTS, {"mtp": Mtp(depth=2)}, "nemo_native"),
    "dsa-somewhere": (LATENT, {"dsa": Dsa(a_ranks=(1, 2, 4))}, "author_dp"),
    "dsa-everywhere": (LATENT, {"dsa": Dsa(a_ranks=(0, 1, 2, 3, 4, 5, 6))}, "nemo_native"),
    "mhc": (EXPERTS, {"mhc": Mhc(streams=4)}, "author_dp"),
    "parallel-ssm": (EXPERTS, {"parallel_ssm": ParallelSsm(ssm_scale=0.5)}, "author_dp"),
    "fp8": (EXPERTS, {"fp8": Fp8()}, "nemo_native"),
}

OWNS = {  # feature → prefixes of the flags that it may add, change or remove
    "moe": ("--num-experts", "--moe-", "--expert-", "--hybrid-layer-pattern"),
    "mla": ("--multi-latent-attention", "--q-lora-rank", "--kv-lora-rank", "--qk-", "--v-head-dim", "--kv-channels",
            "--group-query-attention", "--num-query-groups", "--rope-type", "--rotary-scaling-factor", "--mscale"),
    "mtp": ("--mtp-", "--hybrid-layer-pattern"),
    "dsa": ("--dsa-", "--experimental-attention-variant", "--hybrid-layer-pattern", "--spec", "--no-rope-fusion"),
    "mhc": ("--mhc-", "--enable-hyper-connections", "--num-residual-streams"),
    "parallel_ssm": (),
    "fp8": ("--fp8-", "--first-last-layers-bf16", "--num-layers-at-"),
}  # fmt: skip


@contract("REC-04", asks="launch", cases=SWITCHED, source="naming")
def a_feature_changes_only_what_it_owns(stack: Stack, without: Recipe, feature: dict[str, object], mode: Mode) -> None:
    """Turning one feature on changes at least one thing in the launch, only the flags that belong to that feature, and
    no parallel degree.

    Features that are switched as one bundle cannot be bisected. A feature that changed nothing was measured, and its
    figure was quoted.
    """
    off, on = _launched_both(stack, without, feature, mode)
    (name,) = feature
    one, other = megatron_flags(off), megatron_flags(on)
    changed = [flag for flag in {**one, **other} if one.get(flag) != other.get(flag)]
    foreign = [flag for flag in changed if not flag.startswith(OWNS[name])]
    assert not foreign, f"turning {name} on changes {', '.join(_told(flag, one, other) for flag in foreign)}"
    assert on.degrees == off.degrees, f"turning {name} on changes the degrees from {off.degrees} to {on.degrees}"
    variables = [key for key in {**off.env, **on.env} if off.env.get(key) != on.env.get(key)]
    runtime = [key for key in variables if key.startswith(RECORDED_PREFIXES)]
    assert not runtime, f"turning {name} on changes {', '.join(runtime)} in the environment"
    assert changed or variables, f"turning {name} on changes nothing in the launch"


_DIMS = ("--hidden-size", "--ffn-hidden-size", "--num-attention-heads", "--seq-length", "--max-position-embeddings",
         "--rotary-base", "--vocab-size", "--mamba-num-heads", "--mamba-head-dim", "--mamba-state-dim",
         "--mamba-num-groups", "--num-layers")  # fmt: skip
_SWAPS = {"moe": str.maketrans("E", "-"), "dsa": str.maketrans("D", "*")}
"""Symbols that a feature may exchange in place: experts for a dense MLP, sparse attention for full."""


@contract("REC-05", asks="launch", cases=SWITCHED, source="naming")
def a_feature_is_a_placement(stack: Stack, without: Recipe, feature: dict[str, object], mode: Mode) -> None:
    """No feature changes pattern, depth or dimensions: prediction heads go into the suffix, DSA onto chosen A-ranks,
    and experts onto E.

    A feature that changes a dimension makes another model under the same name, and comparing the two shows nothing.
    """
    off, on = _launched_both(stack, without, feature, mode)
    (name,) = feature
    one, other = megatron_flags(off), megatron_flags(on)
    for flag in _DIMS:
        assert one.get(flag) == other.get(flag), f"turning {name} on changes {_told(flag, one, other)}"
    before, after = _main(one), _main(other)
    assert len(before) == len(after), f"turning {name} on changes the depth from {len(before)} to {len(after)}: {after}"
    swap = _SWAPS.get(name, {})
    columns = enumerate(zip(before, after, strict=True), start=1)
    moved = [column for column, (old, new) in columns if old.translate(swap) != new.translate(swap)]
    assert not moved, f"turning {name} on changes columns {moved} of the main pattern from {before} to {after}"
    assert on.recurrent == off.recurrent, f"turning {name} on moves R from {off.recurrent} to {on.recurrent}"


# A recipe with every feature, so that each field exists; grouped-query attention has fields of its own.
EVERYTHING = replace(
    LATENT, mtp=Mtp(), dsa=Dsa(a_ranks=(1, 2, 4)), mhc=Mhc(), parallel_ssm=ParallelSsm(), fp8=Fp8(),
    checkpoint=Checkpoint(save="/ckpt/run"),
)  # fmt: skip
GROUPED = replace(EVERYTHING, mla=None, dsa=None)

ALTERNATIVES: dict[str, object] = {  # field → a legal value that neither recipe above has
    "pattern": "AEMRAEMEAEMR", "depth": 30, "hidden": 1536, "ffn_hidden": 3072, "heads": 24, "kv_groups": 6,
    "seq_length": 1024, "vocab": 50_304, "rope_theta": 10_000, "qk_norm": False, "untied_embeddings": False,
    "activation": "swiglu", "norm_eps": 1e-6, "dtype": "fp16", "author_spec": ("another_spec", "hybrid_stack_spec"),
    "dropout": 0.1, "biases": ("attention", "mlp", "experts", "router"), "seed": 4321, "recompute": "full",
    "moe": None, "moe.experts": 16, "moe.top_k": 2, "moe.expert_hidden": 192, "moe.shared_hidden": 0,
    "moe.score": "sigmoid", "moe.selection_bias": True, "moe.aux_loss": 0.0, "moe.z_loss": 1e-3,
    "moe.groups": (6, 1), "moe.route_scale": 2.5, "moe.bias_rate": 1e-2, "moe.capacity_factor": 1.25,
    "moe.drop_policy": "probs",
    "mla": None, "mla.q_lora": 128, "mla.kv_lora": 128, "mla.qk_head": 128, "mla.qk_rope": 32, "mla.v_head": 128,
    "mtp": None, "mtp.depth": 2, "mtp.loss_weight": 0.3,
    "dsa": None, "dsa.a_ranks": (1, 2, 5), "dsa.index_heads": 4, "dsa.index_head_dim": 128, "dsa.top_k": 128,
    "mhc": None, "mhc.streams": 2,
    "parallel_ssm": None, "parallel_ssm.attention_scale": 0.5, "parallel_ssm.ssm_scale": 2.0,
    "mamba": Mamba(heads=12, groups=2), "mamba.heads": 12, "mamba.head_dim": 32, "mamba.state": 128, "mamba.groups": 2,
    "fp8": None, "fp8.format": "e4m3", "fp8.scaling": "delayed",
    "optim": Optim(lr=1e-3), "optim.rule": "muon", "optim.lr": 1e-4, "optim.min_lr": 0.0,
    "optim.schedule": "linear", "optim.warmup": 0,
    "optim.steps": 7, "optim.weight_decay": 0.0, "optim.beta1": 0.8, "optim.beta2": 0.99, "optim.clip": 0.0,
    "optim.end_weight_decay": 0.3,
    "batch": Batch(micro=2, total=128), "batch.micro": 2, "batch.total": 128,
    "data": Data(path="/data/shard"), "data.path": "/data/shard", "data.tokenizer": "HuggingFaceTokenizer",
    "checkpoint": Checkpoint(), "checkpoint.save": None, "checkpoint.load": "/ckpt/before", "checkpoint.interval": 50,
    "degrees": Degrees(pp=2), "degrees.pp": 2, "degrees.cp": 2, "degrees.ep": 2, "degrees.etp": 2,
}  # fmt: skip

FURTHER: dict[str, object] = {  # field → a third value, where the alternative switches the feature on or off
    "pattern": "AEMMAEMEAEMR",  # Megatron's pattern is that of the alternative, whose R it has no symbol for
    "moe.shared_hidden": 64, "moe.aux_loss": 0.05, "moe.z_loss": 2e-3, "moe.capacity_factor": 2.0,
    "mtp.loss_weight": 0.4, "optim.min_lr": 1e-6, "optim.warmup": 5, "optim.weight_decay": 0.01, "optim.clip": 0.5,
    "data.path": "/data/other", "checkpoint.save": "/ckpt/other", "checkpoint.load": "/ckpt/older",
}  # fmt: skip

ALONE = replace(
    GROUPED, moe=Moe(shared_hidden=0, aux_loss=0.0), fp8=None, checkpoint=Checkpoint(),
    optim=Optim(min_lr=0.0, warmup=0, weight_decay=0.0, clip=0.0),
)  # fmt: skip
"""Whatever a field of it switches on is on by itself."""

BY_THE_MODE = {"degrees.tp", "degrees.sp"}
"""The mode decides TP and SP; NAME-05 judges that it does."""

_NEEDS: dict[str, dict[str, object]] = {  # what else must change for a value to be legal
    "moe.selection_bias": {"moe.score": "sigmoid"},
    "moe.groups": {"moe.score": "sigmoid", "moe.top_k": 2},
    "moe.bias_rate": {"moe.score": "sigmoid", "moe.selection_bias": True},
    "dtype": {"fp8": None},
    "biases": {"mla": None, "dsa": None, "moe.shared_hidden": 0},
    "mla": {"dsa": None},
    "moe.drop_policy": {"moe.capacity_factor": 1.25},
    "checkpoint.interval": {"checkpoint.save": "/ckpt/run"},
    "degrees.etp": {"degrees.ep": 2, "degrees.etp": 1},
    "degrees.cp": {"mamba.groups": 4},
}

REGIMES: dict[str, tuple[Regime]] = {"megatron": ("megatron",), "fsdp2": ("fsdp2",)}


@contract("REC-07", asks="launch", cases=REGIMES, source="F15")
def every_field_matters(stack: Stack, regime: Regime) -> None:
    """Changing any field of a recipe changes the launch in at least one lane of every regime, unless the field is
    declared inert. So does changing one nonzero value of a field to another, and a value beside which all else is off.

    53 recipes of one framework set a flag that nothing read; the pipelines they describe never ran.
    """
    known = {*ALTERNATIVES, *INERT, *BY_THE_MODE}
    assert known == set(_fields(EVERYTHING)), f"no alternative for {', '.join(set(_fields(EVERYTHING)) ^ known)}"
    silent = [field for field, value in ALTERNATIVES.items() if not _matters(stack, field, {}, value, regime)]
    assert not silent, f"changing {', '.join(silent)} changes no launch in the {regime} regime"
    for field, value in FURTHER.items():
        first = ALTERNATIVES[field] or _of(EVERYTHING, field)
        told = _matters(stack, field, {field: first}, value, regime)
        assert told, f"{field} {first} and {value} give the same launch in the {regime} regime"
    for field, value in (ALTERNATIVES | FURTHER).items():
        told = _of(ALONE, field) in (None, value) or _matters(stack, field, {}, value, regime, (ALONE,))
        assert told, f"{field} {value} where all else is off gives the launch without it in the {regime} regime"


def _launched_both(stack: Stack, without: Recipe, feature: dict[str, object], mode: Mode) -> tuple[Launch, Launch]:
    with_it = replace(without, **feature)  # type: ignore[arg-type]  # a table of features
    return stack.launch(without, Lane(mode=mode)), stack.launch(with_it, Lane(mode=mode))


def _main(flags: dict[str, tuple[str, ...]]) -> str:
    (text,) = flags.get("--hybrid-layer-pattern", ("",))
    return text.split("/")[0]


def _told(flag: str, before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]) -> str:
    absent = ("absent",)
    return f"{flag} ({' '.join(before.get(flag, absent))} → {' '.join(after.get(flag, absent))})"


def _fields(recipe: Recipe) -> Iterator[str]:
    for field in fields(recipe):
        yield field.name
        value = getattr(recipe, field.name)
        if is_dataclass(value):
            yield from (f"{field.name}.{inner.name}" for inner in fields(value))


def _with(recipe: Recipe, changes: dict[str, object]) -> Recipe:
    """A recipe with some fields changed, all of them at once: a value may be legal only together with another."""
    parts: dict[str, Any] = {}
    for field, value in changes.items():
        part, _, inner = field.partition(".")
        owner = parts.get(part, getattr(recipe, part))
        parts[part] = replace(owner, **{inner: value}) if inner else value
    return replace(recipe, **parts)


def _of(recipe: Recipe, field: str) -> object:
    """The value of a field; None if its feature is off."""
    part, _, inner = field.partition(".")
    return getattr(getattr(recipe, part), inner, None) if inner else getattr(recipe, part)


def _matters(
    stack: Stack,
    field: str,
    first: dict[str, object],
    value: object,
    regime: Regime,
    recipes: tuple[Recipe, ...] = (EVERYTHING, GROUPED),
) -> bool:
    """Whether some lane launches the recipe (changed as `first` says) differently when the field has this value, or
    refuses it for this very field."""
    for recipe in recipes:
        if "." in field and getattr(recipe, field.split(".", maxsplit=1)[0]) is None:
            continue
        needs = {**_NEEDS.get(field, {}), **first}
        before, after = _with(recipe, needs), _with(recipe, {**needs, field: value})
        if before == after:
            continue
        for mode in ("nemo_native", "author_dp"):
            try:
                one = stack.launch(before, Lane(mode=mode, regime=regime))
            except Refused:
                continue
            try:
                other = stack.launch(after, Lane(mode=mode, regime=regime))
            except Refused as refused:
                if names_field(refused, (field, field.rpartition(".")[2])):
                    return True  # a regime refuses a value that it does not support by name, and does not ignore it
                continue
            if _started(one) != _started(other):
                return True
    return False


def _started(launch: Launch) -> tuple[tuple[str, ...], dict[str, str]]:
    """The parts of a launch that reach the run. Its other fields, such as `recurrent`, are for the caller."""
    return launch.command, dict(launch.env)
