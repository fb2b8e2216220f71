"""The reference stack: a small hybrid training stack, and its answers to every question. Start with `stack.py`."""
