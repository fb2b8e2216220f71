"""Stacks that can be put under test. They import the questions and none of the checks."""
