"""Mutants of TOPO, under the file names of `contracts/checks/topology`."""
