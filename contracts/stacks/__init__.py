"""Stacks that can be put under test. They know the questions and none of the checks."""
