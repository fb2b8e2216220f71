"""Mutants of GATE, under the file names of `contracts/checks/gate`."""
