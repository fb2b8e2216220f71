"""REC: what a recipe is, which relations it keeps, what each feature owns."""

from contracts.checks.recipe import (  # isort: skip
    consistency,  # what a recipe is, and which relations it keeps
    features,  # what each feature owns, and that no field is idle
    observable_features,  # features and fields that show
)

__all__ = [
    "consistency",
    "features",
    "observable_features",
]
