"""Mutants of REC, under the file names of `contracts/checks/recipe`."""
