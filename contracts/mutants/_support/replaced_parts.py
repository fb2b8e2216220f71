"""Base of mutants: the reference with some of its parts replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.stack import Reference


class Exchanged(Reference):
    """The reference with the classes that `exchange` names replaced, such as `exchange = {"attention": Tiled}`."""

    exchange: ClassVar[Mapping[str, Any]] = {}

    def parts(self) -> Parts:
        return replace(super().parts(), **self.exchange)
