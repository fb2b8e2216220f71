"""What this adapter asks of transformers on a CPU: the features that it has, and why not the others."""

from __future__ import annotations

from contracts.spec.abilities import Abilities, Absence
from contracts.spec.lacks import Lack

_STEPS = frozenset({"built", "initial", "run_model", "train"})


def _lacks(features: str, kind: Lack, reason: str, *, asked: frozenset[str] = _STEPS) -> Absence:
    return Absence(features=frozenset(features.split()), kind=kind, reason=reason, asked=asked)


ABILITIES = Abilities(
    has=frozenset((
        "attention", "mlp", "experts", "mamba", "narrow-scan", "unpaired",
        "gqa", "mla", "qk-norm", "swiglu", "relu2", "softmax",
        "sigmoid",
        "top-1", "selection-bias", "shared-expert", "route-scale", "tied", "float64", "float32", "bf16", "adamw",
        "cosine", "linear", "constant", "WSD", "microbatches", "uneven-microbatches", "windows", "packed", "recompute",
        "compile", "validation", "checkpoint", "dp", "fsdp", "replicas", "ep", "etp", "borrowed",
    )),
    lacks=(
        _lacks("recurrent", "stack", "no model has an M²RNN"),
        _lacks("hyper-connections", "stack", "no model has them"),
        _lacks("prediction-heads", "stack", "its models of multi-token prediction do not train the heads"),
        _lacks("fp8", "stack", "no model has FP8 training"),
        _lacks("capacity", "stack", "no model drops tokens"),
        _lacks("z-loss", "stack", "no model has a z loss on router logits"),
        _lacks("balance-loss", "stack", "its balance loss is over all layers of a batch, times top_k"),
        _lacks("softmax route-scale", "stack", "no model scales gates from a softmax"),
        _lacks("attention relu2", "stack", "attention beside relu2 has no rope (NemotronH)"),
        _lacks("attention mamba qk-norm", "stack", "no model has a scan beside a QK norm"),
        _lacks("attention narrow-scan", "stack", "Granite's scan is a multiple of the hidden size wide"),
        _lacks("attention unpaired", "stack", "a layer is a mixer and then an MLP or experts"),
        _lacks("swiglu unpaired", "stack", "a layer is a mixer and then an MLP or experts"),
        _lacks("mamba mla", "stack", "no model has a scan beside latent attention"),
        _lacks("mla softmax", "stack", "experts beside latent attention stand behind a sigmoid"),
        _lacks("gqa sigmoid", "stack", "experts behind a sigmoid stand beside latent attention"),
        _lacks("qk-norm shared-expert", "stack", "Qwen3-MoE has no shared expert"),
        _lacks("own-axis", "stack", "its experts lie on ranks that shard"),
        _lacks("author-dp", "stack", "no model has Mamba-3"),
        _lacks("sp", "stack", "its sequence parallel is a name, not wired up"),
        _lacks("pp", "stack", "its pipelines do not train"),
        _lacks("interleaved", "stack", "its pipelines do not train"),
        _lacks("ep-with-etp", "stack", "its experts are whole on a rank of expert parallel"),
        _lacks("checkpoint-of-a-recipe", "stack", "its Trainer compares no configuration with a checkpoint's"),
        _lacks("tp", "device", "accelerate takes tensor parallel on accelerators alone"),
        _lacks("tp-without-sp", "device", "accelerate takes tensor parallel on accelerators alone"),
        _lacks("uneven-kv", "device", "accelerate takes tensor parallel on accelerators alone"),
        _lacks("uneven-vocab", "device", "accelerate takes tensor parallel on accelerators alone"),
        _lacks("fp16", "device", "its Trainer has no float16 on a CPU"),
        _lacks("mamba packed", "device", "without mamba-ssm's kernels it refuses packed documents in a scan"),
        _lacks("cp", "adapter", "context parallel over its Trainer is not reached"),
        _lacks("muon", "stack", "its Trainer has no Muon of its own; a caller hands one over"),
        _lacks("dsa", "adapter", "sparse attention is asked in blocks"),
        _lacks("own-data", "adapter", "it has no data of its own; give batches"),
        _lacks("compile", "adapter", "a single pass is one process's, eager; sessions have the rest",
               asked=frozenset({"run_model"})),
        _lacks("bf16", "adapter", "under autocast no parameter has one dtype in which it is used",
               asked=frozenset({"built"})),
    ),
)  # fmt: skip
"""What a step needs. Blocks by themselves have no ladder."""
