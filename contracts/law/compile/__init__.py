"""COMP: what the compiler may change in blocks, steps and parallel layouts."""
