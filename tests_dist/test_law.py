"""The promises that need several ranks, put to the reference stack."""

from contracts.harness.suite import test_dist as test_the_reference_keeps_the_law

__all__ = ["test_the_reference_keeps_the_law"]
