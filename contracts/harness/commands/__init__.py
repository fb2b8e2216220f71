"""The commands of `lanegate`, a file a subject. A new one is a function here or beside, and a line in `cli.py`."""
