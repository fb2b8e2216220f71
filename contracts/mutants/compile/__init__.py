"""Mutants of COMP, under the file names of `contracts/checks/compile`."""
