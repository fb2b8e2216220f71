"""What counterexamples of several families are derived from."""
