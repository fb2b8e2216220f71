"""Training scripts of real stacks, as their users write them. None of them knows of this suite."""
