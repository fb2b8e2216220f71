"""The recipe: everything that fixes a run before a machine is chosen, as one frozen value.

A recipe is derived from another with `dataclasses.replace`, never edited, and survives its JSON form field by field
(`contracts.spec.codec`). A feature that is off is `None`: it has no fields to forget. Sizes are in elements, lengths in
tokens, learning rates absolute.

`Recipe.problems` lists every relation between fields that does not hold; building an illegal recipe raises them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from contracts.spec import pattern as patterns
from contracts.spec.errors import Refusals, Refused
from contracts.spec.topology import Degrees

Mode = Literal["nemo_native", "author_dp"]
Dtype = Literal["bf16", "fp16", "fp32"]
Schedule = Literal["cosine", "linear", "constant", "WSD"]


@dataclass(frozen=True, kw_only=True)
class Moe:
    """Token-choice experts on the E blocks. `shared_hidden` 0 means no shared expert.

    `capacity_factor` is an expert's token slots over its fair share; None drops no token. `route_scale` multiplies the
    gates, `bias_rate` is the step of the selection bias.
    """

    experts: int = 16
    top_k: int = 4
    expert_hidden: int = 896
    shared_hidden: int = 1024
    score: Literal["softmax", "sigmoid"] = "softmax"
    selection_bias: bool = False
    aux_loss: float = 1e-2
    z_loss: float = 0.0
    route_scale: float = 1.0
    bias_rate: float = 1e-3
    capacity_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class Mla:
    """Multi-latent attention on the A blocks: ranks of the latent projections, dims of one head."""

    q_lora: int = 64
    kv_lora: int = 64
    qk_head: int = 64
    qk_rope: int = 64
    v_head: int = 64


@dataclass(frozen=True, kw_only=True)
class Mtp:
    """Multi-token prediction: how many tokens ahead, and the weight of its loss."""

    depth: int = 1
    loss_weight: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Dsa:
    """DeepSeek sparse attention on chosen A-ranks (ordinals among attention layers, from 0)."""

    a_ranks: tuple[int, ...]
    index_heads: int = 8
    index_head_dim: int = 64
    top_k: int = 256


@dataclass(frozen=True, kw_only=True)
class Mhc:
    """Manifold-constrained hyper-connections: the number of parallel residual streams."""

    streams: int = 4


@dataclass(frozen=True, kw_only=True)
class Mamba:
    """State-space dims of the M blocks: heads · head_dim is the inner width."""

    heads: int = 56
    head_dim: int = 64
    state: int = 64
    groups: int = 8


@dataclass(frozen=True, kw_only=True)
class Fp8:
    """What runs in FP8: the matmul format and the scaling recipe."""

    format: Literal["hybrid", "e4m3"] = "hybrid"
    scaling: Literal["tensorwise", "delayed", "blockwise", "mxfp8"] = "tensorwise"


@dataclass(frozen=True, kw_only=True)
class Optim:
    """Optimizer and schedule; `warmup` and `steps` count optimizer steps.

    `rule` muon moves the matrices of the blocks by Muon and everything else by AdamW.
    """

    rule: Literal["adamw", "muon"] = "adamw"
    lr: float = 3e-4
    min_lr: float = 3e-5
    schedule: Schedule = "cosine"
    warmup: int = 10
    steps: int = 100
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences a forward pass on one rank, and sequences an optimizer step over all ranks."""

    micro: int = 4
    total: int = 64


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where tokens come from. `path` None means generated tokens."""

    path: str | None = None
    tokenizer: str = "NullTokenizer"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where and how often state is saved; `save` None means never. Paths lie on the durable volume."""

    save: str | None = None
    load: str | None = None
    interval: int = 500


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model and how it is trained.

    `modes` are the lanes the recipe may run as, and `degrees` what it asks of every axis but data parallelism; the
    mode decides TP and SP. `author_spec` is the module and the name of the layer spec that keeps the custom mixers in
    the author_dp mode. `hbm_gb` is the memory of the smallest card it was planned for, in
    the decimal gigabytes of its data sheet (141 for an H200), `family` the preset family
    that a comparison needs.
    """

    name: str
    family: str
    pattern: str
    depth: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_groups: int
    seq_length: int
    vocab: int = 65536
    rope_theta: int = 500_000
    qk_norm: bool = True
    untied_embeddings: bool = True
    activation: Literal["relu2", "swiglu"] = "relu2"
    norm_eps: float = 1e-5
    moe: Moe | None = None
    mla: Mla | None = None
    mtp: Mtp | None = None
    dsa: Dsa | None = None
    mhc: Mhc | None = None
    mamba: Mamba = field(default_factory=Mamba)
    dtype: Dtype = "bf16"
    fp8: Fp8 | None = None
    recompute: Literal["none", "full"] = "none"
    optim: Optim = field(default_factory=Optim)
    batch: Batch = field(default_factory=Batch)
    data: Data = field(default_factory=Data)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    degrees: Degrees = field(default_factory=Degrees)
    replicate_kv: bool = False
    replicate_ssm_groups: bool = False
    modes: tuple[Mode, ...] = ("nemo_native", "author_dp")
    author_spec: tuple[str, str] = ("nam56r_author_spec", "hybrid_stack_spec")
    hbm_gb: int = 141
    seed: int = 1234

    def __post_init__(self) -> None:
        """Refuse the recipe when a relation between its fields does not hold.

        Raises:
            Refused: every broken relation at once.
        """
        found = Refusals()
        _positive(self, found)
        if not found:
            _relations(self, found)
        found.raise_any()

    @property
    def head_dim(self) -> int:
        """Elements of one attention head."""
        return self.hidden // self.heads


INERT: dict[str, str] = {
    "name": "identity; it reaches the run's name, not what runs",
    "family": "what a comparison needs to know, not what runs",
    "modes": "which lanes are legal; the lane says which one runs",
    "hbm_gb": "a statement about the card, checked before the launch",
    "replicate_kv": "permission to replicate KV groups; seen when a degree exceeds them",
    "replicate_ssm_groups": "permission to replicate SSM groups; seen when a degree exceeds them",
}
"""Fields that change no launch by themselves, each with why. Every other field must reach the launch."""


def refusals_on(recipe: Recipe, degrees: Degrees, dp: int) -> Refusals:
    """Every way in which a recipe does not divide over some degrees and a data-parallel size.

    KV groups and SSM groups smaller than TP are legal only where the recipe declares that they are replicated.
    """
    found = Refusals()

    def divides(field_name: str, degree: int, over: str, size: int, remedy: str = "choose a divisor") -> None:
        found.unless(size % degree == 0, field_name, degree, f"must divide {over} ({size})", remedy)

    divides("tp", degrees.tp, "heads", recipe.heads)
    if recipe.mla is None:  # MLA has no KV groups to shard
        replicated = recipe.replicate_kv and degrees.tp % recipe.kv_groups == 0
        if not replicated:
            divides("tp", degrees.tp, "kv_groups", recipe.kv_groups, "choose a divisor, or declare replicate_kv")
    if "M" in recipe.pattern or "R" in recipe.pattern:
        divides("tp", degrees.tp, "mamba.heads", recipe.mamba.heads)
        replicated = recipe.replicate_ssm_groups and degrees.tp % recipe.mamba.groups == 0
        if not replicated:
            remedy = "choose a divisor, or declare replicate_ssm_groups"
            divides("tp", degrees.tp, "mamba.groups", recipe.mamba.groups, remedy)
    divides("tp", degrees.tp, "ffn_hidden", recipe.ffn_hidden)
    if recipe.moe is not None:
        divides("ep", degrees.ep, "moe.experts", recipe.moe.experts)
        divides("etp", degrees.expert_tp, "moe.expert_hidden", recipe.moe.expert_hidden)
    else:
        found.unless(degrees.ep == 1, "ep", degrees.ep, "needs experts, and moe is off", "set ep 1 or turn moe on")
    shards = degrees.cp * (degrees.tp if degrees.sp else 1)
    found.unless(
        recipe.seq_length % shards == 0,
        "seq_length",
        recipe.seq_length,
        f"must be a multiple of cp * tp ({shards})",
        "choose a multiple, so that no rank is left without tokens",
    )
    try:
        patterns.stages(patterns.parse(recipe.pattern, recipe.depth), degrees.pp)
    except Refused as refused:
        found.extend(refused)
    per_pass = recipe.batch.micro * dp
    found.unless(
        recipe.batch.total % per_pass == 0,
        "batch.total",
        recipe.batch.total,
        f"must be a multiple of batch.micro * dp ({per_pass})",
        "choose a multiple, so that every rank steps as often",
    )
    if recipe.fp8 is not None:
        _alignment(recipe, recipe.fp8, degrees, found)
    return found


def _alignment(recipe: Recipe, fp8: Fp8, degrees: Degrees, found: Refusals) -> None:
    """Widths of matrices on one rank, and tokens of one pass: FP8 tensor cores take them 16 (mxfp8: 32) at a time.

    Rows are to be a multiple of 8 (mxfp8: 32, whose blocks lie along them in the backward pass). Experts' rows are
    padded by whoever dispatches them. Transformer Engine has the same rule and states it at the first step.
    """
    width, rows = (32, 32) if fp8.scaling == "mxfp8" else (16, 8)
    remedy = "choose a multiple, or turn fp8 off"
    for name, value, what, elements, degree in _fp8_widths(recipe, degrees):
        on_one = f"{what} ({elements})" if degree == 1 else f"{what} / {degree} ({elements // degree})"
        problem = f"{on_one} must be a multiple of {width} for fp8 ({fp8.scaling})"
        found.unless(elements // degree % width == 0, name, value, problem, remedy)
    tokens = recipe.batch.micro * recipe.seq_length // degrees.cp
    problem = f"tokens of a pass ({tokens}) must be a multiple of {rows} for fp8 ({fp8.scaling})"
    found.unless(tokens % rows == 0, "seq_length", recipe.seq_length, problem, remedy)


def _fp8_widths(recipe: Recipe, degrees: Degrees) -> list[tuple[str, object, str, int, int]]:
    """Every width that a matrix in FP8 has: the field, its value, in words, in elements, and over how many ranks."""
    letters = set(patterns.parse(recipe.pattern, recipe.depth).letters)
    tp, heads, mamba = degrees.tp, recipe.heads, recipe.mamba
    found: list[tuple[str, object, str, int, int]] = [("hidden", recipe.hidden, "hidden", recipe.hidden, 1)]
    if "A" in letters and recipe.mla is None:
        groups, dim = recipe.kv_groups, recipe.head_dim
        if tp > 1:  # on one rank it is hidden
            found.append(("heads", heads, "heads * head_dim", heads * dim, tp))
        kept = groups if tp > groups else tp  # more ranks than groups hold one each
        found.append(("kv_groups", groups, "kv_groups * head_dim", groups * dim, kept))
    elif "A" in letters and recipe.mla is not None:
        mla = recipe.mla
        found += [
            ("mla.q_lora", mla.q_lora, "q_lora", mla.q_lora, 1),
            ("mla.qk_head", mla.qk_head, "heads * (qk_head + qk_rope)", heads * (mla.qk_head + mla.qk_rope), tp),
            ("mla.kv_lora", mla.kv_lora, "kv_lora", mla.kv_lora, 1),
            ("mla.qk_rope", mla.qk_rope, "kv_lora + qk_rope", mla.kv_lora + mla.qk_rope, 1),
            ("mla.v_head", mla.v_head, "heads * v_head", heads * mla.v_head, tp),
        ]
        found.append(("mla.v_head", mla.v_head, "heads * (qk_head + v_head)", heads * (mla.qk_head + mla.v_head), tp))
    if "E" in letters and recipe.moe is None:
        found.append(("ffn_hidden", recipe.ffn_hidden, "ffn_hidden", recipe.ffn_hidden, tp))
    elif "E" in letters and recipe.moe is not None:
        inner, shared = recipe.moe.expert_hidden, recipe.moe.shared_hidden
        found.append(("moe.expert_hidden", inner, "expert_hidden", inner, degrees.expert_tp))
        found.append(("moe.shared_hidden", shared, "shared_hidden", shared, tp))
    if letters & {"M", "R"}:
        found.append(("mamba.head_dim", mamba.head_dim, "heads * head_dim", mamba.heads * mamba.head_dim, tp))
    if "M" in letters:
        kept = mamba.groups if tp > mamba.groups else tp
        found.append(("mamba.groups", mamba.groups, "groups * state", mamba.groups * mamba.state, kept))
    if "R" in letters:
        found.append(("mamba.state", mamba.state, "heads * state", mamba.heads * mamba.state, tp))
    return found


_POSITIVE = {
    "": (
        "depth",
        "hidden",
        "ffn_hidden",
        "heads",
        "kv_groups",
        "seq_length",
        "vocab",
        "rope_theta",
        "norm_eps",
        "hbm_gb",
    ),
    "moe": ("experts", "top_k", "expert_hidden"),
    "mla": ("q_lora", "kv_lora", "qk_head", "qk_rope", "v_head"),
    "mtp": ("depth",),
    "dsa": ("index_heads", "index_head_dim", "top_k"),
    "mhc": ("streams",),
    "mamba": ("heads", "head_dim", "state", "groups"),
    "optim": ("lr", "steps"),
    "batch": ("micro", "total"),
    "checkpoint": ("interval",),
}


def _positive(recipe: Recipe, found: Refusals) -> None:
    for part, names in _POSITIVE.items():
        owner = getattr(recipe, part) if part else recipe
        for name in names if owner is not None else ():
            value = getattr(owner, name)
            label = f"{part}.{name}" if part else name
            found.unless(
                value > 0, label, value, "must be positive", "turn the feature off instead" if part else "give a size"
            )


def _relations(recipe: Recipe, found: Refusals) -> None:
    try:
        attention = patterns.layers_of(patterns.parse(recipe.pattern, recipe.depth), "A").numbers
    except Refused as refused:
        found.extend(refused)
        attention = ()
    remedy = "choose a divisor"
    hidden, heads, groups = recipe.hidden, recipe.heads, recipe.kv_groups
    found.unless(hidden % heads == 0, "heads", heads, f"must divide hidden ({hidden})", remedy)
    found.unless(heads % groups == 0, "kv_groups", groups, f"must divide heads ({heads})", remedy)
    mamba = recipe.mamba
    found.unless(
        mamba.heads % mamba.groups == 0,
        "mamba.groups",
        mamba.groups,
        f"must divide mamba.heads ({mamba.heads})",
        remedy,
    )
    found.unless(recipe.batch.total % recipe.batch.micro == 0, "batch.micro", recipe.batch.micro,
                 f"must divide batch.total ({recipe.batch.total})", remedy)  # fmt: skip
    if recipe.moe is not None:
        top_k, experts = recipe.moe.top_k, recipe.moe.experts
        found.unless(top_k <= experts, "moe.top_k", top_k, f"must not exceed moe.experts ({experts})", "choose fewer")
        found.unless(
            not recipe.moe.selection_bias or recipe.moe.score == "sigmoid",
            "moe.selection_bias",
            True,
            f"needs sigmoid scores (moe.score is {recipe.moe.score})",
            "set moe.score to sigmoid",
        )
        for name in ("route_scale", "bias_rate", "capacity_factor"):
            value = getattr(recipe.moe, name)
            found.unless(value is None or value > 0, f"moe.{name}", value, "must be positive", "give a factor above 0")
    if recipe.dsa is not None:
        found.unless(recipe.mla is not None, "dsa", "on", "needs MLA, and mla is off", "turn mla on")
        for rank in recipe.dsa.a_ranks:
            problem = f"is not an A-rank (the pattern has {len(attention)}, counted from 0)"
            found.unless(0 <= rank < len(attention), "dsa.a_ranks", rank, problem, "give ordinals among A layers")
        repeated = len(set(recipe.dsa.a_ranks)) != len(recipe.dsa.a_ranks)
        found.unless(not repeated, "dsa.a_ranks", recipe.dsa.a_ranks, "repeats a rank", "drop it")
    if recipe.fp8 is not None:
        found.unless(recipe.dtype == "bf16", "fp8", "on", f"needs dtype bf16 (dtype is {recipe.dtype})", "use bf16")
    found.unless(bool(recipe.modes), "modes", recipe.modes, "is empty", "name nemo_native or author_dp")
