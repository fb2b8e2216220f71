"""The model: parts, layers, initial weights. `parts.py` is the page to begin with."""
