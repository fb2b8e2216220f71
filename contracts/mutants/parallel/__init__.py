"""Mutants of PAR, under the file names of `contracts/checks/parallel`."""
