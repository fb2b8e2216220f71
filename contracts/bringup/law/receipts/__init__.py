"""RCPT: what a run leaves behind, however it ended."""
