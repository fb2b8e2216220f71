"""Stacks that leave their ranks the wrong environment."""
