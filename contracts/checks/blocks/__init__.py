"""BLK: the numbers of each block, of the loss, of the gradients."""

from contracts.checks.blocks import (  # isort: skip
    attention,  # A: heads, softmax, what a block holds
    latent_attention,  # A with MLA, in both its forms
    rope,  # angles, places, QK norm
    sparse_attention,  # A with DSA: what is selected, and what follows
    attention_causality,  # who sees whom in A
    half_precision_attention,  # what A adds up in
    mlp,  # E without experts
    expert_causality,  # which tokens a token's output depends on in a block with experts
    mamba_scan,  # M: what it sees, carries and keeps apart
    mamba2,  # M as Mamba-2: its recurrence
    mamba3,  # M as Mamba-3: its recurrence
    recurrent,  # R: its recurrence
    mamba_causality,  # who sees whom in M
    mamba_precision,  # M: what is held and computed in float32
    hyper_connections,  # residual streams beside each other
    multi_token_prediction,  # heads that look ahead
    loss,  # what is averaged over what
    model_causality,  # what a position of the whole model may see
    gradients,  # gradients of the whole model, and their recomputation
    causality_on_devices,  # whom a token reads, on a CPU and on a GPU
    bfloat16,  # blocks in bfloat16, on a CPU and on a GPU
    third_party_kernels,  # the same blocks by the kernels of others
    context_parallel_state,  # and what crosses from one of them to the next
    transformer_step,  # the same in one process, against its definition
)

__all__ = [
    "attention",
    "attention_causality",
    "bfloat16",
    "causality_on_devices",
    "context_parallel_state",
    "expert_causality",
    "gradients",
    "half_precision_attention",
    "hyper_connections",
    "latent_attention",
    "loss",
    "mamba2",
    "mamba3",
    "mamba_causality",
    "mamba_precision",
    "mamba_scan",
    "mlp",
    "model_causality",
    "multi_token_prediction",
    "recurrent",
    "rope",
    "sparse_attention",
    "third_party_kernels",
    "transformer_step",
]
