"""CMP: which two runs may be compared."""
