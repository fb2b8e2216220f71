"""A tensor as a frozen value with dtype, shape, elements and a JSON form.

The questions about numbers take and return these. So a stack may live in another process or environment, and its
autograd graph does not leak into the check. `instruments.numerics` converts them to torch tensors and back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Element = Literal["float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool"]


@dataclass(frozen=True, kw_only=True)
class Array:
    """`data` holds the elements in row-major order, little-endian; in JSON it is base64."""

    dtype: Element
    shape: tuple[int, ...]
    data: bytes

    def __repr__(self) -> str:
        return f"Array({self.dtype}, {list(self.shape)})"

    @property
    def fingerprint(self) -> str:
        """A hash of its bytes, as 16 hexadecimal digits: equal on two ranks that hold the same elements."""
        return hashlib.sha256(self.data).hexdigest()[:16]


Arrays = Mapping[str, Array]
"""Tensors by name."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The dtype and the shape of a tensor, without its elements."""

    dtype: Element
    shape: tuple[int, ...]
