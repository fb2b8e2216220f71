"""Mutants of OPT, under the file names of `contracts/checks/optimizer`.

`contracts.mutants.tensors` reads those that are torch modules.
"""
