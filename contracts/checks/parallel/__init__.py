"""PAR: a step on several ranks equals the step on one rank."""

from contracts.checks.parallel import (  # isort: skip
    gradient_accumulation,  # one step, cut into microbatches
    padding,  # positions without a label at the end of rows
    uneven_microbatches,  # microbatches of one step that differ in length
    equivalent_inputs,  # what says the same gives the same
    data_order,  # which rank consumes which sequence
    initial_weights,  # by seed, name and shape
    layouts,  # a step on several ranks equals the step on one
    pipeline,  # layers on several ranks
    pipeline_updates,  # norm, weights, moments and biases of a pipeline
    pipeline_runs,  # how a pipeline starts, what it saves and refuses
    batched_messages,  # messages between pipeline stages are issued in batches
    context_parallel,  # tokens of a row on several ranks
    context_parallel_counts,  # and counts over all of them
    transformers,  # a step of a transformer with experts, which many stacks can run
    multi_rank_start,  # the initial weights on several ranks, sharded or replicated
    reduction_precision,  # the dtype of gradient reductions, and the loss scale
    data_sharding,  # which rank reads which sequences
    nodes,  # ranks on several nodes
    first_steps,  # the first five steps on several ranks: every parameter moves, and the run resumes
)

__all__ = [
    "batched_messages",
    "context_parallel",
    "context_parallel_counts",
    "data_order",
    "data_sharding",
    "equivalent_inputs",
    "first_steps",
    "gradient_accumulation",
    "initial_weights",
    "layouts",
    "multi_rank_start",
    "nodes",
    "padding",
    "pipeline",
    "pipeline_runs",
    "pipeline_updates",
    "reduction_precision",
    "transformers",
    "uneven_microbatches",
]
