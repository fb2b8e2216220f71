"""A tensor as a value: dtype, shape and elements, comparable, frozen and with a JSON form.

The questions about numbers take and give these, so that a stack may live in another process or another environment,
and nothing of its autograd graph leaks into the check. `instruments.numerics` turns them into torch tensors and back.
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
        """What its bits come to, as 16 hexadecimal digits: equal on two ranks that hold the same."""
        return hashlib.sha256(self.data).hexdigest()[:16]


Arrays = Mapping[str, Array]
"""Tensors by name."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a tensor is before it has elements."""

    dtype: Element
    shape: tuple[int, ...]
