"""The recipe: everything that defines a run before a machine is chosen, as one frozen value.

A recipe is derived from another with `dataclasses.replace`, never edited, and has a lossless JSON form
(`contracts.spec.codec`). A feature that is off is `None`. Sizes are in elements, lengths in tokens, learning rates
absolute.

`Recipe.problems` lists every relation between fields that does not hold; building an illegal recipe raises them all.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Literal

from contracts.spec import pattern as patterns
from contracts.spec.errors import Refusals, Refused
from contracts.spec.topology import Degrees

Mode = Literal["nemo_native", "author_dp"]
Dtype = Literal["bf16", "fp16", "fp32"]
Schedule = Literal["cosine", "linear", "constant", "WSD"]
Biased = Literal["attention", "mlp", "experts", "router"]


@dataclass(frozen=True, kw_only=True)
class Moe:
    """Token-choice experts on the E blocks. `shared_hidden` 0 means no shared expert.

    `capacity_factor` is the number of an expert's token slots divided by its fair share; None drops no token. A full
    expert keeps the first assignments in token order (`position`), or those with the greatest gates (`probs`).
    With `groups` (number, chosen) neighbours make groups of equal size, and a token goes only to experts of the groups
    chosen for it. `route_scale` multiplies the gates; `bias_rate` is the step size of the selection bias.
    """

    experts: int = 16
    top_k: int = 4
    expert_hidden: int = 896
    shared_hidden: int = 1024
    score: Literal["softmax", "sigmoid"] = "softmax"
    selection_bias: bool = False
    groups: tuple[int, int] | None = None
    aux_loss: float = 1e-2
    z_loss: float = 0.0
    route_scale: float = 1.0
    bias_rate: float = 1e-3
    capacity_factor: float | None = None
    drop_policy: Literal["position", "probs"] = "position"


@dataclass(frozen=True, kw_only=True)
class Mla:
    """Multi-latent attention on the A blocks: ranks of the latent projections, and dims of one head."""

    q_lora: int = 64
    kv_lora: int = 64
    qk_head: int = 64
    qk_rope: int = 64
    v_head: int = 64


@dataclass(frozen=True, kw_only=True)
class Mtp:
    """Multi-token prediction: the number of tokens ahead, and the weight of its loss."""

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
class ParallelSsm:
    """A state-space branch beside attention on the A blocks (Falcon-H1, arXiv 2507.22448): both read the block's norm,
    and the block adds up their outputs, each times its scale.
    """

    attention_scale: float = 1.0
    ssm_scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Mamba:
    """State-space dims of the M blocks and of `ParallelSsm`: heads · head_dim is the inner width."""

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

    Under `rule` muon, Muon updates the matrices of the blocks and AdamW everything else. If `end_weight_decay` is
    given, the decay changes step by step from `weight_decay` to it.
    """

    rule: Literal["adamw", "muon"] = "adamw"
    lr: float = 3e-4
    min_lr: float = 3e-5
    schedule: Schedule = "cosine"
    warmup: int = 10
    steps: int = 100
    weight_decay: float = 0.1
    end_weight_decay: float | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`micro`: sequences of one forward pass on one rank. `total`: sequences of one optimizer step over all ranks."""

    micro: int = 4
    total: int = 64


@dataclass(frozen=True, kw_only=True)
class Data:
    """The source of tokens. `path` None means generated tokens."""

    path: str | None = None
    tokenizer: str = "NullTokenizer"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where and how often state is saved; `save` None means never. Paths are on the durable volume."""

    save: str | None = None
    load: str | None = None
    interval: int = 500


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model and how it is trained.

    `modes` are the runtime modes in which the recipe may run, and `degrees` its degrees on every axis except data
    parallelism; the mode decides TP and SP. `author_spec` is the module and the name of the layer spec that keeps the
    custom mixers in author_dp mode. `hbm_gb` is the memory of the smallest card that the recipe was planned for, in the
    decimal gigabytes of its data sheet (141 for an H200). `family` is the preset family, which comparisons need.
    `dropout` is the probability with which training drops an element of what a layer adds to the residual stream; the
    elements that stay are divided by 1 - dropout. `biases` names the linear layers that add a bias.
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
    dropout: float = 0.0
    biases: tuple[Biased, ...] = ()
    moe: Moe | None = None
    mla: Mla | None = None
    mtp: Mtp | None = None
    dsa: Dsa | None = None
    mhc: Mhc | None = None
    parallel_ssm: ParallelSsm | None = None
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
        """Check every relation between the fields.

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

    @property
    def mixers(self) -> frozenset[str]:
        """The letters whose mixers the model has: those of the pattern, and M where A has a state-space branch."""
        found = frozenset(_parsed(self.pattern, self.depth).letters)
        return found | {"M"} if self.parallel_ssm is not None and "A" in found else found


INERT: dict[str, str] = {
    "name": "identity; it reaches the run's name, not what runs",
    "family": "what a comparison needs to know, not what runs",
    "modes": "which lanes are legal; the lane says which one runs",
    "hbm_gb": "a statement about the card, checked before the launch",
    "replicate_kv": "permission to replicate KV groups; seen when a degree exceeds them",
    "replicate_ssm_groups": "permission to replicate SSM groups; seen when a degree exceeds them",
}
"""Fields that do not change a launch by themselves, each with the reason. Every other field must reach the launch."""


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
    "parallel_ssm": ("attention_scale", "ssm_scale"),
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


def _grouped(moe: Moe, groups: tuple[int, int], found: Refusals) -> None:
    number, chosen = groups
    for fits, problem in (
        (moe.score == "sigmoid", f"needs sigmoid scores (moe.score is {moe.score})"),
        (
            0 < chosen <= number and moe.experts % number == 0,
            f"cuts no groups of moe.experts ({moe.experts}) to choose",
        ),
        (
            moe.top_k == 2 * chosen and 2 * number <= moe.experts,
            f"needs two of moe.top_k ({moe.top_k}) experts a group",
        ),
    ):
        found.unless(fits, "moe.groups", groups, problem, "give (number, chosen) that fit, or turn the feature off")


_parsed = functools.lru_cache(maxsize=256, typed=True)(patterns.parse)
"""The contracts make five thousand recipes when they are imported, of a few dozen patterns."""


def _relations(recipe: Recipe, found: Refusals) -> None:
    try:
        attention = patterns.layers_of(_parsed(recipe.pattern, recipe.depth), "A").numbers
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
    found.unless(0 <= recipe.dropout < 1, "dropout", recipe.dropout, "is no share that leaves something",
                 "give a number from 0 to below 1")  # fmt: skip
    found.unless(recipe.batch.total % recipe.batch.micro == 0, "batch.micro", recipe.batch.micro,
                 f"must divide batch.total ({recipe.batch.total})", remedy)  # fmt: skip
    found.unless(len({*recipe.biases}) == len(recipe.biases), "biases", recipe.biases, "repeats a place", "drop it")
    for place, there, problem in (
        ("attention", recipe.mla is None, "is not defined for latent attention, and mla is on"),
        ("experts", recipe.moe is not None, "needs experts, and moe is off"),
        ("router", recipe.moe is not None, "needs a router, and moe is off"),
    ):
        found.unless(there or place not in recipe.biases, "biases", place, problem, "take it out of biases")
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
        if recipe.moe.groups is not None:
            _grouped(recipe.moe, recipe.moe.groups, found)
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
