"""Base classes and helpers of mutants in several families."""
