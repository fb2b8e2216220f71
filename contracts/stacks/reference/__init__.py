"""The reference stack: what it says of the launch, the node, the evidence, a run's life and what fits."""
