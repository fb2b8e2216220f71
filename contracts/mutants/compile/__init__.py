"""Counterexamples of COMP, under the file names of `contracts/checks/compile`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""
