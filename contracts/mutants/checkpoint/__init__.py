"""Counterexamples of CKPT, under the file names of `contracts/checks/checkpoint`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""
