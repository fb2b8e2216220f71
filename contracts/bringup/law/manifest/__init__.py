"""MANI: the states of a detached run, and triage: where to look first."""
