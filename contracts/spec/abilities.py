"""Abilities: what a stack can build, declared once as a value, and what a question needs.

Both sides speak in features, the words of `FEATURES`. The needs of a question are read off its recipe and its execution
(`contracts.spec.needs`); nobody writes that down by hand. A stack's `Abilities` name the features that it has. They
name what it lacks with the reason and whose lack it is: a single feature, or features that it does not have together.

The plan of a run compares the two before anything runs (`contracts.court.profiles`). A stack that declares nothing is
asked everything and declines by `NotOffered`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contracts.spec.errors import Lack, Refusals

FEATURES: Mapping[str, str] = {
    # mixers and what stands between them
    "attention": "A blocks",
    "mlp": "E blocks that are dense MLPs",
    "experts": "E blocks that are routed experts",
    "mamba": "M blocks",
    "narrow-scan": "M blocks whose scan is no multiple of the hidden size wide",
    "recurrent": "R blocks",
    "unpaired": "layers that are not a mixer and then experts or an MLP, in pairs that no pipeline stage cuts",
    "gqa": "fewer KV groups than heads",
    "mla": "latent attention",
    "dsa": "sparse attention",
    "qk-norm": "a norm on queries and keys",
    "parallel-ssm": "a state-space branch beside attention in A blocks",
    "relu2": "squared relu in MLPs and experts",
    "swiglu": "SwiGLU in MLPs and experts",
    "prediction-heads": "multi-token prediction",
    "hyper-connections": "several residual streams",
    "tied": "one tensor for embedding and output projection",
    "dropout": "dropout of what each layer adds to the residual stream",
    "attention-bias": "biases of the four projections of grouped-query attention",
    "mlp-bias": "biases of the projections of an MLP",
    "expert-bias": "biases of the projections of each expert",
    "cut-expert-bias": "biases of experts that tensor parallelism cuts",
    "router-bias": "a bias of the router's logits",
    # routers
    "softmax": "gates by a softmax",
    "sigmoid": "gates by sigmoids",
    "top-1": "one expert for each token",
    "selection-bias": "a bias that chooses experts and weighs none",
    "group-limited": "experts only of the best groups",
    "shared-expert": "an expert that every token passes",
    "route-scale": "gates times a constant",
    "balance-loss": "an auxiliary loss that balances experts",
    "z-loss": "an auxiliary loss on the router's logits",
    "capacity": "experts that drop tokens beyond their capacity",
    "capacity-by-gate": "full experts that keep the assignments with the greatest gates",
    # numbers
    "float64": "float64 all the way through",
    "float32": "float32 all the way through",
    "bf16": "activations in bfloat16",
    "fp16": "activations in float16",
    "fp8": "matrix products in FP8",
    # the step
    "adamw": "AdamW",
    "muon": "Muon for matrices",
    "cosine": "a cosine schedule",
    "linear": "a linear schedule",
    "constant": "a constant rate",
    "WSD": "warm-up, stable, decay",
    "changing-decay": "a weight decay that changes from step to step",
    "microbatches": "gradient accumulation",
    "uneven-microbatches": "microbatches of unequal size, where sequences do not divide",
    "recompute": "blocks recomputed in the backward pass",
    "compile": "compiled blocks or a compiled model",
    "compiled-blocks": "blocks that are compiled one by one",
    # data and checkpoints
    "packed": "several documents in a row",
    "own-data": "batches that the stack reads itself",
    "frozen": "parameters that a run does not train",
    "refrozen": "a resumed run that freezes others than the saved one",
    "outer-rates": "a rate of their own for embedding and output projection",
    "layer-rates": "rates of their own for some weights of the layers",
    "bias-rates": "a rate for each selection bias",
    "changing-batches": "steps whose batches differ in sequences and in length",
    "windows": "microbatches that a caller cuts, of any size and length",
    "largest-loss": "the largest loss of a rank beside the mean",
    "validation": "a loss over other batches between two steps",
    "uneven-validation": "a validation whose sequences the ranks do not divide",
    "checkpoint": "a run saved and resumed",
    "checkpoint-of-a-recipe": "a checkpoint that is refused under another recipe",
    # ranks
    "dp": "data parallelism",
    "fsdp": "parameters sharded over data-parallel ranks",
    "replicas": "sharded parameters in several copies",
    "tp": "tensor parallelism",
    "sp": "sequence parallelism beside tp",
    "uneven-kv": "tensor parallelism that KV groups do not divide",
    "uneven-vocab": "tensor parallelism that the vocabulary does not divide",
    "ep-without-fsdp": "expert parallelism over data-parallel ranks whose other parameters are whole",
    "etp-without-ep": "experts cut otherwise than the dense layers, and all of them on each rank",
    "ep-with-etp": "experts cut by ep and by tensor parallelism at once",
    "tp-without-sp": "tensor parallelism with whole sequences",
    "tp-without-fsdp": "tensor parallelism beside data-parallel ranks that shard nothing",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "etp": "experts cut otherwise than the dense layers",
    "pp": "pipeline stages",
    "interleaved": "several stages on one rank",
    "own-axis": "an axis of its own for ep",
    "borrowed": "an ep axis out of dp, cp and tp",
    "author-dp": "the runtime mode author_dp",
}
"""The features, with what each means. The layout is a feature where ep exceeds 1: below, both layouts are the same
ranks."""


@dataclass(frozen=True, kw_only=True)
class Absence:
    """What a stack lacks, and why.

    Args:
        features: a single feature, or features that it does not have together; frozenset({"mamba", "packed"}) is a
            stack with both and without packed rows in its scans. Empty where it has nothing to answer the questions
            of `asked` with: no catalogue of kernels, no plan of memory.
        kind: whose lack it is.
        reason: in words that follow the stack's name.
        asked: the questions that it is about; empty for all.
    """

    features: frozenset[str]
    kind: Lack
    reason: str
    asked: frozenset[str] = frozenset()

    def __str__(self) -> str:
        names = " with ".join(sorted(self.features)) or ", ".join(sorted(self.asked))
        return f"{names}: {self.reason}"

    def stands_against(self, needed: frozenset[str], asks: frozenset[str]) -> bool:
        """Whether it keeps a question, one of `asks`, from being answered of these features."""
        return self.features <= needed and bool(self.asked & asks or (self.features and not (self.asked and asks)))


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What a stack can build: the features that it `has`, and what it `lacks`.

    A feature may stand on both sides where the lack is limited to some questions. One that stands on neither is lacking
    because nobody declared it, which is the adapter's lack.

    A version that the adapter was never tried on `claims` none of it: what it declines is no fault, and what the tried
    versions lack is not asked of it.

    Raises:
        Refused: for a feature that nobody asks for, one that it has and lacks altogether, or a lack without a reason.
    """

    has: frozenset[str]
    lacks: tuple[Absence, ...] = ()
    claims: bool = True

    def __post_init__(self) -> None:
        found = Refusals()
        for feature in sorted(self.has.union(*(each.features for each in self.lacks)) - FEATURES.keys()):
            found.add("abilities", feature, "is no feature", f"the features are {', '.join(FEATURES)}")
        for each in self.lacks:
            name = " with ".join(sorted(each.features)) or "nothing"
            found.unless(bool(each.features or each.asked), "abilities.lacks", name, "names no feature and no question",
                         "name what is lacking")  # fmt: skip
            found.unless(each.kind != "case", f"abilities.lacks[{name}].kind", each.kind, "is no lack of a stack",
                         "say stack, device or adapter")  # fmt: skip
            found.unless(bool(each.reason.strip()), f"abilities.lacks[{name}].reason", "", "is empty", "say why")
            both = len(each.features) == 1 and not each.asked and each.features <= self.has
            found.unless(not both, "abilities.has", name, "is also lacking altogether", "drop one of the two")
        found.raise_any()

    def absence(self, needed: Iterable[str], asks: Iterable[str] = ()) -> Absence | None:
        """The first thing that stands against a question which needs these features; None when it can be asked.

        What the stack itself lacks comes before what its device lacks, and that before what its adapter lacks.
        """
        wanted, asked = frozenset(needed), frozenset(asks)
        found = [each for each in self.lacks if each.stands_against(wanted, asked)]
        known = self.has.union(*(each.features for each in self.lacks))
        undeclared = wanted - known
        if undeclared:
            words = "its abilities say nothing about it"
            found.append(Absence(features=frozenset({min(undeclared)}), kind="adapter", reason=words))
        return min(found, key=lambda each: ("stack", "device", "adapter").index(each.kind), default=None)
