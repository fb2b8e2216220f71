"""Mutants of PREC, under the file names of `contracts/checks/precision`."""
