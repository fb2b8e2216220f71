"""The promises that need one CUDA device, put to the reference stack."""

from contracts.harness.suite import test_gpu as test_the_reference_keeps_the_law

__all__ = ["test_the_reference_keeps_the_law"]
