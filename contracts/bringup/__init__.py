"""What is asked of a launch and of a node, beside a run's numbers; README.md says what is here."""
