"""Mutants of PAT, under the file names of `contracts/checks/pattern`."""
