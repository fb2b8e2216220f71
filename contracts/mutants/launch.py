"""Stacks that write or read a command wrongly."""
