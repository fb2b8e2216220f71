"""A training run: the trainer, and what a run reports."""
