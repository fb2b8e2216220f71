"""Mutants of TRAF, under the file names of `contracts/checks/traffic`."""
