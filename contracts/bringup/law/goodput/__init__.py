"""GOOD: the wall clock in parts."""
