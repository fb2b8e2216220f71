"""Counterexamples of BLK, under the file names of `contracts/checks/blocks`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""
