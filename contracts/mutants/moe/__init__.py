"""Counterexamples of MOE, under the file names of `contracts/checks/moe`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""
