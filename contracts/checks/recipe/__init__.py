"""REC: what a recipe is, which relations hold between its fields, what each feature may change."""

from contracts.checks.recipe import (  # isort: skip
    consistency,  # what a recipe is, and which relations hold between its fields
    features,  # what each feature may change, and that no field is unused
    observable_features,  # features and fields observed in the built model, its passes and its steps
)

__all__ = [
    "consistency",
    "features",
    "observable_features",
]
