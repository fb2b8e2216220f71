"""Mutants of OPT, under the file names of `contracts/checks/optimizer`."""
