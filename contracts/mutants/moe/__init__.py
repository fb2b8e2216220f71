"""Mutants of MOE, under the file names of `contracts/checks/moe`."""
