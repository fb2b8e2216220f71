"""The law, in reading order: the table of contents. A new subject is a file here and a line below."""

from contracts.checks import (  # isort: skip
    pattern,  # letters → blocks
    hybrid,  # blocks → the launcher's pattern, and back through its parser
    stages,  # blocks → pipeline stages and placements
    names,  # presets, aliases, labels
    lanes,  # what the name of a mode, a degree or a host promises
    recipe,  # what a recipe is, and which relations it keeps
    features,  # what each feature owns, and that no field is idle
    launch,  # recipe → the words of a command
    overrides,  # single fields changed by text
    arguments,  # what the launcher reads out of the words
    environment,  # recipe → environment
    inherited,  # what of the shell may reach the ranks
    topology,  # sizes of the mesh
    groups,  # who is in which group
    group_calls,  # in which order groups are made
    expert_lane,  # when EP is active, and what follows
    live_groups,  # the groups of a running world
    reductions,  # over whom a gradient is averaged
    scale,  # all of the mesh at 65 536 ranks
    preflight,  # the node: fabric, devices, memory, NUMA
    rank_map,  # ranks → devices and NICs, as the hosts have them
    fabric,  # what the ranks measure between them, and the devices that they see
    illegible,  # tools that are absent, captures that are cut
    manifest,  # a detached run's states, and what a re-run takes over
    installation,  # what is installed, against what should be
    install_plan,  # how it gets there
    storage,  # where state lies
    triage,  # facts of a run that is stuck, failed or thin → where to look first
    allocator,  # fragmentation, exhaustion, and what a flag did about them
    receipts,  # what a run leaves behind, whole, however it ended
    run_receipts,  # the same of a run that several ranks made
    redaction,  # what must not stand in it
    metrics,  # the figures of a run, and what they need beside them
    comparison,  # which two runs compare
    goodput,  # a wall clock in parts
    footprint,  # what a model holds on a rank
    budget,  # whether that fits a card, and what proves it
    kernels,  # which kernel may run where
    numeric,  # what a step computes, by its numbers
    gate,  # the suite itself
    gate_fitness,  # which of its contracts may judge
    gate_plans,  # what a profile demands
    gate_reports,  # what it says of its verdict
    gate_tolerances,  # what it calls a difference
    many_ranks,  # the suite on several ranks
    unwritten,  # what no contract judges yet
)

__all__ = [
    "allocator", "arguments", "budget", "comparison", "environment", "expert_lane", "fabric", "features",
    "footprint", "gate", "gate_fitness", "gate_plans", "gate_reports", "gate_tolerances", "goodput", "group_calls",
    "groups", "hybrid",
    "illegible", "inherited", "install_plan",
    "installation", "kernels", "lanes", "launch", "live_groups", "manifest", "many_ranks", "metrics", "names",
    "numeric", "overrides", "pattern", "preflight", "rank_map", "receipts", "recipe", "redaction", "reductions",
    "run_receipts", "scale", "stages", "storage", "topology", "triage", "unwritten",
]  # fmt: skip
