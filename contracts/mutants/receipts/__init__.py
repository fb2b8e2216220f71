"""Mutants of RCPT, under the file names of `contracts/checks/receipts`."""
