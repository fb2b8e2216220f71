"""The commands of `rankproof`, a file a subject. A new one is a function here or beside, and a line in `cli.py`."""
