"""INST: what is installed, compared with the stack's table, and install plans."""
