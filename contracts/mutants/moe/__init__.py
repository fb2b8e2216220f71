"""Mutants of MOE, under the file names of `contracts/checks/moe`.

`contracts.mutants.tensors` reads those that are torch modules.
"""
