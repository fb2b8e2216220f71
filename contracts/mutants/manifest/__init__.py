"""Mutants of MANI, under the file names of `contracts/checks/manifest`."""
