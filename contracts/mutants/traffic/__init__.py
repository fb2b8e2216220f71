"""Counterexamples of TRAF, under the file names of `contracts/checks/traffic`.

Those that are torch modules are read by `contracts.mutants.tensors`.
"""
