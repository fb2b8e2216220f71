"""Token-choice experts, one token at a time."""
