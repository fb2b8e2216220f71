"""The law, family by family, in reading order. A family is a folder, named for the prefix of its ids.

A new subject is a file in the folder of its family and a line in that folder's `__init__`; its mutants stand in the
file of the same name below `contracts/mutants`. No file here loads torch when it is imported: `instruments` does,
when a check first uses one of them.
"""

from contracts.checks import (  # isort: skip
    pattern,  # PAT: letters → blocks, the launcher's syntax, pipeline stages, what was built
    names,  # NAME: presets, aliases, labels, modes, hosts
    recipe,  # REC: fields of a recipe, divisibility, what each feature changes
    argv,  # ARGV: recipe → launcher arguments, and back
    environment,  # ENV: environment variables of a launch, and which inherited ones may reach the ranks
    topology,  # TOPO: mesh sizes, process groups, gradient reductions
    preflight,  # PREF: the node before a launch: fabric, devices, memory, NUMA
    manifest,  # MANI: the states of a detached run, and where to look first
    install,  # INST: installed packages against the stack table
    storage,  # STOR: where state lies
    memory,  # MEM: bytes of a model, a step, a card and the allocator
    receipts,  # RCPT: the receipt a run writes, however it ends
    comparison,  # CMP: which two runs may be compared
    goodput,  # GOOD: wall-clock time in parts that add up
    kernels,  # KRN: which kernel may run where, and which ran
    blocks,  # BLK: outputs and gradients of each block, loss, whole model
    moe,  # MOE: routing, dispatch, gates, balance, capacity
    optimizer,  # OPT: parameter groups, schedules, clipping, updates and moments
    parallel,  # PAR: a step on several ranks equals the step on one rank
    precision,  # PREC: which matrices are in FP8, and their scales
    compile,  # COMP: compiled blocks, steps and layouts equal the eager ones
    checkpoint,  # CKPT: save, load, resume, resharding, retention, crash safety
    observe,  # OBS: what every healthy training run keeps, judged from one trace
    traffic,  # TRAF: collectives and messages of a step
    gate,  # GATE: the suite itself
)

__all__ = [
    "argv",
    "blocks",
    "checkpoint",
    "comparison",
    "compile",
    "environment",
    "gate",
    "goodput",
    "install",
    "kernels",
    "manifest",
    "memory",
    "moe",
    "names",
    "observe",
    "optimizer",
    "parallel",
    "pattern",
    "precision",
    "preflight",
    "receipts",
    "recipe",
    "storage",
    "topology",
    "traffic",
]
