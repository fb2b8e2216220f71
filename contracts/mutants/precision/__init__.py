"""Counterexamples of PREC, under the file names of `contracts/checks/precision`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""
