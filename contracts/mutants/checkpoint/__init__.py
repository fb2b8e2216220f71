"""Mutants of CKPT, under the file names of `contracts/checks/checkpoint`."""
