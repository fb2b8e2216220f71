"""Mutants of COMP, under the file names of `contracts/checks/compile`.

`contracts.mutants.tensors` reads those that are torch modules.
"""
