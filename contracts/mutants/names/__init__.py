"""Mutants of NAME, under the file names of `contracts/checks/names`."""
