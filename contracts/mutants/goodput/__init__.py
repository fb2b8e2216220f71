"""Mutants of GOOD, under the file names of `contracts/checks/goodput`."""
