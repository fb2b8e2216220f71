"""BLK: the numbers of each block, of the loss, of the gradients."""

from contracts.checks.blocks import (  # isort: skip
    attention,  # A: heads, softmax, what a block holds
    latent_attention,  # A with MLA, absorbed and not
    rope,  # angles, positions, QK norm
    sparse_attention,  # A with DSA: which keys are selected, attention over them
    attention_causality,  # A: causality, documents, rows
    half_precision_attention,  # A: accumulation in float32
    mlp,  # E without experts
    expert_causality,  # E with experts: causality
    mamba_scan,  # M: chunks and state passing
    mamba2,  # M as Mamba-2: its recurrence
    mamba3,  # M as Mamba-3: its recurrence
    recurrent,  # R: its recurrence
    mamba_causality,  # M: causality and documents
    mamba_precision,  # M: what is held and computed in float32
    hyper_connections,  # mHC: parallel residual streams
    multi_token_prediction,  # MTP heads: inputs, labels, gradients
    loss,  # the mean over labels, the total
    model_causality,  # causality and documents of the whole model
    gradients,  # gradients of the whole model, and activation recomputation
    causality_on_devices,  # exact causality of every block, on a CPU and on a GPU
    bfloat16,  # blocks in bfloat16, on a CPU and on a GPU
    third_party_kernels,  # mamba-ssm and Transformer Engine in place of a block's own kernels
    context_parallel_state,  # state that passes between context-parallel ranks
    memory_order,  # strides of a block's input and of its upstream gradient
    transformer_step,  # a training step of a transformer against its definition
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
    "memory_order",
    "mlp",
    "model_causality",
    "multi_token_prediction",
    "recurrent",
    "rope",
    "sparse_attention",
    "third_party_kernels",
    "transformer_step",
]
