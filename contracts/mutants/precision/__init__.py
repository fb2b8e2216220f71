"""Mutants of PREC, under the file names of `contracts/checks/precision`.

`contracts.mutants.tensors` reads those that are torch modules.
"""
