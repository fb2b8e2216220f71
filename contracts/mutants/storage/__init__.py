"""Mutants of STOR, under the file names of `contracts/checks/storage`."""
