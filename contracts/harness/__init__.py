"""The harness: brings stacks before the law, as a pytest plugin and as the command line."""
