"""The M²RNN recurrence, one token at a time."""
