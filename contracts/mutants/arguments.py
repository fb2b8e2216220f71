"""Stacks that lose or misread what they are told."""
