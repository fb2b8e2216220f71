"""The model: blocks, layers, initial weights. Start with `parts.py`, the table of exchangeable classes."""
