"""Mutants of BLK, under the file names of `contracts/checks/blocks`.

`contracts.mutants.tensors` imports those that need torch.
"""
