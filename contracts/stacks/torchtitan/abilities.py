"""What this adapter asks of torchtitan 0.3.0 on a CPU: the features that it has, and why not the others."""

from __future__ import annotations

from contracts.spec.abilities import Abilities, Absence
from contracts.spec.lacks import Lack

_STEPS = frozenset({"built", "initial", "run_model", "train"})


def _lacks(features: str, kind: Lack, reason: str, *, asked: frozenset[str] = _STEPS) -> Absence:
    return Absence(features=frozenset(features.split()), kind=kind, reason=reason, asked=asked)


ABILITIES = Abilities(
    has=frozenset((
        "attention", "mlp", "experts", "gqa", "mla", "qk-norm", "swiglu", "softmax", "sigmoid", "selection-bias",
        "shared-expert", "route-scale", "tied", "float64", "float32", "adamw", "cosine", "linear", "constant", "WSD",
        "microbatches", "checkpoint", "dp", "fsdp", "replicas", "tp", "sp", "tp-without-sp", "ep", "etp", "pp",
        "interleaved", "borrowed", "compile", "validation",
    )),
    lacks=(
        _lacks("recurrent", "stack", "it has no M²RNN"),
        _lacks("mamba", "stack", "it has no Mamba"),
        _lacks("narrow-scan", "stack", "it has no Mamba"),
        _lacks("unpaired", "stack", "its layer is attention and then experts, no other order"),
        _lacks("relu2", "stack", "its MLPs and its experts are gated by silu alone"),
        _lacks("balance-loss", "stack", "it has no auxiliary loss, only a selection bias"),
        _lacks("z-loss", "stack", "it has no auxiliary loss, only a selection bias"),
        _lacks("capacity", "stack", "it drops no token"),
        _lacks("top-1", "stack", "gates of one expert are not normalised otherwise"),
        _lacks("hyper-connections", "stack", "it has none"),
        _lacks("dsa", "stack", "it has no sparse attention"),
        _lacks("prediction-heads", "stack", "its layers of prediction have experts, the law's none"),
        _lacks("own-axis", "stack", "it carves experts out of the dense ranks"),
        _lacks("author-dp", "stack", "its Mamba would be Mamba-3, and it has none"),
        _lacks("float64", "stack", "its trainer computes in float32 or bfloat16", asked=frozenset({"train"})),
        *(_lacks(each, "adapter", "a single pass is one process's, eager; sessions have the rest",
                 asked=frozenset({"run_model"})) for each in ("compile", "microbatches")),
        _lacks("fp16", "stack", "its mixed precision is bfloat16"),
        _lacks("ep-with-etp", "stack", "experts are whole on a rank with EP; 0.2.2 has an expert TP"),
        _lacks("uneven-kv", "stack", "it has fewer KV groups than TP ranks"),
        _lacks("fp8", "device", "FP8 needs a GPU"),
        _lacks("packed", "device", "packed documents need its flex_attention, which a CPU has not compiled"),
        _lacks("cp", "adapter", "context parallel over its flex_attention was not tried"),
        _lacks("bf16", "adapter", "its own trainer was tried in float32"),
        _lacks("muon", "adapter", "its optimizers have DistMuon, which was not tried"),
        _lacks("recompute", "adapter", "recomputation was not tried"),
        _lacks("own-data", "adapter", "its data sets need a tokenizer's files"),
        _lacks("windows", "adapter", "it is given batches and cuts them itself"),
        _lacks("uneven-microbatches", "stack", "a batch is a multiple of its microbatches, it asserts"),
        _lacks("uneven-vocab", "adapter", "it was not tried"),
        _lacks("checkpoint-of-a-recipe", "adapter", "it was not tried"),
    ),
)  # fmt: skip
"""What a step needs. Blocks by themselves have no ladder."""

CONVENTIONS = {
    "rope-angles": "float32",
    "softmax-router": "bfloat16-weight",
    "sigmoid-router": "bfloat16-weight",
    "gate-sum": "1e-20",
    "last-rate": "step-before",
}
"""Its choices where correct stacks differ."""
