"""Counterexamples of PAR, under the file names of `contracts/checks/parallel`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""
