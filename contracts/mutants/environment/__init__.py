"""Mutants of ENV, under the file names of `contracts/checks/environment`."""
