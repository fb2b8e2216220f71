"""The harness: puts stacks under test, as a pytest plugin and as the command line."""
