"""A reference with some of its parts exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.stack import Reference


class Exchanged(Reference):
    """The reference, built of other classes where `exchange` names one: `exchange = {"attention": Tiled}`."""

    exchange: ClassVar[Mapping[str, Any]] = {}

    def parts(self) -> Parts:
        return replace(super().parts(), **self.exchange)
