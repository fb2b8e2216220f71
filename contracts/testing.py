"""The words of `rankproof` for a project's own tests under their former name, of an older installation."""

from rankproof.pytest_plugin import (
    parametrize_with_contracts,
    pytest_addoption,
    pytest_configure,
    pytest_generate_tests,
    rankproof_case,
)

__all__ = [
    "parametrize_with_contracts", "pytest_addoption", "pytest_configure", "pytest_generate_tests", "rankproof_case",
]  # fmt: skip
