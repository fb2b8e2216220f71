"""Helpers that checks of several families share."""
