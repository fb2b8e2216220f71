"""Mutants of ARGV, under the file names of `contracts/checks/argv`."""
