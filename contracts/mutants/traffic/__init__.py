"""Mutants of TRAF, under the file names of `contracts/checks/traffic`.

`contracts.mutants.tensors` reads those that are torch modules.
"""
