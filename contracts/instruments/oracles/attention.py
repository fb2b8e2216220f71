"""Attention, as its papers define it."""
