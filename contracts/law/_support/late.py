"""torch, which is imported when a check first uses it: the law is planned and listed without it."""

from typing import TYPE_CHECKING

from contracts.instruments._lazy_import import Late

if TYPE_CHECKING:
    import torch
else:
    torch = Late("torch")

__all__ = ["torch"]
