"""torch, which is imported when a check first uses it: the law is planned and listed without it."""

from typing import TYPE_CHECKING, Any

from contracts.instruments._lazy_import import Late

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch, Tensor = Late("torch"), Any  # in annotations, which are evaluated

__all__ = ["Tensor", "torch"]
