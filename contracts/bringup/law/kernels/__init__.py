"""KRN: which kernel may run where, and which ran."""
