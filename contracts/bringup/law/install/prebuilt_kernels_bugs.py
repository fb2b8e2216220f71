"""Stacks whose pre-built kernels do not run, or compute nothing."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


@broken(Reference, "run_block", "INST-03b[mamba-ssm]: native ran at scan, and mamba-ssm was required")
def catches_what_the_import_raises(run_block, self, call):
    """Any error of the package is caught, and the slow path runs."""
    return run_block(self, replace(call, kernels={}))


@broken(Reference, "run_block", "INST-03b[transformer-engine]: beside the stack's own kernel: y differs")
def launches_for_another_device(run_block, self, call):
    """The binary has no code for this device, and nobody asks whether the launch failed: the output stays zero."""
    run = run_block(self, call)
    required = any(wish.required for wish in call.kernels.values())
    return replace(run, y=replace(run.y, data=bytes(len(run.y.data)))) if required else run
