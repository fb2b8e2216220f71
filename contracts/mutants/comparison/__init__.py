"""Mutants of CMP, under the file names of `contracts/checks/comparison`."""
