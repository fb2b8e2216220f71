"""Mutants of KRN, under the file names of `contracts/checks/kernels`."""
