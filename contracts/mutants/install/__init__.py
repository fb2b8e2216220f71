"""Mutants of INST, under the file names of `contracts/checks/install`."""
