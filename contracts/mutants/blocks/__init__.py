"""Mutants of BLK, under the file names of `contracts/checks/blocks`."""
