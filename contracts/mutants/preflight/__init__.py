"""Mutants of PREF, under the file names of `contracts/checks/preflight`."""
