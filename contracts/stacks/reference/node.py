"""What the reference says of a node: fabric, NUMA, devices."""

from __future__ import annotations


class NodeSide:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset()
