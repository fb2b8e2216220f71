"""GATE: the suite itself."""
