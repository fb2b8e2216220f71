"""The law, family by family, in reading order. A family is a folder, named for the prefix of its ids.

A new subject is a file in the folder of its family and a line in that folder's `__init__`; its mutants stand in the
file of the same name below `contracts/mutants`. No file here loads torch when it is imported: `instruments` does,
when a check first uses one of them.
"""

from contracts.checks import (  # isort: skip
    pattern,  # PAT: letters → blocks, the launcher's syntax, pipeline stages, what was built
    names,  # NAME: presets, aliases, labels, modes, hosts
    recipe,  # REC: what a recipe is, which relations it keeps, what each feature owns
    argv,  # ARGV: recipe → the words of a command, and back
    environment,  # ENV: recipe → environment, and what of the shell may reach the ranks
    topology,  # TOPO: sizes of the mesh, its groups, who reduces over whom
    preflight,  # PREF: the node before a launch: fabric, devices, memory, NUMA
    manifest,  # MANI: the states of a detached run, and where to look first
    install,  # INST: what is installed, against what should be
    storage,  # STOR: where state lies
    memory,  # MEM: bytes: of a model, of a step, of a card, of the allocator
    receipts,  # RCPT: what a run leaves behind, however it ended
    comparison,  # CMP: which two runs compare
    goodput,  # GOOD: a wall clock in parts
    kernels,  # KRN: which kernel may run where, and which ran
    blocks,  # BLK: the numbers of each block, of the loss, of the gradients
    moe,  # MOE: tokens → experts and back, gates, balance, capacity
    optimizer,  # OPT: who moves which parameter how; rates, clipping, moments
    parallel,  # PAR: a step on several ranks is the step on one
    precision,  # PREC: what is in FP8 and what is not
    compile,  # COMP: what a compiler makes of blocks, steps and layouts
    checkpoint,  # CKPT: what a checkpoint gives back, wherever it was written
    traffic,  # TRAF: what ranks send each other
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
