"""The promises about numbers, in reading order. No file here loads torch when it is imported: `instruments` does, when
a check first uses one of them."""

from contracts.checks.numeric import (  # isort: skip
    attention,  # A: heads, softmax, what a block holds
    latent_attention,  # A with MLA, in both its forms
    rope,  # angles, places, QK norm
    sparse_attention,  # A with DSA: what is selected, and what follows
    visibility,  # who sees whom in A
    half_precision,  # what A adds up in
    mlp,  # E without experts
    routing,  # tokens → experts and gates
    gates,  # what an expert's output is multiplied by
    dispatch,  # tokens to their experts and back
    experts,  # what an expert computes, and the shared one
    dropping,  # capacity: who finds no slot
    balance,  # losses and biases that spread the tokens
    selection_bias,  # balance without a loss
    scan,  # M: what it sees, carries and keeps apart
    mamba,  # M as Mamba-2: its recurrence
    mamba3,  # M as Mamba-3: its recurrence
    recurrent,  # R: its recurrence
    visibility_of_m,  # who sees whom in M
    ssm_precision,  # M: what is held and computed in float32
    streams,  # residual streams beside each other
    prediction,  # heads that look ahead
    loss,  # what is averaged over what
    isolation,  # what a position of the whole model may see
    optimizer_table,  # who moves which parameter how
    updates,  # what a step makes of weights and moments
    schedule,  # rates and clipping
    accumulation,  # one step in several microbatches
    windows,  # microbatches of one step that differ in length
    ledger,  # which sequence is consumed where
    model,  # what was built, and its layers in a row
    gradients,  # gradients of the whole model, and their recomputation
    reach,  # whom a token reads, on a CPU and on a GPU
    bfloat16,  # blocks in bfloat16, on a CPU and on a GPU
    foreign_kernels,  # the same blocks by the kernels of others
    precision,  # what is in FP8 and what is not
    fp8_products,  # products of FP8 factors
    fp8_scales,  # delayed scaling: its rings and scales
    fp8_widths,  # widths that FP8 takes
    seams,  # whose kernel runs where, and why
    kernels_that_ran,  # what ran, against what was said
    compiled,  # what a compiler makes of blocks and model
    compiled_experts,  # the token-choice layer compiled, at its true size on a GPU
    compiled_files,  # what a compiler leaves on a disk, and where
    footprint_of_a_step,  # bytes held on a device, against the budget
    initial,  # what training starts from
    witnesses,  # features and fields that show
    checkpoint,  # what a checkpoint gives back
    damage,  # what was altered, mixed, planted
    crash,  # a writer that dies, a full disk, a save that is overtaken
    latest,  # which is the newest, and where they lie
    retention,  # which may go
    weight_names,  # weights in the files of others
    resume,  # resumed is uninterrupted
    continuation,  # where a resumed run goes on
    resharding,  # checkpoints of several ranks, loaded on others
    every_layout,  # any layout goes on from any other
    same_checkpoint,  # all ranks load one, or none
    durable_shards,  # what ranks write, and where
    world_crash,  # one of several ranks dies in a save
    world_retention,  # which checkpoints several ranks keep
    world_overtaken,  # saves of several ranks in the background
    layouts,  # a step on several ranks is the step on one
    pipeline,  # layers on several ranks
    pipeline_updates,  # what a pipeline makes of its gradients
    pipeline_runs,  # what a pipeline begins with, saves and refuses
    messages,  # what stages send each other
    expert_layouts,  # experts on several ranks
    context_parallel,  # tokens of a row on several ranks
    context_borders,  # and what crosses from one of them to the next
    context_counts,  # and what is counted over all of them
    transformers,  # a step of a transformer with experts, which other stacks can be asked
    transformer_step,  # the same in one process, against its definition
    sharded_optimizer,  # what several ranks begin with, and make of a step
    traffic,  # what ranks send each other
    axis_traffic,  # over which ranks a step reduces and gathers
    true_size,  # what a step of NAM56R sends, without a GPU
    rehearsed_step,  # that a rehearsal is of the step that runs
    rank_classes,  # what every class of ranks sends, at true size
    sharded_bytes,  # what a rank of NAM56R holds, without a GPU
    rows_of_ranks,  # which rank reads which sequences
    compiled_layouts,  # lanes of several ranks, compiled and not
    compiled_stages,  # stages and experts of several ranks, compiled
    refused_runs,  # what a refused run leaves behind
)

__all__ = [
    "accumulation",
    "attention",
    "axis_traffic",
    "balance",
    "bfloat16",
    "checkpoint",
    "compiled",
    "compiled_experts",
    "compiled_files",
    "compiled_layouts",
    "compiled_stages",
    "context_borders",
    "context_counts",
    "context_parallel",
    "continuation",
    "crash",
    "damage",
    "dispatch",
    "dropping",
    "durable_shards",
    "every_layout",
    "expert_layouts",
    "experts",
    "footprint_of_a_step",
    "foreign_kernels",
    "fp8_products",
    "fp8_scales",
    "fp8_widths",
    "gates",
    "gradients",
    "half_precision",
    "initial",
    "isolation",
    "kernels_that_ran",
    "latent_attention",
    "latest",
    "layouts",
    "ledger",
    "loss",
    "mamba",
    "mamba3",
    "messages",
    "mlp",
    "model",
    "optimizer_table",
    "pipeline",
    "pipeline_runs",
    "pipeline_updates",
    "precision",
    "prediction",
    "rank_classes",
    "reach",
    "recurrent",
    "refused_runs",
    "rehearsed_step",
    "resharding",
    "resume",
    "retention",
    "rope",
    "routing",
    "rows_of_ranks",
    "same_checkpoint",
    "scan",
    "schedule",
    "seams",
    "selection_bias",
    "sharded_bytes",
    "sharded_optimizer",
    "sparse_attention",
    "ssm_precision",
    "streams",
    "traffic",
    "transformer_step",
    "transformers",
    "true_size",
    "updates",
    "visibility",
    "visibility_of_m",
    "weight_names",
    "windows",
    "witnesses",
    "world_crash",
    "world_overtaken",
    "world_retention",
]
