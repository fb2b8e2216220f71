"""Counterexamples of OPT, under the file names of `contracts/checks/optimizer`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""
