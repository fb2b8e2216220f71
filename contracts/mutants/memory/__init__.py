"""Mutants of MEM, under the file names of `contracts/checks/memory`."""
