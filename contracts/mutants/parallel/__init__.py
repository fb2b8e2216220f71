"""Mutants of PAR, under the file names of `contracts/checks/parallel`.

`contracts.mutants.tensors` reads those that are torch modules.
"""
