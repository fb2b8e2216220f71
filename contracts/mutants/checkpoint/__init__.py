"""Mutants of CKPT, under the file names of `contracts/checks/checkpoint`.

`contracts.mutants.tensors` imports those that are torch modules.
"""
