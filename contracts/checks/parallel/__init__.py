"""PAR: a step on several ranks is the step on one."""

from contracts.checks.parallel import (  # isort: skip
    gradient_accumulation,  # one step in several microbatches
    uneven_microbatches,  # microbatches of one step that differ in length
    data_order,  # which sequence is consumed where
    initial_weights,  # what training starts from
    layouts,  # a step on several ranks is the step on one
    pipeline,  # layers on several ranks
    pipeline_updates,  # what a pipeline makes of its gradients
    pipeline_runs,  # what a pipeline begins with, saves and refuses
    batched_messages,  # messages between pipeline stages are issued in batches
    context_parallel,  # tokens of a row on several ranks
    context_parallel_counts,  # and what is counted over all of them
    transformers,  # a step of a transformer with experts, which other stacks can be asked
    multi_rank_start,  # what several ranks begin with: the initial weights, sharded or replicated
    reduction_precision,  # in which dtype gradients of several ranks meet, and the scale of the loss
    data_sharding,  # which rank reads which sequences
    first_steps,  # the first five steps of several ranks: every parameter moves, and the run goes on from its save
)

__all__ = [
    "batched_messages",
    "context_parallel",
    "context_parallel_counts",
    "data_order",
    "data_sharding",
    "first_steps",
    "gradient_accumulation",
    "initial_weights",
    "layouts",
    "multi_rank_start",
    "pipeline",
    "pipeline_runs",
    "pipeline_updates",
    "reduction_precision",
    "transformers",
    "uneven_microbatches",
]
